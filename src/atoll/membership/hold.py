"""A promise not to exchange until a view is installed: for some seconds at most."""

import asyncio
import contextlib

from atoll.world.base import World

__all__ = ["Hold"]


class Hold:
    """One node's promise.

    Args:
        world: the node's world.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._until_s = 0.0
        self._ended = asyncio.Event()

    @property
    def is_on(self) -> bool:
        return self._world.now < self._until_s

    def begin(self, seconds: float) -> None:
        self._until_s = self._world.now + seconds

    def end(self) -> None:
        """The promise is kept: a view is installed, or the one before stays."""
        self._until_s = 0.0
        self._ended.set()

    async def wait(self) -> None:
        """Returns when there is no promise."""
        while self.is_on:
            self._ended.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._until_s - self._world.now):
                    await self._ended.wait()

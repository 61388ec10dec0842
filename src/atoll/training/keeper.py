"""Keepers: a node's whole state in a file, written as it trains, so that a power cut costs half a minute."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np

from atoll.state import Saved
from atoll.training.checkpoint import RunIdentity, read_node, write_node
from atoll.world.base import World

__all__ = ["KEEP_EVERY_S", "Keeper"]

log = logging.getLogger("atoll")

KEEP_EVERY_S = 30.0


class Keeper:
    """Writes a node's state to a file every so often, at a step boundary, and at the end.

    The state is copied where training is done, and written in a thread of its own: neither the event loop nor training
    waits for the disk.  What cannot be written is said once, and tried again.

    Args:
        path: the file.
        identity: what must be the same for the file to fit.
        world: the node's.
    """

    def __init__(self, path: Path, identity: RunIdentity, world: World) -> None:
        self._path = path
        self._identity = identity
        self._world = world
        self._kept_at = world.now
        self._save: Callable[[], Saved] | None = None
        self._writing: asyncio.Task[None] | None = None
        self._is_failing = False

    def load(self) -> Saved | None:
        """What the node was, if there is a file.

        Raises:
            CheckpointError: it cannot be read, is not whole, or is of something else.
        """
        return read_node(self._path, self._identity) if self._path.exists() else None

    def at_boundary(self, save: Callable[[], Saved]) -> Awaitable[None] | None:
        """Training is between two steps; it waits for what is returned."""
        self._save = save
        if self._writing is not None or self._world.now - self._kept_at < KEEP_EVERY_S:
            return None
        return self._keep(save)

    async def _keep(self, save: Callable[[], Saved]) -> None:
        self._kept_at = self._world.now
        saved = save()
        # Others than training change what a strategy remembers: that is copied here and now.
        saved = {name: value.copy() if name.startswith("talk/") else value for name, value in saved.items()}
        copied = await self._world.aside(lambda: _copy(saved))
        self._writing = asyncio.create_task(self._write(copied), name="writing a checkpoint")

    async def _write(self, saved: Saved) -> None:
        try:
            await asyncio.to_thread(write_node, self._path, saved, self._identity)
        except OSError as error:
            if not self._is_failing:
                told = error.strerror or error
                log.warning("%s: the checkpoint cannot be written (%s): training goes on", self._path, told)
            self._is_failing = True
        else:
            if self._is_failing:
                log.warning("%s: the checkpoint is written again", self._path)
            self._is_failing = False
        finally:
            self._writing = None

    async def finish(self) -> None:
        """Training has ended: writes what the node is now."""
        if self._writing:
            await self._writing
        if self._save:
            save = self._save
            await self._write(await self._world.aside(lambda: _copy(save())))


def _copy(saved: Saved) -> Saved:
    return {name: np.array(value) for name, value in saved.items()}

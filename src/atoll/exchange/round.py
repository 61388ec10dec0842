"""A round: one collective among some nodes, as one of them sees it.

Collectives (`atoll.exchange.collectives`) are written against ranks and vectors; a round turns those into peers,
channels and bytes.  Rounds have names, never step counts, so nodes that are ahead or behind never mix two of them up.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from atoll.world.base import Lane, World

__all__ = ["Round", "Vector"]

Vector: TypeAlias = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Round:
    """One collective among `members`, who all know them in the same order."""

    world: World
    name: str
    members: tuple[str, ...]

    @property
    def rank(self) -> int:
        return self.members.index(self.world.name)

    @property
    def size(self) -> int:
        return len(self.members)

    @asynccontextmanager
    async def sending(self) -> AsyncIterator["Sender"]:
        """Gives a `Sender` that sends in the background; leaving the block waits until all has left.

        A node must not stop taking part because one of its own messages cannot leave yet.
        """
        async with asyncio.TaskGroup() as group:
            yield Sender(self, group)

    async def receive(self, rank: int, tag: str) -> Vector:
        message = await self.world.peer(self.members[rank]).receive(f"{self.name}/{tag}")
        return np.frombuffer(message.body, dtype=np.float32)


class Sender:
    """Sends the vectors of one round, in the background."""

    def __init__(self, meeting: Round, group: asyncio.TaskGroup) -> None:
        self._meeting = meeting
        self._group = group

    def __call__(self, rank: int, tag: str, values: Vector) -> asyncio.Task[None]:
        """Begins to send; messages to one member leave in the order of these calls."""
        peer = self._meeting.world.peer(self._meeting.members[rank])
        sending = peer.send(f"{self._meeting.name}/{tag}", body=np.ascontiguousarray(values).tobytes(), lane=Lane.BULK)
        return self._group.create_task(sending)

    async def has_left(self, rank: int, sending: asyncio.Task[None]) -> None:
        """Returns when a message has left or its receiver cannot be reached, so that others need not wait for it."""
        peer = self._meeting.world.peer(self._meeting.members[rank])
        lost = self._group.create_task(peer.wait_until(reachable=False))
        await asyncio.wait({sending, lost}, return_when=asyncio.FIRST_COMPLETED)
        lost.cancel()

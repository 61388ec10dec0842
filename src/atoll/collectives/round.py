"""A round: one collective among some nodes, from the view of one of them.

Collectives (`atoll.collectives.algorithms`) are written against ranks and vectors; a round turns those into peers,
channels and bytes.  Rounds have names, never step counts, so nodes that are ahead or behind never mix two of them up.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TypeAlias, TypeVar

import torch

from atoll.collectives.judge import Judge
from atoll.vectors import CPU, Vector, of_bytes, sealed
from atoll.world.base import Lane, Spawn, World, frame_bytes

__all__ = ["BlockTurn", "Body", "Round", "SendLog", "Spawn", "Vector"]

Body: TypeAlias = bytes | memoryview
T = TypeVar("T")


class SendLog:
    """When a node sent how many bytes in a round, and how long it computed."""

    def __init__(self) -> None:
        self._spans: list[tuple[float, float, int]] = []
        self.computed_s = 0.0
        """Seconds of encoding, adding and decoding."""

    def add(self, began_s: float, ended_s: float, size: int) -> None:
        self._spans.append((began_s, ended_s, size))

    def clear(self) -> None:
        """Forgets what was sent.  Blocks of the next round may have this log already."""
        self._spans.clear()

    def seconds_a_byte(self, least_bytes: int) -> float | None:
        """Seconds per byte in the fastest period of continuous sending with at least `least_bytes`: slower periods
        include other waits.  If no period has enough bytes, it is over all periods together.  `None` if all together
        have too few bytes; 0 if sending takes no time.
        """
        stretches: list[tuple[float, float, int]] = []
        for began, ended, size in sorted(self._spans):
            if stretches and began <= stretches[-1][1]:
                first, last, total = stretches[-1]
                stretches[-1] = first, max(last, ended), total + size
            else:
                stretches.append((began, ended, size))
        spans = [(ended - began, size) for began, ended, size in stretches]
        together = sum(seconds for seconds, _ in spans), sum(size for _, size in spans)
        enough = [span for span in spans if span[1] >= least_bytes] or [together]
        found = [seconds / size for seconds, size in enough if size >= least_bytes]
        return min([each for each in found if each > 0] or found, default=None)


class BlockTurn:
    """A block's place in the order in which a round's blocks are judged.

    Args:
        after: the turn of the block before it.
    """

    def __init__(self, after: "BlockTurn | None" = None) -> None:
        self.before: asyncio.Event | None = after.done if after else None
        self.done: asyncio.Event = asyncio.Event()


@dataclass(frozen=True, slots=True)
class Round:
    """One collective among `members`; all of them use the same order."""

    world: World
    name: str
    members: tuple[str, ...]
    key: int = 0
    """A random seed that all members share."""
    log: SendLog | None = None
    judge: Judge = field(default_factory=Judge)
    """Checks the members' contributions."""
    origin: Vector | None = None
    """What members' values are changes of; `None` where they are changes themselves."""
    turn: "BlockTurn | None" = None
    """When this block of the vector is judged, among the others of its round."""
    device: torch.device = CPU
    """Where vectors are."""
    block: int = 0
    """The number of this block."""
    blocks: int = 1
    """How many blocks the round has."""
    values: int = 0
    """How many values they have together."""

    def named(self, name: str) -> "Round":
        """The same round, for another collective."""
        return replace(self, name=name)

    async def offload(self, work: Callable[[], T], *, values: int = 0) -> T:
        """Does `work` outside the event loop (`World.offload`), and logs how long that took."""
        if self.log is None:
            return await self.world.offload(work, values=values)
        began = self.world.now

        def timed() -> T:
            nonlocal began
            began = self.world.now  # it may have waited for other work
            return work()

        result = await self.world.offload(timed, values=values)
        self.log.computed_s += self.world.now - began
        return result

    @asynccontextmanager
    async def in_turn(self) -> AsyncIterator[None]:
        """Blocks are judged one after the other, in the same order on every member."""
        if self.turn is None:
            yield
            return
        if self.turn.before is not None:
            await self.turn.before.wait()
        yield
        self.turn.done.set()

    @property
    def rank(self) -> int:
        return self.members.index(self.world.name)

    @property
    def size(self) -> int:
        return len(self.members)

    @asynccontextmanager
    async def sending(self) -> AsyncIterator["Sender"]:
        """Gives a `Sender` that sends in the background; leaving the block waits until everything is sent.

        A node must not stop taking part because one of its own messages cannot leave yet.
        """
        async with asyncio.TaskGroup() as group:
            yield Sender(self, group)

    async def receive(self, rank: int, tag: str) -> Vector:
        """A vector of another member, which must not be changed."""
        return of_bytes(await self.receive_raw(rank, tag), device=self.device)

    async def receive_raw(self, rank: int, tag: str) -> Body:
        message = await self.world.peer(self.members[rank]).receive(f"{self.name}/{tag}")
        return message.body

    async def gather(self, body: Body, tag: str = "all") -> list[Body]:
        """An all-gather, between all pairs at once: returns every member's bytes in rank order."""
        others = [(self.rank + step) % self.size for step in range(1, self.size)]
        async with self.sending() as send:
            for other in others:
                send.raw(other, tag, body)
            bodies = {other: await self.receive_raw(other, tag) for other in others}
        bodies[self.rank] = body
        return [bodies[rank] for rank in range(self.size)]


class Sender:
    """Sends the vectors of one round, in the background."""

    def __init__(self, meeting: Round, group: asyncio.TaskGroup) -> None:
        self._meeting = meeting
        self._group = group

    def __call__(self, rank: int, tag: str, values: Vector) -> asyncio.Task[None]:
        """Starts to send; messages to one member leave in the order of these calls."""
        return self.raw(rank, tag, sealed(values))

    def raw(self, rank: int, tag: str, body: Body) -> asyncio.Task[None]:
        """The same for bytes."""
        return self._group.create_task(self._send(rank, f"{self._meeting.name}/{tag}", body))

    async def _send(self, rank: int, channel: str, body: Body) -> None:
        world, log = self._meeting.world, self._meeting.log
        began, size = world.now, frame_bytes(channel, b"", body)
        left = None if log is None else lambda at: log.add(began, max(began, at), size)
        await world.peer(self._meeting.members[rank]).send(channel, body=body, lane=Lane.BULK, left=left)

    async def has_left(self, rank: int, sending: asyncio.Task[None]) -> None:
        """Returns when a message has left or its receiver is unreachable, so that others need not wait for it."""
        peer = self._meeting.world.peer(self._meeting.members[rank])
        lost = self._group.create_task(peer.wait_until(reachable=False))
        await asyncio.wait({sending, lost}, return_when=asyncio.FIRST_COMPLETED)
        lost.cancel()

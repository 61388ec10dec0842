"""The exchange of a fragment: a pipeline over its blocks.

Each block is encoded, sent, received, summed and checked on its own, a few of them at a time, so that computation and
transfers overlap.  All work on values runs outside the event loop (`World.offload`), which only moves bytes.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from atoll.collectives import BlockTurn, Round
from atoll.collectives.reduce import Reduced, Reduction
from atoll.strategies.replica import Replica
from atoll.strategies.rounds.block import Block, Received
from atoll.strategies.rounds.fragment import Fragment
from atoll.strategies.rounds.trailer import Trailer
from atoll.vectors import Numbers, Vector, copied
from atoll.world.hearing import NOT_UNDERSTOOD

__all__ = ["Exchange", "ExchangedBlock", "blocks_under_way", "memory_bytes"]

LEAST_UNDER_WAY, MOST_UNDER_WAY = 3, 8
VALUES_UNDER_WAY = 1 << 24
COPIES_UNDER_WAY = 5
"""About how many copies of a block there are while it is exchanged: given, sent, received, added up, left over."""


def blocks_under_way(values: int) -> int:
    """How many blocks of so many values are in flight at a time: enough to compute and transfer at the same time."""
    return min(MOST_UNDER_WAY, max(LEAST_UNDER_WAY, VALUES_UNDER_WAY // values))


def memory_bytes(fragments: list[Fragment]) -> int:
    """What rounds need beyond training: what is kept between them; a snapshot of what a round exchanges; and copies of
    the blocks under way.
    """
    blocks = [block for fragment in fragments for block in fragment.blocks]
    largest = max(sum(block.size for block in fragment.blocks) for fragment in fragments)
    block = max(each.size for each in blocks)
    under_way = COPIES_UNDER_WAY * min(blocks_under_way(block) * block, largest)
    return sum(each.kept_bytes for each in blocks) + 4 * (largest + under_way)


class ExchangedBlock(NamedTuple):
    """The result of the exchange of a block."""

    tail: Numbers
    """The sum of all members' trailers."""
    via: str
    snapshot: Vector | None
    """The member's own values; `None` if they were unusable."""
    received: Received


class Exchange:
    """One node's part in exchanging blocks.

    Args:
        replica: the node's model.
        reduction: how members add up.
        buffers: how many values the model's buffers have.
        refuse: called with a round's name, and why something of it was refused.
    """

    def __init__(
        self, replica: Replica, reduction: Reduction, buffers: int, refuse: Callable[[str, str], None]
    ) -> None:
        self._replica = replica
        self._reduction = reduction
        self._buffers = buffers
        self._refuse = refuse

    async def __call__(
        self,
        meeting: Round,
        tail: Numbers,
        via: str,
        fragment: Fragment,
        snapshots: list[Vector | None],
        *,
        take: Callable[[int, ExchangedBlock], Awaitable[None]],
    ) -> bool:
        """Exchanges all blocks of a fragment.  Returns `False` if a peer sent a malformed message.

        A block begins when all but the last few before it have been taken.  So a member that contributes to a block has
        taken all but the last few before it.

        Args:
            meeting: the round.
            tail: this member's trailer.
            via: the collective.
            fragment: the blocks to exchange.
            snapshots: this member's values, one vector per block.
            take: takes the result of a block; called with its number, in order.
        """
        count = len(fragment.blocks)
        values = sum(block.size for block in fragment.blocks)
        meeting = replace(meeting, blocks=count, values=values, device=self._replica.device)
        if meeting.size > 1:
            self._reduction.begin(meeting, len(tail))
        if count == 1:
            only = await self._block(meeting, tail, via, fragment.blocks[0], snapshots[0])
            if only is not None:
                await take(0, only)
            return only is not None
        room = asyncio.Semaphore(blocks_under_way(self._replica.block_values))
        judging, taking = BlockTurn(), BlockTurn()
        short = Trailer.numbers(tail, len(self._replica.members))

        async def exchange(place: int, judging: BlockTurn, taking: BlockTurn) -> None:
            name = f"{meeting.name}/{place}" if place else meeting.name
            of_block = replace(meeting, name=name, turn=judging, block=place)
            own_tail = short.copy() if place else tail
            found = await self._block(of_block, own_tail, via, fragment.blocks[place], snapshots[place])
            if found is None:
                raise _NotUnderstood
            if taking.before is not None:
                await taking.before.wait()
            await take(place, found)
            taking.done.set()
            room.release()

        try:
            async with asyncio.TaskGroup() as group:
                for place in range(count):
                    await room.acquire()
                    group.create_task(exchange(place, judging, taking))
                    judging, taking = BlockTurn(judging), BlockTurn(taking)
        except* _NotUnderstood:
            count = 0
        return count > 0

    async def _block(
        self, meeting: Round, tail: Numbers, via: str, block: Block, snapshot: Vector | None
    ) -> ExchangedBlock | None:
        offload = self._replica.world.offload
        weight = float(tail[0])
        own, origin = await offload(lambda: (block.payload(snapshot, weight), block.origin), values=block.size)
        if own is None:
            if not block.is_handed:
                self._refuse(meeting.name, "not finite")
            snapshot, own = None, block.unsent()
            Trailer.silence(tail, len(self._replica.members), self._buffers)
        result = await self._reduce(replace(meeting, origin=origin), own.values, tail, via)
        if result is None:
            return None
        received = await offload(partial(block.receive, result, own), values=block.size)
        return ExchangedBlock(result.tail, result.via, snapshot, received)

    async def _reduce(self, meeting: Round, payload: Vector, tail: Numbers, via: str) -> Reduced | None:
        if meeting.size == 1:
            return Reduced(copied(payload), tail)
        try:
            return await self._reduction(meeting, payload, tail, via)
        except* NOT_UNDERSTOOD as errors:
            why = f"not understood ({errors.exceptions[0]})"
        self._refuse(meeting.name, why)
        return None


class _NotUnderstood(Exception):
    """A peer sent a malformed message."""

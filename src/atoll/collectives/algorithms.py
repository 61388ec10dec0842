"""All-reduce in six ways: each returns the sum of all members' vectors, the same bytes on every member.

N nodes, M bytes, α latency, β seconds a byte of each node's access link:

====================  ==============================================  ==========================================
gather                every member sends its vector to all others     α + (N−1)·Mβ
star                  all send to the first member, which broadcasts  2α + 2(N−1)·Mβ
direct                each member sums one share and sends it to all  2α + 2(N−1)/N·Mβ
ring                  shares travel around the ring twice             2(N−1)α + 2(N−1)/N·Mβ
tree                  up a binomial tree and down again               2·log₂N·α + 2·log₂N·Mβ
halving_doubling      recursive halving, then recursive doubling      2·log₂N·α + 2(N−1)/N·Mβ  (N a power of two)
====================  ==============================================  ==========================================

A link that fails during a collective delays only its own messages; the transport resumes them.  A member that stops
waiting cancels and keeps its own vector.  No value is added twice: only one member sums each share, in a fixed order.
"""

import itertools
import math
from collections.abc import Awaitable, Callable

import torch

from atoll.collectives.round import Body, Round, Vector
from atoll.vectors import added, copied, of_bytes, sealed

__all__ = ["COLLECTIVES", "Collective", "broadcast", "collective"]

Collective = Callable[[Round, Vector], Awaitable[Vector]]
COLLECTIVES: dict[str, Collective] = {}
PIECE_VALUES = 1 << 18
"""The size of one piece: a megabyte.  Smaller pieces need more messages."""


def collective(name: str) -> Callable[[Collective], Collective]:
    """Registers a function as the collective `name`, which strategies can use (`via=`)."""

    def register(sum_up: Collective) -> Collective:
        COLLECTIVES[name] = sum_up
        return sum_up

    return register


@collective("star")
async def star(meeting: Round, vector: Vector) -> Vector:
    """Gather to the first member, which sums and broadcasts."""
    async with meeting.sending() as send:
        if meeting.rank > 0:
            send(0, "up", vector)
            return await meeting.receive(0, "down")
        total = copied(vector)
        for rank in range(1, meeting.size):
            total += await meeting.receive(rank, "up")
        for rank in range(1, meeting.size):
            send(rank, "down", total)
        return total


@collective("gather")
async def gather(meeting: Round, vector: Vector) -> Vector:
    """Every member sends its vector to all others, and each sums all: lowest latency, most bytes."""
    bodies = await meeting.gather(sealed(vector))
    return added([of_bytes(body, device=meeting.device) for body in bodies])


@collective("direct")
async def direct(meeting: Round, vector: Vector) -> Vector:
    """Reduce-scatter and all-gather, both between all pairs of members at once.

    Large shares are sent in pieces: some are summed while others are in flight, which saves one latency.
    """
    rank, size = meeting.rank, meeting.size
    others = [(rank + step) % size for step in range(1, size)]
    count = max(1, math.ceil(len(vector) / size / PIECE_VALUES))
    shares = [torch.tensor_split(share, count) for share in torch.tensor_split(vector, size)]
    sums: list[list[Vector]] = [[] for _ in range(size)]
    async with meeting.sending() as send:
        for piece, other in itertools.product(range(count), others):
            send(other, f"part {piece}", shares[other][piece])
        for piece in range(count):
            received = {other: await meeting.receive(other, f"part {piece}") for other in others}
            received[rank] = shares[rank][piece]
            total = added([received[other] for other in range(size)])  # in rank order, not in order of arrival
            for other in others:
                send(other, f"sum {piece}", total)
            sums[rank].append(total)
        for piece, other in itertools.product(range(count), others):
            sums[other].append(await meeting.receive(other, f"sum {piece}"))
    return torch.cat([total for each in sums for total in each])


@collective("ring")
async def ring(meeting: Round, vector: Vector) -> Vector:
    """Reduce-scatter around a ring, then all-gather around it."""
    rank, size = meeting.rank, meeting.size
    following, preceding = (rank + 1) % size, (rank - 1) % size
    shares = list(torch.tensor_split(vector, size))
    async with meeting.sending() as send:
        for step in range(size - 1):
            send(following, f"sum {step}", shares[(rank - step) % size])
            received = await meeting.receive(preceding, f"sum {step}")
            place = (rank - step - 1) % size
            shares[place] = shares[place] + received
        for step in range(size - 1):
            send(following, f"all {step}", shares[(rank + 1 - step) % size])
            shares[(rank - step) % size] = await meeting.receive(preceding, f"all {step}")
    return torch.cat(shares)


@collective("tree")
async def tree(meeting: Round, vector: Vector) -> Vector:
    """Reduce up a binomial tree whose root is the first member, then broadcast down it."""
    rank, size = meeting.rank, meeting.size
    async with meeting.sending() as send:
        total = copied(vector)
        levels = range(math.ceil(math.log2(size)))
        top = len(levels)
        for level in levels:
            if rank & (1 << level):
                send(rank - (1 << level), f"up {level}", total)
                top = level
                break
            if rank + (1 << level) < size:
                total += await meeting.receive(rank + (1 << level), f"up {level}")
        if rank > 0:
            total = await meeting.receive(rank - (1 << top), f"down {top}")
        for level in reversed(range(top)):
            if rank + (1 << level) < size:  # send to the largest subtree first, alone: it takes longest
                child = rank + (1 << level)
                await send.has_left(child, send(child, f"down {level}", total))
        return total


@collective("hd")
async def halving_doubling(meeting: Round, vector: Vector) -> Vector:
    """Recursive halving and doubling; members beyond the largest power of two first add theirs to a partner's."""
    rank, size = meeting.rank, meeting.size
    core = 1 << (size.bit_length() - 1)
    async with meeting.sending() as send:
        if rank >= core:
            send(rank - core, "fold", vector)
            return await meeting.receive(rank - core, "unfold")
        total = copied(vector)
        if rank + core < size:
            total += await meeting.receive(rank + core, "fold")
        bounds: list[tuple[int, int]] = [(0, len(vector))]
        distance = core // 2
        while distance:
            low, high = bounds[-1]
            middle = (low + high + 1) // 2
            keep, give = ((low, middle), (middle, high)) if not rank & distance else ((middle, high), (low, middle))
            send(rank ^ distance, f"halve {distance}", total[slice(*give)])
            total[slice(*keep)] += await meeting.receive(rank ^ distance, f"halve {distance}")
            bounds.append(keep)
            distance //= 2
        distance = 1
        while distance < core:
            mine = bounds.pop()
            low, high = bounds[-1]
            theirs = (mine[1], high) if mine[0] == low and not rank & distance else (low, mine[0])
            send(rank ^ distance, f"double {distance}", total[slice(*mine)])
            total[slice(*theirs)] = await meeting.receive(rank ^ distance, f"double {distance}")
            distance *= 2
        if rank + core < size:
            send(rank + core, "unfold", total)
    return total


async def broadcast(meeting: Round, root: int, body: Body) -> Body:
    """Sends one member's bytes to all, down a binomial tree: log₂N·α + log₂N·Mβ."""
    size = meeting.size
    place = (meeting.rank - root) % size
    levels = (size - 1).bit_length()
    async with meeting.sending() as send:
        top = levels
        if place:
            top = (place & -place).bit_length() - 1
            body = await meeting.receive_raw((root + place - (1 << top)) % size, "tell")
        for level in reversed(range(top)):
            if place + (1 << level) < size:
                child = (root + place + (1 << level)) % size
                await send.has_left(child, send.raw(child, "tell", body))
    return body

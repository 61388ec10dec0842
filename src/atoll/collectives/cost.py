"""Predicts the time of a collective on uneven links, where all messages that a node sends at once share its uplink.

A collective is a sequence of phases; in a phase some members send to others.  A phase ends when the slowest is done: a
node's uplink carries all that it sends, its downlink all that it receives, and each message then takes its latency.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.vectors import Matrix

__all__ = ["COSTED", "LinkMatrix", "broadcast_s", "collective_s", "ring_order", "tree_order"]

Sends = dict[tuple[int, int], float]
"""Bytes from one rank to another."""
BRUTE_FORCE = 6


@dataclass(frozen=True, eq=False, slots=True)
class LinkMatrix:
    """Measurements of the links between members, by rank."""

    latency_s: Matrix
    """One-way latency, from row to column."""
    up_s: Matrix
    """Seconds a byte of each member's uplink."""
    down_s: Matrix

    @property
    def size(self) -> int:
        return len(self.up_s)

    def ordered(self, order: Sequence[int]) -> "LinkMatrix":
        """The same links for members in another order."""
        index = np.array(order)
        return LinkMatrix(self.latency_s[np.ix_(index, index)], self.up_s[index], self.down_s[index])

    def phase_s(self, phase: "_Phase", size: float) -> float:
        """Seconds that a phase of a collective of `size` bytes takes."""
        if not len(phase.senders):
            return 0.0
        sent_s, received_s = size * phase.sent * self.up_s, size * phase.received * self.down_s
        busy_s = np.maximum(sent_s[phase.senders], received_s[phase.receivers])
        return float((busy_s + self.latency_s[phase.senders, phase.receivers]).max())


@dataclass(frozen=True, eq=False, slots=True)
class _Phase:
    """The messages of one phase, and the total each member sends and receives, as shares of the collective's size."""

    senders: NDArray[np.intp]
    receivers: NDArray[np.intp]
    sent: Matrix
    received: Matrix


@cache
def _phases(via: str, count: int) -> tuple[_Phase, ...]:
    """The messages in each phase of a collective, or of a broadcast, among `count` members."""
    found = []
    for sends in _down(count, 1.0) if via == "broadcast" else _sends(via, count, 1.0):
        senders, receivers = (np.array([pair[i] for pair in sends], dtype=np.intp) for i in (0, 1))
        sizes = np.array(list(sends.values()), dtype=np.float64)
        sent, received = np.zeros(count), np.zeros(count)
        np.add.at(sent, senders, sizes)
        np.add.at(received, receivers, sizes)
        found.append(_Phase(senders, receivers, sent, received))
    return tuple(found)


def _sends(via: str, count: int, size: float) -> Iterator[Sends]:
    """The messages in each phase of a collective among `count` members of `size` bytes each."""
    ranks = range(count)
    share = size / count
    pairs = [(i, j) for i in ranks for j in ranks if i != j]
    if via == "gather":
        yield dict.fromkeys(pairs, size)
    elif via == "direct":
        yield dict.fromkeys(pairs, share)
        yield dict.fromkeys(pairs, share)
    elif via == "star":
        yield {(i, 0): size for i in ranks if i}
        yield {(0, i): size for i in ranks if i}
    elif via == "ring":
        for _ in range(2 * (count - 1)):
            yield {(i, (i + 1) % count): share for i in ranks}
    elif via == "tree":
        levels = range(math.ceil(math.log2(count)))
        for level in levels:
            yield {(i, i - (1 << level)): size for i in ranks if i % (2 << level) == 1 << level}
        yield from _down(count, size)
    elif via == "hd":
        yield from _halving_doubling(count, size)
    else:
        raise ValueError(via)


def _down(count: int, size: float) -> Iterator[Sends]:
    for level in reversed(range(math.ceil(math.log2(count)))):
        yield {(i, i + (1 << level)): size for i in range(0, count, 2 << level) if i + (1 << level) < count}


def _halving_doubling(count: int, size: float) -> Iterator[Sends]:
    core = 1 << (count.bit_length() - 1)
    extra = range(core, count)
    if extra:
        yield {(i, i - core): size for i in extra}
    distances = [core >> step for step in range(1, core.bit_length())]
    halves = [{(i, i ^ distance): size * distance / core for i in range(core)} for distance in distances]
    yield from halves
    yield from reversed(halves)
    if extra:
        yield {(i - core, i): size for i in extra}


COSTED = ("star", "gather", "direct", "ring", "tree", "hd")
"""The collectives whose cost is known."""


def collective_s(via: str, size: float, links: LinkMatrix) -> float:
    """Seconds that an all-reduce of `size` bytes takes."""
    return sum(links.phase_s(phase, size) for phase in _phases(via, links.size))


def broadcast_s(size: float, links: LinkMatrix) -> float:
    """Seconds to broadcast one member's bytes down a binomial tree, from the root that takes longest."""
    worst = 0.0
    for root in range(links.size):
        turned = links.ordered([(root + i) % links.size for i in range(links.size)])
        worst = max(worst, sum(turned.phase_s(phase, size) for phase in _phases("broadcast", links.size)))
    return worst


def ring_order(links: LinkMatrix) -> tuple[int, ...]:
    """The order of members whose ring has the least latency on its slowest hop, then in all."""
    count = links.size

    def cost(order: Sequence[int]) -> tuple[float, float]:
        hops = [links.latency_s[order[i], order[(i + 1) % count]] for i in range(count)]
        return max(hops), sum(hops)

    order = [0]
    while len(order) < count:
        left = [i for i in range(count) if i not in order]
        order.append(min(left, key=lambda i: links.latency_s[order[-1], i]))
    # 2-opt: reversing a segment replaces two hops by two others.
    return _best_order(order, cost, fixed=1, change=lambda it, i, j: [*it[:i], *reversed(it[i : j + 1]), *it[j + 1 :]])


def tree_order(links: LinkMatrix, size: float) -> tuple[int, ...]:
    """The order of members whose binomial tree takes the least time for `size` bytes."""

    def cost(order: Sequence[int]) -> float:
        return collective_s("tree", size, links.ordered(order))

    # Members with low latency to all come first: the first is the root, and later members have fewer children.
    nearest = sorted(range(links.size), key=lambda i: (links.latency_s[i].sum() + size * links.up_s[i], i))
    start = min(nearest, list(range(links.size)), key=cost)
    return _best_order(start, cost, fixed=0, change=_swapped)


def _best_order(
    start: list[int],
    cost: Callable[[Sequence[int]], Any],
    *,
    fixed: int,
    change: Callable[[list[int], int, int], list[int]],
) -> tuple[int, ...]:
    """The order with the least cost; the first `fixed` places do not change.  With few members it tries all orders,
    else it changes two places at a time while that lowers the cost.
    """
    count = len(start)
    if count <= BRUTE_FORCE:
        return _least(start, cost, fixed)
    order, improved = start, True
    while improved:
        improved = False
        for i, j in itertools.combinations(range(fixed, count), 2):
            changed = change(order, i, j)
            if cost(changed) < cost(order):
                order, improved = changed, True
    return tuple(order)


def _least(start: list[int], cost: Callable[[Sequence[int]], Any], fixed: int) -> tuple[int, ...]:
    return min(((*start[:fixed], *rest) for rest in itertools.permutations(sorted(start[fixed:]))), key=cost)


def _swapped(order: list[int], i: int, j: int) -> list[int]:
    order = order.copy()
    order[i], order[j] = order[j], order[i]
    return order

"""Forming islands: groups of machines that hold a model together, and their order, so that the run trains on the most
samples a second.

For a few machines the optimum is found, as far as stages and links determine the speed of an island: by dynamic
programming over sets of machines, which gives the best order and cut of every set at once, and another one over how to
partition machines into sets.  More machines are first put into groups by distance; then a few islands at a time are
dissolved and formed again in the best way, as long as that helps.  In both cases the plan is never worse than those of
a few simple rules.
"""

import itertools
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from atoll.errors import TaskError
from atoll.islands.cut import Costs, Cut, Layer, Machine, Terms, best_cut
from atoll.islands.plan import Averaging, Island, MachineLinks, Plan, ranges, shortage
from atoll.vectors import Matrix

__all__ = ["form", "reform"]

EXACT = 9
"""Up to this many machines, all sets are tried."""
TOGETHER = 7
"""At most this many machines are taken out of their islands and put into new ones at a time."""
ROUNDS = 30
"""How many times that is tried."""
HYSTERESIS = 0.1
"""A complete island is formed again only if that makes it faster by more than this."""
AWAY_S = 1000.0
"""The cost of a link that is down half of the time, as time on links."""
ALL_ORDERS = 4
"""Up to this many machines, all orders are tried if an order does not reach the bound of its stages."""
MOST_TOGETHER = 16
"""The largest groups that simple rules make."""
NEAR = 1e-4
"""The weight of time on links, to choose among orders that are equally fast."""


@dataclass(frozen=True, eq=False, slots=True)
class _Tail:
    """The best pipeline of a set of machines, with a given one first, for the layers from each one to the last."""

    slowest_s: Matrix
    ways_s: Matrix
    """The total time on links."""
    followers: Sequence[int]
    who: Sequence[int] | NDArray[np.intp]
    """Which of the followers comes next."""
    stop: Sequence[int] | NDArray[np.intp]
    """The layer where that one begins."""

    @property
    def score(self) -> float:
        """The score for all layers."""
        return float(self.slowest_s[0] + NEAR * self.ways_s[0])


def _order(tails: dict[tuple[frozenset[int], int], _Tail], some: frozenset[int], first: int) -> tuple[int, ...]:
    order, layer = [first], 0
    while len(some) > 1:
        tail = tails[some, order[-1]]
        some = some - {order[-1]}
        order.append(tail.followers[tail.who[layer]])
        layer = int(tail.stop[layer])
    return tuple(order)


def _neighbours(order: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """All orders with two places swapped, and the reverse."""
    yield order[::-1]
    for one, other in itertools.combinations(range(len(order)), 2):
        changed = list(order)
        changed[one], changed[other] = changed[other], changed[one]
        yield tuple(changed)


class _Former:
    """Finds islands for some machines."""

    def __init__(
        self,
        layers: Sequence[Layer],
        machines: Sequence[Machine],
        pairs: MachineLinks,
        terms: Terms,
        averaging: Averaging,
    ) -> None:
        self.costs = Costs(layers, terms)
        self.machines = tuple(machines)
        self.pairs = pairs
        self.averaging = averaging
        self._islands: dict[tuple[int, ...], Island | None] = {}
        self._alone = {
            (place, holds): self.costs.alone(machine, holds)
            for place, machine in enumerate(machines)
            for holds in range(1, min(len(machines), len(layers)) + 1)
        }

    # The value of an island, and of a plan ---

    def island(self, order: tuple[int, ...]) -> Island | None:
        """The island with this order, with its best cut."""
        if order not in self._islands:
            found = best_cut(self.costs, [self.machines[place] for place in order], self.pairs.hops(order))
            self._islands[order] = Island(order, found) if found else None
        return self._islands[order]

    def plan(self, islands: Iterable[Island], how: str) -> Plan:
        kept = tuple(sorted(islands, key=lambda island: min(island.order)))
        used = {place for island in kept for place in island.order}
        seconds = self._averaging_s(kept)
        waited = 0.0 if self.averaging.overlap else seconds / self.averaging.every / self.costs.terms.an_update
        samples = sum(self.costs.terms.batch / (island.cut.batch_s + waited) for island in kept)
        idle = tuple(place for place in range(len(self.machines)) if place not in used)
        return Plan(kept, idle, samples, seconds, how)

    def _averaging_s(self, islands: Sequence[Island]) -> float:
        """The time to exchange all ranges if a range's owners send shares of it to each other, over each node's slowest
        link to another owner.
        """
        if len(islands) < 2:
            return 0.0
        count = len(islands)
        busy = dict.fromkeys((place for island in islands for place in island.order), 0.0)
        longest = 0.0
        for start, stop, owners in ranges([self.spans(island) for island in islands]):
            size = float(self.costs.parameters[start, stop]) * self.averaging.size
            for one in owners:
                hops = [self.pairs.hop(one, other) for other in owners if other != one]
                busy[one] += 2 * (count - 1) / count * size / min(hop.bytes_a_second for hop in hops)
                longest = max(longest, *(hop.latency_s for hop in hops))
        return max(busy.values()) + 2 * longest

    def spans(self, island: Island) -> list[tuple[int, int]]:
        """Where each stage ends, and which machine has it."""
        return [(stage.stop, place) for place, stage in zip(island.order, island.cut.stages, strict=True)]

    # Exact search ---

    def exactly(self, places: Sequence[int], *, thorough: bool = True) -> list[Island]:
        """The best islands of these machines; `thorough`: also tries other orders where that may help."""
        by_set = dict(self._of_every_set(places, thorough=thorough))
        best: dict[frozenset[int], tuple[float, tuple[Island, ...]]] = {frozenset(): (0.0, ())}
        for size in range(1, len(places) + 1):
            for some in itertools.combinations(places, size):
                first, rest = some[0], frozenset(some[1:])
                found = best[rest]  # the first has no stage
                for more in range(size):
                    for others in itertools.combinations(some[1:], more):
                        island = by_set.get(frozenset((first, *others)))
                        if island is None:
                            continue
                        value, islands = best[rest - set(others)]
                        value += 1 / island.cut.batch_s
                        if value > found[0] * (1 + 1e-9):
                            found = value, (*islands, island)
                best[frozenset(some)] = found
        return list(best[frozenset(places)][1])

    def _of_every_set(self, places: Sequence[int], *, thorough: bool) -> Iterator[tuple[frozenset[int], Island]]:
        """The best island of every set of machines that can hold the model.

        From the last stage to the first: each machine takes the layers up to some point, in front of the best pipeline
        of the other machines for the rest.
        """
        layers = self.costs.count
        tails: dict[tuple[frozenset[int], int], _Tail] = {}
        for place in places:
            nothing = np.zeros(layers + 1)
            tails[frozenset((place,)), place] = _Tail(self._alone[place, 1][:, layers], nothing, (), (), ())
        for size in range(1, min(len(places), layers) + 1):
            for some in map(frozenset, itertools.combinations(places, size)):
                if size > 1:
                    for place in sorted(some):
                        tails[some, place] = self._in_front(tails, some, place)
                first = min(sorted(some), key=lambda place: tails[some, place].score)
                if math.isfinite(tails[some, first].score):
                    island = self.island(_order(tails, some, first))
                    if thorough:
                        island = self._reordered(island, float(tails[some, first].slowest_s[0]))
                    if island:
                        yield some, island

    def _reordered(self, island: Island | None, bound_s: float) -> Island | None:
        """The same machines in their fastest order: of all orders if there are few machines, otherwise as far as
        swapping two places leads.

        The exact search covers the time of stages and links only; if machines have too little memory for the batches
        that long links need, or links are down at times, another order may be faster.  No order can take less than
        `bound_s` for a batch.
        """
        while island is not None and island.cut.batch_s > 1.001 * bound_s:
            few = len(island.order) <= ALL_ORDERS
            orders = itertools.permutations(sorted(island.order)) if few else _neighbours(island.order)
            others = [self.island(order) for order in orders]
            better = min((each for each in others if each), key=lambda each: each.cut.batch_s, default=None)
            if better is None or better.cut.batch_s >= island.cut.batch_s:
                break
            island = better
        return island

    def _in_front(self, tails: dict[tuple[frozenset[int], int], "_Tail"], some: frozenset[int], place: int) -> "_Tail":
        """Puts a machine in front of the others of a set."""
        rest = some - {place}
        followers = sorted(rest)
        hops = [self.pairs.hop(place, other) for other in followers]
        sent_s = self.costs.sent / np.array([[hop.bytes_a_second] for hop in hops])
        slowest = np.stack([tails[rest, other].slowest_s for other in followers])
        ways = np.stack([tails[rest, other].ways_s for other in followers])
        ways = ways + sent_s + np.array([[hop.latency_s + AWAY_S * (1 / hop.there - 1)] for hop in hops])
        ahead = np.maximum(sent_s, slowest)
        # By the first layer, the follower, and the cut.
        each = np.maximum(self._alone[place, len(some)][:, None, :], ahead[None])
        score = (each + NEAR * ways[None]).reshape(len(each), -1)
        best = score.argmin(1)
        rows = np.arange(len(each))
        who, stop = np.divmod(best, each.shape[2])
        return _Tail(each.reshape(len(each), -1)[rows, best], ways[who, stop], followers, who, stop)

    # Simple rules ---

    def by_rules(self) -> Iterator[tuple[str, list[Island]]]:
        """Plans by simple rules."""
        everybody = range(len(self.machines))
        yield "every node its own island", [island for place in everybody if (island := self.island((place,)))]
        yield "one island of all", [island] if (island := self._together(list(everybody))) else []
        for size in range(2, min(len(self.machines), MOST_TOGETHER + 1)):
            groups = self._nearest(size)
            yield f"the nearest {size} together", [island for group in groups if (island := self._together(group))]

    def _together(self, places: list[int]) -> Island | None:
        """One island of these machines: in order of distance, or else of memory, since first stages hold the most."""
        by_memory = sorted(places, key=lambda place: (-self.machines[place].memory_bytes, place))[: self.costs.count]
        return self.island(self._path(places)) or self.island(tuple(by_memory))

    def _path(self, places: list[int]) -> tuple[int, ...]:
        """From one machine to the nearest one left, from the best start; at most as many as there are layers."""
        best: tuple[float, tuple[int, ...]] = (math.inf, ())
        for start in places:
            order, total = [start], 0.0
            while len(order) < min(len(places), self.costs.count):
                step, place = min((self._far[order[-1]][place], place) for place in places if place not in order)
                order.append(place)
                total += step
            best = min(best, (total, tuple(order)))
        return best[1]

    @cached_property
    def _far(self) -> list[list[float]]:
        """The approximate time of a batch from one machine to another; negative from a machine to itself."""
        latency = np.maximum(self.pairs.latency_s, self.pairs.latency_s.T)
        rate = np.minimum(self.pairs.bytes_a_second, self.pairs.bytes_a_second.T)
        there = np.minimum(self.pairs.there, self.pairs.there.T)
        far = latency + float(np.median(self.costs.sent[1:])) / rate + AWAY_S * (1 / there - 1)
        np.fill_diagonal(far, -1.0)
        found: list[list[float]] = far.tolist()
        return found

    def _nearest(self, size: int) -> list[list[int]]:
        """Groups of this many machines, each time around the machine with the nearest neighbours."""
        left = list(range(len(self.machines)))
        groups = []
        while len(left) >= size:
            around = [self._neighbours(one, left)[:size] for one in left]
            group = min(around, key=lambda group: (sum(self._far[group[0]][place] for place in group), group))
            groups.append(group)
            left = [place for place in left if place not in group]
        return groups

    def _neighbours(self, one: int, left: list[int]) -> list[int]:
        """The machines that are left, by distance from one of them, itself first."""
        far = self._far[one]
        return sorted(left, key=lambda place: (far[place], place))

    # Local search ---

    def improved(self, islands: list[Island], seed: int) -> list[Island]:
        """Dissolves a few islands at a time, and forms the best ones from their machines and idle ones."""
        draw = random.Random(seed)
        for _ in range(ROUNDS):
            used = {place for island in islands for place in island.order}
            idle = [place for place in range(len(self.machines)) if place not in used]
            if not islands:
                return islands
            centre = draw.choice(draw.choice(islands).order)
            near = sorted(islands, key=lambda it: min(self._far[centre][place] for place in it.order))
            taken: list[Island] = []
            for island in near:
                if sum(len(each.order) for each in taken) + len(island.order) <= TOGETHER:
                    taken.append(island)
            places = [place for island in taken for place in island.order]
            places += draw.sample(idle, min(len(idle), TOGETHER - len(places)))
            if len(places) < 2:
                continue
            found = self.exactly(sorted(places), thorough=False)
            found = [self._reordered(island, island.cut.slowest_s) or island for island in found]
            before = sum(1 / island.cut.batch_s for island in taken)
            if sum(1 / island.cut.batch_s for island in found) > before * (1 + 1e-9):
                islands = [island for island in islands if island not in taken] + found
        return islands

    def as_it_is(self, order: tuple[int, ...], stages: Sequence[tuple[int, int, int]]) -> Cut:
        """The cut of an existing island."""
        hops = [*self.pairs.hops(order), None]
        found = zip(order, hops, stages, strict=True)
        return Cut(
            tuple(
                self.costs.stage(start, stop, self.machines[place], hop, holds)
                for place, hop, (start, stop, holds) in found
            )
        )


def form(
    layers: Sequence[Layer],
    machines: Sequence[Machine],
    pairs: MachineLinks,
    terms: Terms,
    averaging: Averaging | None = None,
    *,
    seed: int = 0,
) -> list[Plan]:
    """Plans, the best first; the others are for comparison.

    Args:
        layers: the layers of the model.
        machines: all machines.
        pairs: the links between them.
        terms: how islands train.
        averaging: how islands average.
        seed: the seed of the search, if there are too many machines for an exact one.

    Raises:
        TaskError: all machines together cannot hold the model.
    """
    former = _Former(layers, machines, pairs, terms, averaging or Averaging())
    plans = [former.plan(islands, how) for how, islands in former.by_rules() if islands]
    if len(machines) <= EXACT:
        islands = former.exactly(range(len(machines)))
        if islands:
            plans.append(former.plan(islands, "all sets of machines"))
    else:
        starts = sorted(plans, key=lambda plan: -plan.samples_a_second)[:2]
        plans += [former.plan(former.improved(list(it.islands), seed), f"a search from: {it.how}") for it in starts]
    if not plans:
        raise TaskError(shortage(former.costs, machines))
    unlike: dict[frozenset[frozenset[int]], Plan] = {}
    for plan in sorted(plans, key=lambda plan: (-plan.samples_a_second, len(plan.idle))):
        unlike.setdefault(frozenset(frozenset(island.order) for island in plan.islands), plan)
    return list(unlike.values())


def reform(
    layers: Sequence[Layer],
    machines: Sequence[Machine],
    pairs: MachineLinks,
    terms: Terms,
    *,
    kept: Sequence[tuple[tuple[int, ...], Sequence[tuple[int, int, int]]]],
    free: Sequence[int],
) -> list[Island]:
    """Islands after a change: complete islands stay as they are, and the other machines form the best ones.

    Machines that are then idle join the island that gains the most from being formed again, if that is worth it.

    Args:
        layers: the layers of the model.
        machines: all machines.
        pairs: the links between them.
        terms: how islands train.
        kept: complete islands: their orders, and for each stage its first layer, its end (one past its last layer), and
            how many batches it may hold.
        free: machines that are online and in no island.
    """
    former = _Former(layers, machines, pairs, terms, Averaging())
    islands = [Island(order, former.as_it_is(order, stages)) for order, stages in kept]
    for start in range(0, len(free), EXACT):
        islands += former.exactly(sorted(free[start : start + EXACT]))
    used = {place for island in islands for place in island.order}
    idle = [place for place in free if place not in used][:TOGETHER]
    best: tuple[float, list[Island]] = (0.0, islands)
    for island in islands:
        if not idle or len(island.order) + len(idle) > EXACT:
            continue
        made = former.exactly(sorted([*island.order, *idle]))
        gain = sum(1 / each.cut.batch_s for each in made) * island.cut.batch_s - 1
        if gain > max(HYSTERESIS, best[0]):
            best = gain, [each for each in islands if each is not island] + made
    return sorted(best[1], key=lambda island: min(island.order))

"""The best plan of all there are, by looking at all of them; for tests and benchmarks of the planner."""

import itertools
from collections.abc import Iterator, Sequence

from atoll.islands import Costs, Layer, Machine, MachineLinks, Terms, best_cut

__all__ = ["best_of_all", "partitions"]


def partitions(places: Sequence[int]) -> Iterator[list[tuple[int, ...]]]:
    """All ways to put some of these into sets."""
    if not places:
        yield []
        return
    first, rest = places[0], places[1:]
    yield from partitions(rest)
    for size in range(len(rest) + 1):
        for others in itertools.combinations(rest, size):
            left = [place for place in rest if place not in others]
            for more in partitions(left):
                yield [(first, *others), *more]


def best_of_all(layers: Sequence[Layer], machines: Sequence[Machine], pairs: MachineLinks, terms: Terms) -> float:
    """Samples a second of the best islands, orders and cuts."""
    costs = Costs(layers, terms)
    value: dict[tuple[int, ...], float] = {}
    for size in range(1, len(machines) + 1):
        for some in itertools.combinations(range(len(machines)), size):
            cuts = [
                best_cut(costs, [machines[place] for place in order], pairs.hops(order))
                for order in itertools.permutations(some)
            ]
            value[some] = max((terms.batch / each.batch_s for each in cuts if each), default=0.0)
    return max(sum(value[some] for some in islands) for islands in partitions(range(len(machines))))

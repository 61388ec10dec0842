"""How much and which way: the knee against its definition, and decisions against what then happens."""

import dataclasses
import itertools
from statistics import median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.collectives.flexible import GAIN_WEIGHT, TIME_WEIGHT, knee
from atoll.collectives.meter import RATIOS
from atoll.network import load_network
from atoll.strategies import parse_strategy
from atoll.trace import Event, Exchanged, Planned
from atoll.world import Physics
from atoll.world.base import World
from tests.strategies.nodes import Numbers, run_strategy
from tests.world.networks import network


@given(st.lists(st.tuples(st.floats(0.01, 10), st.floats(0.01, 1)), min_size=1, max_size=12))
def test_the_knee_is_on_the_front_and_nobody_there_is_better(points: list[tuple[float, float]]) -> None:
    times, gains = [time for time, _ in points], [gain for _, gain in points]
    found = knee(times, gains)
    costs = [1 / gain for gain in gains]
    assert not any(times[j] < times[found] and costs[j] < costs[found] for j in range(len(points))), (
        "nobody is better in both"
    )
    scores = [time**TIME_WEIGHT * cost**GAIN_WEIGHT for time, cost in zip(times, costs, strict=True)]
    assert scores[found] <= min(scores) * (1 + 1e-9)


class Watch:
    def __init__(self) -> None:
        self.planned: dict[str, Planned] = {}
        self.taken: dict[str, float] = {}

    def record(self, event: Event) -> None:
        if isinstance(event, Planned) and event.node == "0":
            self.planned[event.name] = event
        if isinstance(event, Exchanged):
            self.taken[event.name] = max(self.taken.get(event.name, 0.0), event.at - event.since)

    def flush(self) -> None:
        """Nothing waits."""


def noisy(world: World) -> tuple[Numbers, Numbers]:
    draw = np.random.default_rng(int(world.name))
    return np.zeros(16_000), draw.standard_t(2, size=16_000)


def test_it_follows_the_links_and_knows_what_an_exchange_takes() -> None:
    """The four phases of flexible-c1 in little: fast, slow, slow and far, far."""
    net = load_network("flexible-c1")
    net = dataclasses.replace(net, run_s=160.0)
    watch = Watch()
    replicas = run_strategy(net, parse_strategy("flexible"), noisy, steps=250, physics=Physics(), trace=watch)
    ends = [replica.array for replica in replicas.values()]
    assert all(np.allclose(end, ends[0], rtol=1e-4, atol=1e-4) for end in ends)
    off = [
        abs(plan.seconds / watch.taken[name] - 1)
        for name, plan in watch.planned.items()
        if plan.seconds > 0 and name in watch.taken
    ]
    assert len(off) > 100
    assert median(off) < 0.25
    by_phase: dict[int, list[float]] = {}
    for plan in watch.planned.values():
        if plan.seconds > 0:
            by_phase.setdefault(min(3, int(plan.at // 40)), []).append(plan.ratio)
    assert median(by_phase[0]) >= median(by_phase[1]), "less is said when the rate is a twenty-fifth"
    assert {plan.why for plan in watch.planned.values()} >= {"first", "links"}


def test_a_fixed_ratio_and_way_are_kept() -> None:
    net = load_network("flexible-c1")
    watch = Watch()
    run_strategy(net, parse_strategy("flexible:ratio=0.01,way=tree,var"), noisy, steps=10, trace=watch)
    assert {(plan.ratio, plan.via) for plan in watch.planned.values()} == {(0.01, "tree")}


def test_a_ring_goes_in_its_best_order() -> None:
    """Two sites, met in turn: a ring that alternates between them crosses the long link at every hop."""
    text = "[[node]]\ncount = 6\nstep_s = 0.5\n"
    for a, b in itertools.combinations(range(6), 2):
        text += f'[[link]]\nbetween = ["{a}", "{b}"]\nlatency_ms = {100 if (a + b) % 2 else 1}\nrate_mbps = 100\n'
    watch = Watch()
    run_strategy(network(text), parse_strategy("flexible:ratio=0.01,way=ring"), noisy, steps=25, trace=watch)
    names = list(watch.taken)
    assert watch.taken[names[-1]] < 0.9 * watch.taken[names[0]], "once latencies are known, the ring is quicker"


@pytest.mark.parametrize("size", [1, 7, 300])
@pytest.mark.parametrize("links", ["latency_ms = 20\nrate_mbps = 5", "latency_ms = 20", ""])
def test_it_plans_for_small_models_too(size: int, links: str) -> None:
    """A round of a few hundred bytes says little of an uplink, several of them do; and links may cost nothing."""

    def small(world: World) -> tuple[Numbers, Numbers]:
        return np.zeros(size), np.random.default_rng(int(world.name)).standard_t(2, size=size)

    watch = Watch()
    net = network(f'[[node]]\ncount = 3\nstep_s = 0.5\n[[link]]\namong = "*"\n{links}')
    run_strategy(net, parse_strategy("flexible"), small, steps=40, physics=Physics(), trace=watch)
    plans = [plan for name, plan in watch.planned.items() if name in watch.taken]
    chosen = [plan for plan in plans if plan.seconds > 0]
    assert len(chosen) > len(plans) / 2
    assert chosen[0].why == "first"
    took = [watch.taken[plan.name] for plan in chosen[1:]]
    off = [abs(plan.seconds - seconds) for plan, seconds in zip(chosen[1:], took, strict=True)]
    assert median(off) <= 0.25 * median(took) + 1e-6, "it knows what an exchange takes"


def test_candidates() -> None:
    assert RATIOS[0] == 0.1
    assert abs(RATIOS[-1] - 0.001) < 1e-12
    assert list(RATIOS) == sorted(RATIOS, reverse=True)

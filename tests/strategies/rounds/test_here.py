"""Rounds among those who are here: cuts, partitions, returns."""

import collections

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from atoll.collectives.reduce import Reduced
from atoll.strategies import parse_strategy
from atoll.strategies.rounds.block import Block, Contribution, Received
from atoll.trace import ContributionRefused, Event, Exchanged, Joined
from atoll.world import Physics
from atoll.world.base import World
from tests.strategies.nodes import Numbers, VectorReplica, run_strategy
from tests.world.networks import network

STRATEGIES = [
    "allreduce:every=2",
    "allreduce:every=2,overlap",
    "allreduce:every=2,paced,codec=int8",
    "allreduce:overlap,shared,codec=int4",
    "diloco:every=2,rate=0.7,momentum=0.5",
    "diloco:every=2,fragments=3,codec=int8",
    "sparseloco:every=2,keep=100",
    "vrl:codec=int8",
    "fda",
    "noloco:every=2",
    "flexible:quantity=parameters",
    "powersgd:quantity=parameters",
]

HALVES = """
[[node]]
count = 4
step_s = 0.5
[[link]]
between = ["[01]", "[23]"]
latency_ms = 20
rate_mbps = 10
outages = [[10, 40]]
[[link]]
between = ["0", "1"]
latency_ms = 20
rate_mbps = 10
[[link]]
between = ["2", "3"]
latency_ms = 20
rate_mbps = 10
"""


class Events:
    def __init__(self) -> None:
        self.all: list[Event] = []

    def record(self, event: Event) -> None:
        self.all.append(event)

    def flush(self) -> None:
        """Nothing is written."""

    def exchanges(self) -> list[Exchanged]:
        return [event for event in self.all if isinstance(event, Exchanged)]

    def check(self) -> None:
        """All who took the result of a round hold the same bytes."""
        digests = collections.defaultdict(set)
        for event in self.exchanges():
            digests[event.name].add(event.digest)
        assert all(len(found) == 1 for name, found in digests.items())


def apart(world: World) -> tuple[Numbers, Numbers]:
    step = np.zeros(400)
    step[int(world.name) :: 4] = 1
    return np.zeros(400), step


@pytest.mark.parametrize("spec", STRATEGIES)
def test_both_sides_of_a_partition_go_on_and_meet_again(spec: str) -> None:
    events, waits = Events(), [0.0]
    last: dict[str, float] = {}

    def look(replica: VectorReplica) -> None:
        waits[0] = max(waits[0], replica.world.now - last.get(replica.world.name, 0.0))
        last[replica.world.name] = replica.world.now

    run_strategy(network(HALVES), parse_strategy(spec), apart, steps=130, trace=events, look=look, physics=Physics())
    if not spec.startswith("noloco"):  # whose pairs hold different models
        events.check()
    for side in ("01", "23"):
        alone = [event for event in events.exchanges() if 20 < event.at < 40 and event.node in side]
        assert {event.node for event in alone} == set(side)
        assert max(event.members for event in alone) == 2
    after = [event for event in events.exchanges() if event.at > 50]
    assert {event.node for event in after} == set("0123")
    assert max(event.members for event in after) == (2 if spec.startswith("noloco") else 4)
    assert not any(isinstance(event, Joined) for event in events.all), "nothing needs to be handed over"
    assert min(event.at for event in after) < 53
    assert waits[0] < 10


@pytest.mark.parametrize("gone", ["0", "3"])
def test_who_is_cut_off_comes_back_with_what_it_learned(gone: str) -> None:
    others = "".join(name for name in "0123" if name != gone)
    net = network(
        f'[[node]]\ncount = 4\nstep_s = 0.5\n[[link]]\nbetween = ["{gone}", "[{others}]"]\nlatency_ms = 20\n'
        f'rate_mbps = 10\noutages = [[10, 40]]\n[[link]]\namong = "[{others}]"\nlatency_ms = 20\nrate_mbps = 10'
    )
    events = Events()
    replicas = run_strategy(net, parse_strategy("allreduce:every=2"), apart, steps=130, trace=events, physics=Physics())
    events.check()
    alone = [event for event in events.exchanges() if 16 < event.at < 39 and event.node in others]
    assert len(alone) >= 3 * 18, "the others hardly notice"
    assert not any(isinstance(event, Joined) for event in events.all), "nothing needs to be handed over"
    ends = [replica.array for replica in replicas.values()]
    place = int(gone)
    # A quarter of its steps, those alone included: the mean of what everybody has changed since they last agreed.
    assert ends[0][place] == pytest.approx(130 / 4, rel=0.15)
    assert all(np.allclose(end, ends[0], atol=8) for end in ends)  # who is done first takes part in no more rounds


@settings(max_examples=15, deadline=None)
@given(
    st.integers(0, 1000),
    st.sampled_from(STRATEGIES[:9]),
    st.sampled_from(["up_s = 10\ndown_s = 10", "up_s = 6\ndown_s = 2", "up_s = 3\ndown_s = 6"]),
)
@example(421, "allreduce:every=2", "up_s = 3\ndown_s = 6")  # an agreement was dropped after a leader was told of it
def test_in_any_weather_all_who_took_a_result_hold_the_same(seed: int, spec: str, weather: str) -> None:
    events = Events()
    net = network(
        f'[[node]]\ncount = 4\nstep_s = 0.5\n[[link]]\namong = "*"\nlatency_ms = 20\nrate_mbps = 5\n{weather}'
    )
    replicas = run_strategy(net, parse_strategy(spec), apart, steps=120, seed=seed, trace=events, physics=Physics())
    events.check()
    for replica in replicas.values():
        assert np.isfinite(replica.array).all()
        assert (replica.work <= 120).all()


@pytest.mark.parametrize("codec", ["", ",codec=int8"])
def test_who_holds_something_else_after_a_round_is_found_out(monkeypatch: pytest.MonkeyPatch, codec: str) -> None:
    """It trains alone until it is handed what the others hold."""
    calls: dict[int, int] = {}
    honest = Block.receive

    def wrong(block: Block, result: Reduced, own: Contribution) -> Received:
        place = list(calls).index(id(block)) if id(block) in calls else len(calls)
        calls[id(block)] = calls.get(id(block), 0) + 1
        found = honest(block, result, own)
        if found.mean is None or place != 1 or calls[id(block)] != 5:
            return found
        return found._replace(mean=found.mean + 1)

    monkeypatch.setattr(Block, "receive", wrong)
    net = network('[[node]]\ncount = 3\nstep_s = 0.5\n[[link]]\namong = "*"\nlatency_ms = 20')
    events = Events()

    def alike(_: World) -> tuple[Numbers, Numbers]:
        return np.zeros(4), np.ones(4)

    run_strategy(net, parse_strategy(f"allreduce:every=2{codec}"), alike, steps=60, trace=events)
    refused = [event for event in events.all if isinstance(event, ContributionRefused)]
    (node,) = {event.node for event in refused}
    assert "holds" in refused[0].why
    assert [event.node for event in events.all if isinstance(event, Joined)] == [node]
    digests = collections.defaultdict(set)
    for event in events.all:
        if isinstance(event, Exchanged):
            digests[event.name].add(event.digest)
    assert 0 < sum(len(found) > 1 for found in digests.values()) <= 5, "from the mistake until it was found out"
    late = [event.node for event in events.all if isinstance(event, Exchanged) and event.at > 25 and event.members == 3]
    assert set(late) == {"0", "1", "2"}, "all meet again"

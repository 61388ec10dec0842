"""Cutting models: against all cuts there are, and what layers cost against what is known of them."""

import itertools
import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from atoll.islands.chain import profile
from atoll.islands.cut import Costs, Hop, Layer, Machine, Terms, best_cut, cut

LAYERS = st.lists(
    st.builds(
        Layer,
        name=st.just("layer"),
        flops=st.floats(1, 100),
        output_bytes=st.floats(1, 100),
        kept_bytes=st.floats(1, 100),
        parameter_bytes=st.floats(0, 1000),
    ),
    min_size=1,
    max_size=7,
)
MACHINES = st.lists(
    st.builds(
        Machine,
        flops_a_second=st.floats(1, 100),
        memory_bytes=st.one_of(st.just(math.inf), st.floats(1000, 30_000)),
    ),
    min_size=1,
    max_size=4,
)
HOPS = st.lists(st.builds(Hop, latency_s=st.floats(0, 10), bytes_a_second=st.floats(1, 1000)), min_size=3, max_size=3)
TERMS = st.builds(
    Terms,
    batch=st.integers(1, 8),
    recompute=st.booleans(),
    stash=st.booleans(),
    target_bytes=st.sampled_from([0.0, 8.0]),
)


def by_looking_at_all(
    layers: Sequence[Layer], machines: Sequence[Machine], hops: Sequence[Hop], terms: Terms, more: int
) -> float:
    """What the best cut takes, written anew from what the words say."""
    count = len(machines)
    found = math.inf
    for inner in itertools.combinations(range(1, len(layers)), count - 1):
        ends = [0, *inner, len(layers)]
        slowest = 0.0
        for place, (machine, (start, stop)) in enumerate(zip(machines, itertools.pairwise(ends), strict=True)):
            held, later = layers[start:stop], count - 1 - place + more
            kept = sum(layer.kept_bytes for layer in held)
            memory = sum(layer.parameter_bytes for layer in held) * (4 + (later if terms.stash else 0))
            if terms.recompute:
                memory += terms.batch * (held[0].kept_bytes * (later + 1) + kept)
            else:
                memory += terms.batch * kept * (later + 1)
            if memory > machine.memory_bytes * (1 + 1e-9):
                slowest = math.inf
            slowest = max(
                slowest,
                (4 if terms.recompute else 3)
                * terms.batch
                * sum(layer.flops for layer in held)
                / machine.flops_a_second,
            )
            if place < count - 1:
                sent = terms.batch * (layers[stop - 1].output_bytes + terms.target_bytes)
                slowest = max(slowest, sent / hops[place].bytes_a_second)
        found = min(found, slowest)
    return found


@settings(max_examples=200)
@given(LAYERS, MACHINES, HOPS, TERMS, st.integers(0, 2))
def test_no_cut_is_better(
    layers: list[Layer], machines: list[Machine], hops: list[Hop], terms: Terms, more: int
) -> None:
    found = cut(Costs(layers, terms), machines, hops, more)
    best = by_looking_at_all(layers, machines, hops, terms, more)
    if found is None:
        assert best == math.inf
        return
    assert found.slowest_s == pytest.approx(best)
    assert [stage.stop for stage in found.stages[:-1]] == [stage.start for stage in found.stages[1:]]
    assert (found.stages[0].start, found.stages[-1].stop) == (0, len(layers))
    for stage, machine in zip(found.stages, machines, strict=True):
        assert stage.memory.total <= machine.memory_bytes * (1 + 1e-9)
        assert stage.holds == len(machines) - found.stages.index(stage) + more


def test_what_layers_cost() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 2, bias=False))
    first, relu, _, last = profile(model, torch.randn(4, 8))
    assert (first.name, first.flops) == ("0", 2 * 8 * 16 + 16), "a product, and a value for each output"
    assert (first.output_bytes, first.parameter_bytes) == (4 * 16, 4 * (8 * 16 + 16))
    assert first.kept_bytes == 4 * 8, "its input"
    assert (relu.flops, relu.parameter_bytes) == (16, 0)
    assert (last.flops, last.output_bytes, last.parameter_bytes) == (2 * 16 * 2 + 2, 8, 4 * 32)
    assert model.training


def test_faster_machines_get_more() -> None:
    layers = profile(nn.Sequential(*(nn.Linear(32, 32) for _ in range(8))), torch.randn(2, 32))
    machines = [Machine(1e6), Machine(1e6), Machine(2e6), Machine(4e6)]
    found = cut(Costs(layers, Terms(batch=2)), machines, [Hop()] * 3)
    assert found is not None
    assert [stage.stop - stage.start for stage in found.stages] == [1, 1, 2, 4]
    assert found.bubble == pytest.approx(0)
    assert found.limit == "stage 1's computation"


def test_long_ways_are_filled_with_batches() -> None:
    layers = [Layer(str(place), 1.0, 1.0, 1.0, 1.0) for place in range(2)]
    machines = [Machine(3.0, name="a"), Machine(3.0, name="b")]  # a second for a batch of one, each
    costs = Costs(layers, Terms(batch=1))
    near = best_cut(costs, machines, [Hop()])
    far = best_cut(costs, machines, [Hop(latency_s=2.0)])
    assert near is not None
    assert far is not None
    assert [stage.holds for stage in near.stages] == [2, 1]
    assert [stage.holds for stage in far.stages] == [8, 7], "two seconds of work, four on the way, and some of waiting"
    assert (near.batch_s, far.batch_s) == (1.0, 1.0)
    little = [Machine(3.0, memory_bytes=far.stages[0].memory.total - 1), machines[1]]
    short = best_cut(costs, little, [Hop(latency_s=2.0)])
    assert short is not None
    assert short.batch_s == pytest.approx(8 / 7)
    assert short.limit == "memory for batches in flight"


def test_links_that_are_away_slow_all_down() -> None:
    costs = Costs([Layer(str(place), 1.0, 1.0, 1.0, 1.0) for place in range(3)], Terms(batch=1))
    found = best_cut(costs, [Machine(3.0)] * 3, [Hop(there=0.5), Hop(there=0.8)])
    assert found is not None
    assert found.batch_s == pytest.approx(1 / 0.4)
    assert found.limit == "links that are down"


def test_what_does_not_fit() -> None:
    layers = [Layer("0", 1.0, 1.0, 1.0, 100.0)]
    costs = Costs(layers, Terms(batch=1))
    assert cut(costs, [Machine(1.0)] * 2, [Hop()]) is None, "more machines than layers"
    assert cut(costs, [Machine(1.0, memory_bytes=10)], []) is None, "too little memory"
    assert best_cut(costs, [Machine(1.0, memory_bytes=10)], []) is None

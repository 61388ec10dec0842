"""Cutting models: against all cuts there are, and what layers cost against what is known of them."""

import itertools
import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from atoll.errors import TaskError
from atoll.island.cut import Layer, Machine, Terms, cut, profile

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
        to_next_bytes_a_second=st.floats(1, 1000),
    ),
    min_size=1,
    max_size=4,
)
TERMS = st.builds(Terms, batch=st.integers(1, 8), recompute=st.booleans(), stash=st.booleans())


def by_looking_at_all(layers: Sequence[Layer], machines: Sequence[Machine], terms: Terms) -> float:
    """What the best cut takes, written anew from what the words say."""
    count = len(machines)
    found = math.inf
    for inner in itertools.combinations(range(1, len(layers)), count - 1):
        ends = [0, *inner, len(layers)]
        slowest = 0.0
        for place, (machine, (start, stop)) in enumerate(zip(machines, itertools.pairwise(ends), strict=True)):
            held, later = layers[start:stop], count - 1 - place
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
            if later:
                slowest = max(slowest, terms.batch * layers[stop - 1].output_bytes / machine.to_next_bytes_a_second)
        found = min(found, slowest)
    return found


@settings(max_examples=200)
@given(LAYERS, MACHINES, TERMS)
def test_no_cut_is_better(layers: list[Layer], machines: list[Machine], terms: Terms) -> None:
    found = cut(layers, machines, terms)
    best = by_looking_at_all(layers, machines, terms)
    if found is None:
        assert best == math.inf
        return
    assert found.batch_s == pytest.approx(best)
    assert [stage.stop for stage in found.stages[:-1]] == [stage.start for stage in found.stages[1:]]
    assert (found.stages[0].start, found.stages[-1].stop) == (0, len(layers))
    for stage, machine in zip(found.stages, machines, strict=True):
        assert stage.memory_bytes <= machine.memory_bytes


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
    found = cut(layers, machines, Terms(batch=2))
    assert found is not None
    assert [stage.stop - stage.start for stage in found.stages] == [1, 1, 2, 4]


def test_what_cannot_be_cut() -> None:
    with pytest.raises(TaskError, match=r"Linear is no nn\.Sequential"):
        profile(nn.Linear(2, 2), torch.randn(1, 2))
    one, other = nn.Linear(2, 2), nn.Linear(2, 2)
    other.weight = one.weight
    with pytest.raises(TaskError, match="layers 0 and 1 share weight"):
        profile(nn.Sequential(one, other), torch.randn(1, 2))
    layers = profile(nn.Sequential(nn.Linear(2, 2)), torch.randn(1, 2))
    assert cut(layers, [Machine(1.0)] * 2, Terms(batch=1)) is None, "more machines than layers"
    assert cut(layers, [Machine(1.0, memory_bytes=10)], Terms(batch=1)) is None, "too little memory"

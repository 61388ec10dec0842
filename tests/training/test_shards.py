import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.errors import TaskError
from atoll.training.shards import Shards, parse_shards

LABELS = np.random.default_rng(0).integers(0, 10, 1000)


@given(st.sampled_from(["iid", "label", "dirichlet:0.05", "dirichlet:100"]), st.integers(1, 40), st.integers(0, 5))
@settings(deadline=None)
def test_every_example_is_dealt_once_and_nobody_goes_without(text: str, nodes: int, seed: int) -> None:
    parts = parse_shards(text).deal(LABELS, nodes, seed)
    assert len(parts) == nodes
    assert sorted(np.concatenate(parts).tolist()) == list(range(1000))
    assert min(len(part) for part in parts) > 0


def test_kinds_differ_as_they_should() -> None:
    def labels_each(text: str) -> float:
        return float(np.mean([len(np.unique(LABELS[part])) for part in parse_shards(text).deal(LABELS, 5, 0)]))

    assert labels_each("iid") == 10
    assert labels_each("label") <= 4
    assert labels_each("label") < labels_each("dirichlet:0.1") < 10


def test_one_seed_one_deal() -> None:
    a, b, c = (Shards("dirichlet").deal(LABELS, 4, seed) for seed in (1, 1, 2))
    assert all((x == y).all() for x, y in zip(a, b, strict=True))
    assert any(len(x) != len(y) or (x != y).any() for x, y in zip(a, c, strict=True))


@pytest.mark.parametrize("text", ["idd", "dirichlet:x", "dirichlet:0", "label:3", ""])
def test_mistakes(text: str) -> None:
    with pytest.raises(TaskError):
        parse_shards(text)


def test_too_few_examples() -> None:
    with pytest.raises(TaskError, match="3 examples cannot be dealt to 5 nodes"):
        Shards("iid").deal(LABELS[:3], 5, 0)


@given(st.integers(1, 20), st.integers(0, 5))
@settings(deadline=None)
def test_with_seldp_everybody_has_all_and_begins_elsewhere(nodes: int, seed: int) -> None:
    shards = parse_shards("seldp")
    parts = shards.deal(LABELS, nodes, seed)
    assert shards.pieces(nodes) == nodes
    for part in parts:
        assert sorted(part.tolist()) == list(range(1000))
    for turn in range(nodes):  # at any time the nodes are at different pieces
        pieces = [np.array_split(part, nodes)[turn] for part in parts]
        if 1000 % nodes == 0:
            assert sorted(np.concatenate(pieces).tolist()) == list(range(1000))

"""Adding up with codecs: everybody gets the same bytes, and what is not in the sum is told."""

from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.codecs import parse_codec
from atoll.collectives import COLLECTIVES, Round
from atoll.collectives.reduce import AgreedTopK, Coded, Plain, Reduced, Reduction, fitting
from atoll.errors import StrategyError
from atoll.vectors import Vector, added, of_array
from atoll.world.sim.world import SimWorld
from tests.codecs.vectors import ALL
from tests.world.networks import network, run

CASES = [(name, via) for name in ALL for via in Coded(parse_codec(name)).vias]


def reduce_all(
    reduction: Reduction, via: str, vectors: list[Vector], *, weather: str = "", key: int = 0
) -> list[Reduced]:
    net = network(f'[[node]]\ncount = {len(vectors)}\n[[link]]\namong = "*"\nlatency_ms = 20\nrate_mbps = 1\n{weather}')
    members = net.node_names

    async def program(world: SimWorld) -> Reduced:
        rank = members.index(world.name)
        tail = np.array([1.0, float(rank)], dtype=np.float32)
        return await reduction(Round(world, "test", members, key=key), vectors[rank], tail, via)

    results = run(net, program)
    return [results[name] for name in members]


def some(count: int, size: int, seed: int) -> list[Vector]:
    draw = np.random.default_rng(seed)
    return [of_array(draw.normal(size=size)) for _ in range(count)]


@pytest.mark.parametrize(("name", "via"), CASES)
@settings(deadline=None, max_examples=5)
@given(
    count=st.integers(2, 9),
    size=st.integers(1, 600),
    seed=st.integers(0, 99),
    weather=st.sampled_from(["", "up_s = 0.2\ndown_s = 0.2"]),
)
def test_sent_and_unsent_together_are_everything(  # noqa: PLR0917 - what is drawn
    name: str, via: str, count: int, size: int, seed: int, weather: str
) -> None:
    vectors = some(count, size, seed)
    results = reduce_all(Coded(parse_codec(name)), via, vectors, weather=weather, key=seed)
    for result in results:
        assert torch.equal(result.total, results[0].total)
        assert result.tail.tolist() == [count, count * (count - 1) / 2]
    unsent = sum(result.unsent for result in results if result.unsent is not None)
    np.testing.assert_allclose(results[0].total + unsent, added(vectors), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("via", COLLECTIVES)
@pytest.mark.parametrize("lead", ["star", "var"])
@settings(deadline=None, max_examples=5)
@given(count=st.integers(2, 9), size=st.integers(1, 400), seed=st.integers(0, 99))
def test_agreed_topk_against_loops(via: str, lead: Literal["star", "var"], count: int, size: int, seed: int) -> None:
    vectors = some(count, size, seed)
    results = reduce_all(AgreedTopK(0.1, lead), via, vectors, key=seed)
    keep = max(1, round(0.1 * size))
    largest = [sorted(range(size), key=lambda place, own=own: -abs(own[place]))[:keep] for own in vectors]  # type: ignore[misc]
    weights = [sum(float(own[place]) ** 2 for place in places) for own, places in zip(vectors, largest, strict=True)]
    leader = seed % count if lead == "star" else int(np.argmax(weights))
    expected = np.zeros(size)
    for place in largest[leader]:
        expected[place] = sum(float(own[place]) for own in vectors)
    for result, own in zip(results, vectors, strict=True):
        assert torch.equal(result.total, results[0].total)
        np.testing.assert_allclose(result.total, expected, rtol=1e-4, atol=1e-5)
        assert result.unsent is not None
        assert not result.unsent[largest[leader]].any()
        others = np.setdiff1d(np.arange(size), largest[leader])
        assert result.unsent[others].tolist() == own[others].tolist()


def test_by_senders_against_loops() -> None:
    """SparseLoCo: a position's mean is over who sent it; who is longer than the median is scaled down to it."""
    vectors = some(5, 4096, 3)
    vectors[2] *= 50
    codec = parse_codec("chunk/64")
    results = reduce_all(Coded(codec, by_senders=True), "gather", vectors)
    sent = [own - result.unsent for own, result in zip(vectors, results, strict=True) if result.unsent is not None]
    norms = [float(np.linalg.norm(each)) for each in sent]
    scales = [min(1.0, float(np.median(norms)) / norm) for norm in norms]
    expected = np.zeros(4096)
    for place in range(4096):
        found = [each[place] * scale for each, scale in zip(sent, scales, strict=True) if each[place] != 0]
        expected[place] = sum(found) / len(found) if found else 0.0
    np.testing.assert_allclose(results[0].total / results[0].tail[0], expected, rtol=1e-3, atol=1e-4)


def test_plain_keeps_nothing_back() -> None:
    results = reduce_all(Plain(), "ring", some(3, 10, 1))
    assert all(result.unsent is None for result in results)


def test_what_fits() -> None:
    assert fitting("auto", Plain()) == "direct"
    assert fitting("auto", Coded(parse_codec("topk"))) == "gather"
    assert fitting("best", Coded(parse_codec("int8"))) == "best"
    with pytest.raises(StrategyError, match="cannot be added: expected via=direct"):
        fitting("tree", Coded(parse_codec("int8")))

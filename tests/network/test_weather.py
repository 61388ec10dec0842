import itertools
import math
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.network import BandwidthTrace, Fading, Gaps, Link, Outage, Phase, UpDown, Way, load_network
from atoll.network.weather import changes_of_state, latency_at, outages, rates


def until(seconds: float, changes: Iterator[tuple[float, float]]) -> list[tuple[float, float]]:
    return list(itertools.takewhile(lambda change: change[0] < seconds, changes))


def test_fixed_outages_are_joined_and_ordered() -> None:
    spans = [(50, 60), (10, 20), (15, 30), (30, 31)]
    link = Link(a="a", b="b", outages=tuple(Outage(start_s=start, end_s=end) for start, end in spans))
    assert list(outages(link, 0)) == [(10, 31), (50, 60)]
    assert list(changes_of_state(link, 0)) == [(10, False), (31, True), (50, False), (60, True)]


def test_for_good() -> None:
    link = Link(a="a", b="b", outages=(Outage(start_s=5, end_s=math.inf),), up_down=UpDown(up_s=1, down_s=1))
    assert list(outages(link, 0))[-1][1] == math.inf
    assert list(changes_of_state(link, 0))[-1][1] is False


def test_up_and_down_times_have_their_means() -> None:
    link = Link(a="a", b="b", up_down=UpDown(up_s=30, down_s=10))
    spans = until(200_000, outages(link, 1))
    down = sum(end - start for start, end in spans) / len(spans)
    up = (spans[-1][1] - sum(end - start for start, end in spans)) / len(spans)
    assert up == pytest.approx(30, rel=0.05)
    assert down == pytest.approx(10, rel=0.05)
    assert spans[0][0] > 0


def test_each_link_and_seed_has_weather_of_its_own() -> None:
    links = load_network("triangle").links
    first = [until(1000, outages(link, 1)) for link in links]
    assert len({spans[0] for spans in first}) == 3
    assert [until(1000, outages(link, 1)) for link in links] == first
    assert [until(1000, outages(link, 2)) for link in links] != first


@given(st.integers(0, 1000))
def test_gaps_are_within_their_bounds(seed: int) -> None:
    gaps = Gaps(
        every_s=20, again=0.3, again_s=2, median_s=0.5, sigma=1, least_s=0.5, most_s=4,
        long_every_s=math.inf, long_least_s=60, long_most_s=90,
    )  # fmt: skip
    for start, end in until(500, outages(Link(a="a", b="b", gaps=gaps), seed)):
        assert 0.5 <= end - start <= 4 + 1e-9


def test_a_trace_repeats() -> None:
    trace = BandwidthTrace((0.0, 2.0, 5.0), (8e6, 0.0, 4e6), 10.0)
    link = Link(a="a", b="b", there=Way(trace=trace))
    assert until(30, rates(link.there, "a>b", 0, None)) == [
        (0, 8e6), (2, 0), (5, 4e6), (10, 8e6), (12, 0), (15, 4e6), (20, 8e6), (22, 0), (25, 4e6),
    ]  # fmt: skip
    assert until(30, outages(link, 0)) == [(2, 5), (12, 15), (22, 25)]


def test_a_steady_trace_ends() -> None:
    assert list(rates(Way(trace=BandwidthTrace((0.0, 1.0), (8.0, 8.0), 2.0)), "a>b", 0, None)) == [(0, 8)]


def test_fading_has_its_distribution_and_correlation() -> None:
    quantiles = (0.0, 1e6, 4e6)
    way = Way(fading=Fading(quantiles_bps=quantiles, slow_share=0.5, slow_s=50, fast_s=2))
    values = [rate for _, rate in until(100_000, rates(way, "a>b", 5, None))]
    assert len(values) == 100_000
    assert 0 <= min(values) <= max(values) <= 4e6
    assert sorted(values)[50_000] == pytest.approx(1e6, rel=0.05)
    mean = sum(values) / len(values)
    spread = sum((value - mean) ** 2 for value in values)
    lagged = sum((a - mean) * (b - mean) for a, b in zip(values, values[5:], strict=False)) / spread
    assert 0.3 < lagged < 0.55  # 0.5·exp(−5/50) + 0.5·exp(−5/2) = 0.49, less for the uneven map


def test_phases() -> None:
    way = Way(phases=(Phase(latency_s=0.1, rate_bps=8.0), Phase(latency_s=0.2, rate_bps=4.0)))
    assert list(rates(way, "a>b", 0, 100.0)) == [(0, 8), (50, 4)]
    assert [latency_at(way, time, 100.0) for time in (0, 49.9, 50, 99, 500)] == [0.1, 0.1, 0.2, 0.2, 0.2]

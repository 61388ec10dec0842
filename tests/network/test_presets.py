"""The presets have exactly the figures that results are measured on."""

import itertools
import math

import pytest

from atoll.network import Link, Network, load_network

MBPS = 1e6


def joined(net: Network, a: str, b: str) -> Link:
    return next(link for link in net.links if {link.a, link.b} == {a, b})


def symmetric(link: Link) -> bool:
    return link.there == link.back


def test_triangle() -> None:
    net = load_network("triangle")
    assert len(net) == len(net.links) == 3
    assert all(node.step_s == 0.5 for node in net.nodes)
    for link in net.links:
        assert symmetric(link)
        assert (link.there.latency_s, link.there.jitter_s, link.there.rate_bps) == (0.03, 0.003, 10 * MBPS)
        assert link.up_down is not None
        assert (link.up_down.up_s, link.up_down.down_s) == (30, 10)


def test_nine() -> None:
    net = load_network("nine")
    assert [node.step_s for node in net.nodes] == [0.5] * 6 + [1.0] * 3
    assert len(net.links) == 9 + 3
    for node in net.nodes:
        own = joined(net, node.name, node.name[0])
        assert symmetric(own)
        assert (2 * own.there.latency_s, own.there.rate_bps, own.fails) == (0.0005, 1000 * MBPS, False)
    for a, b, latency_s in (("A", "B", 0.04), ("B", "C", 0.06), ("A", "C", 0.09)):
        link = joined(net, a, b)
        assert symmetric(link)
        way = link.there
        assert (way.latency_s, way.jitter_s, way.rate_bps, way.loss) == (latency_s, 0.005, 20 * MBPS, 0.001)
        assert link.up_down is not None
        assert (link.up_down.up_s, link.up_down.down_s) == (40, 15)


def test_commute() -> None:
    net = load_network("commute")
    assert [node.step_s for node in net.nodes] == [0.5] * 6
    assert len(net.links) == 6
    for link in net.links:
        assert link.b == "core"
        assert link.there.latency_s == link.back.latency_s == 0.03
        assert link.there.fading is not None
        assert link.back.fading is not None
        means = [
            sum(fading.quantiles_bps) / len(fading.quantiles_bps) for fading in (link.there.fading, link.back.fading)
        ]
        assert 0.25 < means[0] / means[1] < 0.4  # up is about a third of down
        assert link.gaps is not None
        assert (link.gaps.least_s, link.gaps.most_s) == (0.5, 5)
        apart_s = link.gaps.again * link.gaps.again_s + (1 - link.gaps.again) * link.gaps.every_s
        assert 25 < apart_s < 40  # about half a minute
        assert link.gaps.long_least_s == 60


def test_partition() -> None:
    net = load_network("partition")
    assert [node.step_s for node in net.nodes] == [0.5] * 6
    assert len(net.links) == 15
    for link in net.links:
        assert symmetric(link)
        assert (link.there.latency_s, link.there.rate_bps) == (0.01, 100 * MBPS)
        across = (link.a in "012") != (link.b in "012")
        assert [(outage.start_s, outage.end_s) for outage in link.outages] == ([(20, 80)] if across else [])


def test_line() -> None:
    net = load_network("line")
    assert [node.step_s for node in net.nodes] == [0.5] * 5
    assert [(link.a, link.b) for link in net.links] == [("0", "1"), ("1", "2"), ("2", "3"), ("3", "4")]
    for link in net.links:
        middle = link.a == "2"
        assert symmetric(link)
        assert (link.there.latency_s, link.there.rate_bps) == (0.02, (1 if middle else 10) * MBPS)
        assert (link.up_down is not None) == middle
    middle_link = net.links[2].up_down
    assert middle_link is not None
    assert (middle_link.up_s, middle_link.down_s) == (30, 30)


@pytest.mark.parametrize(
    ("name", "count", "step_s"), [("odticn-3", 3, 7.5 / 11), ("odticn-9", 9, 20 / 4), ("odticn-9-own", 9, 0.68)]
)
def test_odticn(name: str, count: int, step_s: float) -> None:
    net = load_network(name)
    assert len(net) == count
    assert len(net.links) == count * (count - 1) // 2
    assert all(node.step_s == pytest.approx(step_s, rel=1e-12) for node in net.nodes)
    for link in net.links:
        walk = link.there.walk
        assert symmetric(link)
        assert walk is not None
        assert (walk.low_s, walk.high_s, walk.move_s) == (1, 5, 0.5)
        assert not link.there.limited
        assert not link.fails


def test_flexible() -> None:
    c1 = [(1, 25), (1, 1), (50, 1), (50, 25)]
    down = [(1, 25), (2, 20), (4, 15), (8, 10), (16, 5), (32, 1)]
    for name, expected in (("flexible-c1", c1), ("flexible-staircase", [*down, *reversed(down[:-1])])):
        net = load_network(name)
        assert [node.step_s for node in net.nodes] == [0.5] * 8
        assert len(net.links) == 8
        for link in net.links:
            # Between two nodes lie two links; Gbit/s of the paper are Mbit/s here.
            phases = [(round(phase.latency_s * 2 * 1e3, 9), phase.rate_bps / MBPS) for phase in link.there.phases]
            assert phases == expected
            assert symmetric(link)


CITIES = {
    "Sydney": (-33.87, 151.21),
    "SaoPaulo": (-23.55, -46.63),
    "Johannesburg": (-26.20, 28.05),
    "Mumbai": (19.08, 72.88),
    "Tokyo": (35.68, 139.69),
    "London": (51.51, -0.13),
    "Frankfurt": (50.11, 8.68),
    "Virginia": (39.04, -77.49),
}


def great_circle_km(a: tuple[float, float], b: tuple[float, float]) -> float:
    (lat_a, lon_a), (lat_b, lon_b) = (tuple(map(math.radians, place)) for place in (a, b))
    half = math.sin((lat_b - lat_a) / 2) ** 2 + math.cos(lat_a) * math.cos(lat_b) * math.sin((lon_b - lon_a) / 2) ** 2
    return 2 * 6371 * math.asin(math.sqrt(half))


def test_continents() -> None:
    net = load_network("continents")
    assert [0.5 / node.step_s for node in net.nodes] == [1, 1, 1, 1, 2, 2, 4, 4]
    assert set(net.node_names) == set(CITIES)
    assert len(net.links) == 28
    for a, b in itertools.combinations(CITIES, 2):
        link = joined(net, a, b)
        km = great_circle_km(CITIES[a], CITIES[b])
        assert symmetric(link)
        assert link.there.latency_s == pytest.approx(1.6 * km / 204_218, abs=1e-4)
        assert link.there.rate_bps == MBPS * (
            1000 if km <= 2000 else 500 if km <= 8000 else 200 if km <= 12000 else 100
        )


def test_perfect() -> None:
    net = load_network("perfect")
    assert not any(link.changes or link.there.limited or link.there.latency_s for link in net.links)

"""What is known of a network's machines and ways."""

import math

import pytest

from atoll.islands.cut import Layer
from atoll.islands.survey import survey
from atoll.network import load_network, parse_network

LAYERS = [Layer("0", 10.0, 1.0, 1.0, 1.0), Layer("1", 30.0, 1.0, 1.0, 1.0)]


def test_a_declared_step_says_how_fast_a_node_is() -> None:
    machines, pairs = survey(load_network("nine"), LAYERS, batch=4, memory_bytes=5e9)
    assert [machine.name for machine in machines][:3] == ["A1", "A2", "A3"]
    speeds = {machine.name: machine.flops_a_second for machine in machines}
    assert speeds["A1"] == 3 * 4 * 40 / 0.5
    assert speeds["C1"] == speeds["A1"] / 2
    assert {machine.memory_bytes for machine in machines} == {5e9}
    near, far = pairs.hop(0, 1), pairs.hop(0, 3)
    assert near.latency_s == pytest.approx(0.0005)
    assert near.bytes_a_second == pytest.approx(1e9 / 8 * 1448 / 1500)
    assert far.latency_s == pytest.approx(0.0405)
    assert far.bytes_a_second < 20e6 / 8, "loss leaves less of the rate"
    assert (near.there, far.there) == (1.0, 40 / 55)


def test_changing_links_count_with_their_mean_and_missing_ones_are_none() -> None:
    _, pairs = survey(load_network("flexible-c1"), LAYERS, batch=4)
    assert pairs.hop(0, 1).latency_s == pytest.approx((0.001 + 0.001 + 0.05 + 0.05) / 2 / 2)
    assert pairs.hop(0, 1).bytes_a_second == pytest.approx(13e6 / 8 * 1448 / 1500)
    for name in ("commute", "odticn-3"):
        assert math.isfinite(survey(load_network(name), LAYERS, batch=4)[1].hop(0, 1).latency_s)
    apart = parse_network("[[node]]\ncount = 2\nstep_s = 0.1\nmemory_gb = 2", name="apart")
    machines, pairs = survey(apart, LAYERS, batch=1)
    assert machines[0].memory_bytes == 2e9
    assert (pairs.hop(0, 1).latency_s, pairs.hop(0, 1).bytes_a_second) == (math.inf, 0.0)

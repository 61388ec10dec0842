from atoll.network import parse_network
from atoll.report.probe import network_of

LINK = {"round_trip_s": 0.02, "rate": 1e6}


def test_what_was_measured_is_a_network() -> None:
    report = {
        "nodes": {
            "n0": {"step_s": 0.0123, "links": {"n1": LINK}},
            "n1": {"step_s": 1e-9, "links": {"n0": LINK}},
            "n2": {"step_s": 0.0, "links": {}},
        }
    }
    text = network_of(report)
    network = parse_network(text, name="probed")
    assert [node.step_s for node in network.nodes] == [0.0123, 1e-6, 0.5]
    assert text.count("a guess") == 1, "who has not taken a step says so"
    [link] = network.links
    assert link.there.latency_s == 0.01

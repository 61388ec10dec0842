import math
from pathlib import Path

import pytest

from atoll.errors import NetworkError
from atoll.network import Network, load_network, parse_network, preset_names

HEAD = "[[node]]\ncount = 3\n"
LINK = HEAD + '[[link]]\namong = "*"\n'


def parse(text: str) -> Network:
    return parse_network(text, name="mine")


class TestReading:
    def test_everything_a_link_can_be(self) -> None:
        net = parse(
            HEAD
            + """
            [[link]]
            between = ["0", "1"]
            latency_ms = [10, 20]
            jitter_ms = 3
            rate_mbps = [1, 8]
            loss = 0.01
            outages = [[1, 2], [5, inf]]
            up_s = 30
            down_s = 10
            """
        )
        [link] = net.links
        assert (link.there.latency_s, link.back.latency_s) == (0.01, 0.02)
        assert (link.there.rate_bps, link.back.rate_bps) == (1e6, 8e6)
        assert link.there.jitter_s == link.back.jitter_s == 0.003
        assert [(outage.start_s, outage.end_s) for outage in link.outages] == [(1, 2), (5, math.inf)]
        assert link.up_down is not None
        assert link.fails
        assert link.changes

    def test_nodes_by_name_count_speed_and_memory(self) -> None:
        net = parse(
            '[[node]]\nnames = ["big"]\nspeed = 4\nmemory_gb = 80\n[[node]]\ncount = 2\nprefix = "small"\nup_mbps = 5'
        )
        assert net.node_names == ("big", "small0", "small1")
        assert net.nodes[0].step_s == 0.125
        assert net.nodes[0].memory_bytes == 80_000_000_000
        assert net.nodes[1].up_bps == 5e6

    def test_a_later_link_singles_out_a_pair(self) -> None:
        net = parse(LINK + 'latency_ms = 5\n[[link]]\nbetween = ["2", "1"]\nlatency_ms = 9')
        assert sorted(link.there.latency_s for link in net.links) == [0.005, 0.005, 0.009]

    def test_patterns(self) -> None:
        net = parse(
            'hubs = ["h"]\n[[node]]\nnames = ["a1", "a2", "b1"]\n'
            '[[link]]\nbetween = ["a*", "h"]\n[[link]]\nbetween = ["b1", "h"]'
        )
        assert [link.name for link in net.links] == ["a1~h", "a2~h", "b1~h"]

    def test_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "home.toml").write_text(LINK + 'trace = ["up.txt", "down.txt"]')
        (tmp_path / "up.txt").write_text("0 1\n10 0\n")
        (tmp_path / "down.txt").write_text("0 3\n10 0\n")
        net = load_network(str(tmp_path / "home.toml"))
        assert net.name == "home"
        assert net.links[0].back.trace is not None
        assert net.links[0].back.trace.rates_bps == (3e6,)


class TestRefusing:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "mine: expected at least one [[node]] table"),
            ("[[nodes]]\ncount = 3", "mine: there is no key 'nodes' here; did you mean 'node'?"),
            ("[[node]]\ncuont = 3", "mine, node 1: there is no key 'cuont' here; did you mean 'count'?"),
            ("[[node]]\nspeed = 1", "mine, node 1: expected either 'names' or 'count'"),
            ("[[node]]\ncount = 0", "mine, node 1, count: expected a whole number above 0, not 0"),
            ('[[node]]\ncount = "3"', "mine, node 1, count: expected a whole number, not '3'"),
            ("[[node]]\ncount = true", "mine, node 1, count: expected a whole number, not True"),
            ("[[node]]\ncount = 1\nstep_s = 1\nspeed = 1", "mine, node 1: expected 'step_s' or 'speed', not both"),
            ("[[node]]\ncount = 1\nstep_s = -1", "mine, node 1, step_s: expected a number of at least 1e-06, not -1"),
            ("[[node]]\ncount = 1\nstep_s = 0", "mine, node 1, step_s: expected a number of at least 1e-06, not 0"),
            (
                "[[node]]\ncount = 1\nspeed = 1e9",
                "mine, node 1: step_s of 0 must be at least 1e-06 s, not 5e-10: time would stand still",
            ),
            ('[[node]]\nnames = ["a b"]', "mine, node 1: a node's name is letters, digits, '_', '.', '-', not 'a b'"),
            ('[[node]]\nnames = ["a", "a"]', "mine: a is named twice"),
            (LINK + "latencyms = 5", "mine, link 1: there is no key 'latencyms' here; did you mean 'latency_ms'?"),
            (LINK + "latency_ms = -5", "mine, link 1, latency_ms: expected a number of at least 0, not -5"),
            (LINK + "rate_mbps = 0", "mine, link 1, rate_mbps: expected a number above 0, not 0"),
            (
                LINK + "rate_mbps = [1, 2, 3]",
                "mine, link 1, rate_mbps: expected a number or a list of two, not [1, 2, 3]",
            ),
            (LINK + 'rate_mbps = "fast"', "mine, link 1, rate_mbps: expected a number or a list, not 'fast'"),
            (LINK + "loss = 1", "mine, link 1: loss must be in [0, 1), not 1.0"),
            (LINK + "up_s = 3", "mine, link 1: 'up_s' and 'down_s' come together"),
            (LINK + "outages = [3]", "mine, link 1, outages: expected pairs [start, end] in seconds, not 3"),
            (LINK + "outages = [[3, 2]]", "mine, link 1, outages: an outage needs 0 <= start < end, not 3.0 to 2.0"),
            (LINK + "walk = { low_s = 1, high_s = 5 }", "mine, link 1, walk: expected 'move_s'"),
            (LINK + "walk = { lo_s = 1 }", "mine, link 1, walk: there is no key 'lo_s' here; did you mean 'low_s'?"),
            (LINK + "phases = [{ rate_mbps = 1 }]", "mine: link 0~1 has phases: say how long the run is (run_s)"),
            (LINK + 'trace = "no.txt"', "mine, link 1, trace: bandwidth trace no.txt: No such file or directory"),
            (LINK + "fading = {}", "mine, link 1, fading: expected 'quantiles_mbps'"),
            (HEAD + "[[link]]", "mine, link 1: expected either 'between' (two ends) or 'among' (every pair of them)"),
            (HEAD + '[[link]]\nbetween = ["0"]', "mine, link 1, between: expected two ends, not 1"),
            (
                '[[node]]\nnames = ["alpha", "beta"]\n[[link]]\nbetween = ["alpha", "bta"]',
                "mine, link 1, between: there is no node or hub 'bta'; did you mean 'beta'?",
            ),
            (
                HEAD + '[[link]]\nbetween = ["x*", "1"]',
                "mine, link 1, between: there is no node or hub 'x*'; choose from: 0, 1, 2",
            ),
        ],
    )
    def test_says_where_what_was_expected_and_the_nearest_name(self, text: str, message: str) -> None:
        with pytest.raises(NetworkError) as refused:
            parse(text)
        assert str(refused.value) == message

    def test_not_toml(self) -> None:
        with pytest.raises(NetworkError, match=r"mine: not valid TOML: .*line 1"):
            parse("nodes = ]")

    @pytest.mark.parametrize(
        ("spec", "message"),
        [
            ("trianlge", "there is no network 'trianlge'; did you mean 'triangle'?"),
            ("nowhere/x.toml", "network file nowhere/x.toml: No such file or directory"),
            ("nine:4", "nine: its nodes are fixed, it takes no number of nodes"),
            ("perfect:x", "network 'perfect:x': expected a number of nodes after the colon, not 'x'"),
            ("perfect:0", "network 'perfect:0': expected a number of nodes after the colon, not '0'"),
        ],
    )
    def test_names(self, spec: str, message: str) -> None:
        with pytest.raises(NetworkError) as refused:
            load_network(spec)
        assert str(refused.value).startswith(message)


def test_a_preset_by_number_of_nodes() -> None:
    assert len(load_network("perfect:16")) == 16


def test_perfected_keeps_the_nodes() -> None:
    nine = load_network("nine")
    perfect = nine.perfected()
    assert [(node.name, node.step_s) for node in perfect.nodes] == [(node.name, node.step_s) for node in nine.nodes]
    assert not any(link.changes or link.there.latency_s or link.there.limited for link in perfect.links)


def test_all_presets_load() -> None:
    for name in preset_names():
        assert load_network(name).about

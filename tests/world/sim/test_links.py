"""Simulated transfer times against answers worked out by hand (within 0.1 %, mostly far closer)."""

import asyncio
import itertools
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.network import Network, parse_network
from atoll.world import IDEAL, Lane, Physics, Simulation
from atoll.world.faults import Fault
from atoll.world.sim.physics import INITIAL_WINDOW_BYTES, loss_limit
from atoll.world.sim.world import SimWorld
from tests.world.networks import PAIR, STAR, Send, arrivals, network, run, sized

NEAR = 1e-9
MB = 1_000_000


def near(seconds: float) -> object:
    return pytest.approx(seconds, rel=NEAR)


class TestClosedForms:
    def test_one_flow(self) -> None:
        assert arrivals(network(PAIR), [(0, "0", "1", MB)]) == [near(0.8 + 0.03)]

    def test_two_and_three_flows_on_one_link(self) -> None:
        shared = network("""
            hubs = ["a", "b"]
            [[node]]
            count = 6
            [[link]]
            between = ["[012]", "a"]
            [[link]]
            between = ["[345]", "b"]
            [[link]]
            between = ["a", "b"]
            latency_ms = 30
            rate_mbps = 10
        """)
        # Two: each at half the rate until the shorter is through, then the other alone.
        assert arrivals(shared, [(0, "0", "3", MB), (0, "1", "4", 2 * MB)]) == [near(1.6 + 0.03), near(2.4 + 0.03)]
        # Three, coming one after the other: 0.5 MB of the first is through before the second comes, and so on.
        sends: list[Send] = [(0, "0", "3", MB), (0.4, "1", "4", MB), (1.0, "2", "5", MB)]
        # From 0.4 on two share: by 1.0 the first has 0.875 MB, the second 0.375.  Then three share a third each.
        # The first needs 0.125 MB more at 10/3 Mbit/s: 0.3 s, to 1.3.  The second then has 0.5, the third 0.125.
        # Two share again: the second needs 0.8 s, to 2.1, when the third has 0.625; alone it needs 0.3 s more.
        assert arrivals(shared, sends) == [near(1.33), near(2.13), near(2.43)]

    def test_unequal_paths_share_max_min_fairly(self) -> None:
        # a—b at 8 Mbit/s, b—c at 24.  Flows a→c, a→b, b→c: the first two have 4 each, the third the 20 that are left.
        chain = network("""
            [[node]]
            names = ["a", "b", "c"]
            [[link]]
            between = ["a", "b"]
            latency_ms = 10
            rate_mbps = 8
            [[link]]
            between = ["b", "c"]
            latency_ms = 20
            rate_mbps = 24
        """)
        sends: list[Send] = [(0, "a", "c", MB), (0, "a", "b", MB), (0, "b", "c", 5 * MB)]
        # All three end at 2 s: 1 MB at 4 Mbit/s twice, 5 MB at 20 Mbit/s.
        assert arrivals(chain, sends) == [near(2.03), near(2.01), near(2.02)]

    def test_bandwidth_trace(self, tmp_path: Path) -> None:
        (tmp_path / "rates.txt").write_text("0 8\n1 2\n3 4\n5 0\n")  # repeats every 5 s
        traced = parse_network(PAIR.replace("rate_mbps = 10", 'trace = "rates.txt"'), name="traced", folder=tmp_path)
        # 1 MB in the first second, 0.25 a second in the next two, then 0.5 a second.
        assert arrivals(traced, [(0, "0", "1", 1_250_000)]) == [near(2.03)]
        assert arrivals(traced, [(0, "0", "1", 2_000_000)]) == [near(4.03)]
        assert arrivals(traced, [(0, "0", "1", 3_000_000)]) == [near(5.53)]  # 2.5 MB a round
        assert arrivals(traced, [(2.5, "0", "1", 375_000)]) == [near(3.53)]  # a trace goes on while nobody looks

    def test_outage_in_the_middle(self) -> None:
        cut = network(PAIR + "outages = [[0.4, 20.4]]")
        # By 0.4 s 500,000 bytes have left; the 37,500 of the last 30 ms are lost.  It goes on 60 ms after the return.
        assert arrivals(cut, [(0, "0", "1", MB)]) == [near(20.46 + (500_000 + 37_500) * 8 / 10e6 + 0.03)]

    def test_outage_loses_messages_that_had_left(self) -> None:
        cut = network(PAIR + "outages = [[0.09, 5]]")
        # 100,000 bytes have left at 0.08 and would arrive at 0.11; the cut at 0.09 loses what left after 0.06.
        lost = 25_000
        assert arrivals(cut, [(0, "0", "1", 100_000)]) == [near(5.06 + lost * 8 / 10e6 + 0.03)]

    def test_outage_before_and_after_matter_not(self) -> None:
        cut = network(PAIR + "outages = [[1, 2], [3, 4]]")
        assert arrivals(cut, [(0, "0", "1", MB), (2.06, "0", "1", MB)]) == [near(0.83), near(2.89)]
        assert arrivals(cut, [(1.5, "0", "1", 125_000)]) == [near(2 + 0.06 + 0.1 + 0.03)]

    def test_star_of_access_links(self) -> None:
        # Node 0 sends to 1, 2 and 3 over its one access link: a third each.  Meanwhile 1 sends to 2: its way down is
        # shared with 0's flow to 2, which is held back at 0; so 1 has the other two thirds.
        sends: list[Send] = [*((0.0, "0", to, MB) for to in "123"), (0.0, "1", "2", 2 * MB)]
        assert arrivals(network(STAR), sends) == [near(3.02)] * 4

    def test_access_of_a_node(self) -> None:
        nodes = network("""
            [[node]]
            names = ["a"]
            up_mbps = 4
            [[node]]
            names = ["b", "c"]
            down_mbps = 3
            [[link]]
            among = "*"
            latency_ms = 5
        """)
        # a's 4 Mbit/s are shared by two; b takes 3 alone.
        assert arrivals(nodes, [(0, "a", "b", MB), (0, "a", "c", MB)]) == [near(4.005)] * 2
        assert arrivals(nodes, [(0, "a", "b", 3 * MB)]) == [near(8.005)]

    def test_phases(self) -> None:
        phased = network("""
            run_s = 20
            [[node]]
            count = 2
            [[link]]
            among = "*"
            phases = [{ latency_ms = 10, rate_mbps = 8 }, { latency_ms = 100, rate_mbps = 1 }]
        """)
        assert arrivals(phased, [(0, "0", "1", MB), (15, "0", "1", 125_000)]) == [near(1.01), near(16.1)]
        assert arrivals(phased, [(9, "0", "1", 2 * MB)]) == [near(10 + 8 + 0.1)]

    def test_control_does_not_queue_behind_bulk(self) -> None:
        async def program(world: SimWorld) -> float:
            if world.name == "0":
                async with asyncio.TaskGroup() as group:
                    group.create_task(world.peer("1").send("x", b"", sized(10 * MB)))
                    await world.sleep(1)
                    await world.peer("1").send("x", b"", sized(1000), lane=Lane.CONTROL)
                return 0
            await world.receive("x")
            return world.now

        # 1,000 bytes at half of the rate, while the bulk takes the other half.
        assert run(network(PAIR), program)["1"] == near(1 + 1000 * 8 / 5e6 + 0.03)


class TestTcp:
    def test_headers(self) -> None:
        physics = Physics(slow_start=False, jitter=False, loss=False)
        assert arrivals(network(PAIR), [(0, "0", "1", MB)], physics=physics) == [near(0.8 * 1500 / 1448 + 0.03)]

    def test_slow_start(self) -> None:
        physics = Physics(headers=False, jitter=False, loss=False)
        fast = network(PAIR.replace("rate_mbps = 10", "rate_mbps = 1000"))
        rate, window = 1e9 / 8, INITIAL_WINDOW_BYTES
        # A window a round trip of 60 ms, each twice the last: what does not fit in 1, 2 and 4 goes in the fourth.
        size = 10 * window
        assert arrivals(fast, [(0, "0", "1", size)], physics=physics) == [near(3 * 0.06 + 3 * window / rate + 0.03)]
        # A message that fits takes no longer than the rate says.
        assert arrivals(fast, [(0, "0", "1", window)], physics=physics) == [near(window / rate + 0.03)]

    def test_slow_start_ends_when_the_pipe_is_full(self) -> None:
        physics = Physics(headers=False, jitter=False, loss=False)
        [taken] = arrivals(network(PAIR), [(0, "0", "1", 10 * MB)], physics=physics)
        # Three windows (1, 2 and 4 times the first) are over before their round trip is; the fourth fills the pipe.
        waiting = 3 * 0.06 - 7 * INITIAL_WINDOW_BYTES * 8 / 10e6
        assert taken == near(8 + waiting + 0.03)

    def test_slow_start_after_idling(self) -> None:
        physics = Physics(headers=False, jitter=False, loss=False)
        fast = network(PAIR.replace("rate_mbps = 10", "rate_mbps = 1000"))
        size = 7 * INITIAL_WINDOW_BYTES
        first, soon, late = arrivals(
            fast, [(0, "0", "1", size), (0.3, "0", "1", size), (30, "0", "1", size)], physics=physics
        )
        assert soon - 0.3 < first - 0.06  # the window has grown
        assert late - 30 == near(first)  # and is forgotten

    def test_loss_limits_long_transfers(self) -> None:
        lossy = network(PAIR.replace("rate_mbps = 10", "rate_mbps = 1000\nloss = 0.01"))
        [taken] = arrivals(
            lossy, [(0, "0", "1", 10 * MB)], physics=Physics(slow_start=False, jitter=False, headers=False)
        )
        assert taken == near(10 * MB / loss_limit(0.01, 0.06) + 0.03)

    def test_loss_delays_some_short_messages_by_a_round_trip(self) -> None:
        lossy = network(PAIR.replace("rate_mbps = 10", "loss = 0.2"))
        sends: list[Send] = [(float(n), "0", "1", 100) for n in range(400)]
        times = arrivals(lossy, sends, physics=Physics(headers=False, jitter=False))
        late = [time - when for time, (when, *_) in zip(times, sends, strict=True)]
        assert {round(delay, 6) for delay in late} == {0.03, 0.09}
        assert 50 < sum(delay > 0.05 for delay in late) < 110

    def test_jitter_never_reorders(self) -> None:
        shaky = network(PAIR.replace("rate_mbps = 10", "jitter_ms = 20"))
        sends: list[Send] = [(n / 1000, "0", "1", 100) for n in range(500)]
        times = arrivals(shaky, sends, physics=Physics())
        assert times == sorted(times)
        delays = [time - when for time, (when, *_) in zip(times, sends, strict=True)]
        assert len(set(delays)) > 10
        assert min(delays) >= 0

    def test_walk(self) -> None:
        net = network("""
            [[node]]
            count = 2
            [[link]]
            among = "*"
            walk = { low_s = 1, high_s = 5, move_s = 0.5 }
        """)
        sends: list[Send] = [(20.0 * n, "0", "1", MB) for n in range(50)]
        times = arrivals(net, sends, physics=Physics())
        delays = [time - when for time, (when, *_) in zip(times, sends, strict=True)]
        assert 1 <= delays[0] <= 5
        steps = [abs(b - a) for a, b in itertools.pairwise(delays)]
        assert 0 < max(steps) <= 0.5 + 1e-9
        assert min(delays) >= 0


class TestRoutes:
    TRIANGLE = """
        hubs = ["A", "B", "C"]
        [[node]]
        names = ["a", "b"]
        [[link]]
        between = ["a", "A"]
        [[link]]
        between = ["b", "B"]
        [[link]]
        between = ["A", "B"]
        latency_ms = 10
        rate_mbps = 8
        outages = [[1, 9]]
        [[link]]
        between = ["A", "C"]
        latency_ms = 50
        rate_mbps = 4
        [[link]]
        between = ["B", "C"]
        latency_ms = 50
        rate_mbps = 4
    """

    def test_takes_the_shortest_working_path(self) -> None:
        sends: list[Send] = [(0, "a", "b", 500_000), (2, "a", "b", 500_000), (12, "a", "b", 500_000)]
        assert arrivals(network(self.TRIANGLE), sends) == [near(0.51), near(3.1), near(12.51)]

    def test_a_transfer_is_taken_round_a_cut(self) -> None:
        # At 1 s 1 MB has left, 10,000 bytes of it are lost; a round trip (0.2 s) later the rest goes the long way.
        expected = 1 + 0.2 + 1_010_000 * 8 / 4e6 + 0.1
        assert arrivals(network(self.TRIANGLE), [(0, "a", "b", 2 * MB)]) == [near(expected)]

    def test_two_with_a_link_of_their_own_use_no_other(self) -> None:
        net = network("""
            [[node]]
            count = 3
            [[link]]
            among = "*"
            latency_ms = 10
            [[link]]
            between = ["0", "1"]
            latency_ms = 10
            outages = [[0, 10]]
        """)
        assert arrivals(net, [(1, "0", "1", 100)]) == [near(10 + 0.02 + 0.01)]


def cut_between(one: str, other: str, at: float, until: float) -> Fault:
    return Fault("cut", at, until, pairs=frozenset({(one, other), (other, one)}))


@st.composite
def traffic(draw: st.DrawFn) -> tuple[Network, list[Send], list[Fault]]:
    """A random network (stars joined by a link, direct links, access limits, outages), messages, and cuts."""
    count = draw(st.integers(2, 6))
    rate = st.sampled_from([1, 2, 3, 8, 10, 50])
    lines = ['hubs = ["hub"]']
    for n in range(count):
        up = draw(st.sampled_from(["", "up_mbps = 4\n", "down_mbps = 3\n"]))
        lines.append(f'[[node]]\nnames = ["{n}"]\n{up}')
    for n in range(count):
        start = draw(st.floats(0, 3))
        outage = draw(st.sampled_from(["", f"outages = [[{start}, {start + 1}]]", "up_s = 2\ndown_s = 1"]))
        lines.append(
            f'[[link]]\nbetween = ["{n}", "hub"]\nlatency_ms = {draw(st.integers(0, 50))}\n'
            f"rate_mbps = {draw(rate)}\n{outage}"
        )
    if draw(st.booleans()):
        lines.append(
            f'[[link]]\nbetween = ["0", "1"]\nlatency_ms = 5\nrate_mbps = {draw(rate)}\njitter_ms = 3\nloss = 0.01'
        )
    nodes = st.sampled_from([str(n) for n in range(count)])
    sends = draw(
        st.lists(
            st.tuples(st.floats(0, 4), nodes, nodes, st.integers(100, 500_000)).filter(lambda send: send[1] != send[2]),
            min_size=1,
            max_size=12,
        )
    )
    pairs = st.tuples(nodes, nodes).filter(lambda pair: pair[0] != pair[1])
    cuts = draw(st.lists(st.tuples(pairs, st.floats(0, 4), st.floats(0.1, 2)), max_size=3))
    faults = [cut_between(*pair, start, start + length) for pair, start, length in cuts]
    return network("\n".join(lines)), sends, faults


class Auditor:
    """Looks at every pipe after every change of rates."""

    def __init__(self) -> None:
        self.simulation: Simulation | None = None
        self.looks = 0

    def __call__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        settle = simulation.links._rates._settle

        def settle_and_look() -> None:
            settle()
            self.look(simulation)

        simulation.links._rates._settle = settle_and_look  # type: ignore[method-assign]

    def look(self, simulation: Simulation) -> None:
        self.looks += 1
        for pipe in simulation.links.wiring.pipes():
            used = math.fsum(flow.rate for flow in pipe.flows)
            assert used <= pipe.capacity * (1 + 1e-6), f"{pipe} carries {used}"
        for connection in simulation.links.busy:
            if connection.state == "sending" and connection.pipes:
                held_back = connection.rate >= connection.cap * (1 - 1e-6) or any(
                    math.fsum(flow.rate for flow in pipe.flows) >= pipe.capacity * (1 - 1e-6)
                    and connection.rate >= max(flow.rate for flow in pipe.flows) * (1 - 1e-6)
                    for pipe in connection.pipes
                )
                assert held_back, f"{connection.sender} to {connection.receiver} could have more than {connection.rate}"


@given(traffic(), st.sampled_from([IDEAL, Physics()]), st.integers(0, 3))
@settings(max_examples=150, deadline=None)
def test_random_traffic(case: tuple[Network, list[Send], list[Fault]], physics: Physics, seed: int) -> None:
    """Whatever happens: no pipe over its rate, all at a bottleneck, each message arrives once and none too early."""
    net, sends, faults = case
    auditor = Auditor()
    times = arrivals(net, sends, physics=physics, seed=seed, faults=faults, watch=auditor)
    assert len(times) == len(sends)
    simulation = auditor.simulation
    assert simulation is not None
    assert not simulation.links.busy
    assert not simulation.links.stranded
    assert all(not pipe.flows for pipe in simulation.links.wiring.pipes())
    for time, (when, _, _, size) in zip(times, sends, strict=True):
        assert time >= when + size * 8 / 50e6 - 1e-9
    # What all connections have sent is what was to be sent, and what was sent again.
    wire = sum(simulation.physics.wire_bytes(size) for *_, size in sends)
    sent = simulation.links.carried_bytes
    assert sent >= wire - 1e-3
    if not faults and not any(link.fails for link in net.links):
        assert sent == pytest.approx(wire, rel=1e-9)


@given(st.lists(st.integers(40, 200_000), min_size=1, max_size=20), st.integers(0, 20))
@settings(max_examples=50, deadline=None)
def test_order_on_a_channel(sizes: list[int], seed: int) -> None:
    shaky = network(PAIR + "jitter_ms = 30\nloss = 0.05\nup_s = 0.3\ndown_s = 0.2")

    async def program(world: SimWorld) -> list[int]:
        if world.name == "0":
            async with asyncio.TaskGroup() as group:
                for index, size in enumerate(sizes):
                    group.create_task(world.peer("1").send("x", index.to_bytes(2), sized(size)))
            return []
        return [int.from_bytes((await world.peer("0").receive("x")).head) for _ in sizes]

    assert run(shaky, program, seed=seed, physics=Physics())["1"] == list(range(len(sizes)))


class TestRegressions:
    """Found by a review that tried to break it."""

    @pytest.mark.parametrize("line", ["jitter_ms = 10", "loss = 0.5"])
    def test_nothing_arrives_over_a_link_that_is_down(self, line: str) -> None:
        cut = network(f'[[node]]\ncount = 2\n[[link]]\namong = "*"\nlatency_ms = 30\n{line}\noutages = [[0.0301, 5]]')
        for seed in range(40):
            [arrived] = arrivals(cut, [(0, "0", "1", 100)], physics=Physics(), seed=seed)
            assert arrived <= 0.0301 or arrived >= 5

    def test_nor_by_a_latency_that_wanders(self) -> None:
        cut = network(
            '[[node]]\ncount = 2\n[[link]]\namong = "*"\n'
            "walk = { low_s = 5, high_s = 5, move_s = 0.5 }\noutages = [[4.9, 100]]"
        )
        for seed in range(10):
            assert arrivals(cut, [(0, "0", "1", 100)], seed=seed)[0] > 100

    def test_a_link_that_is_down_from_the_start(self) -> None:
        cut = network('[[node]]\ncount = 2\n[[link]]\namong = "*"\nlatency_ms = 10\noutages = [[0, 20]]')
        assert arrivals(cut, [(0, "0", "1", 100)]) == [near(20.03)]

    def test_a_cut_of_a_connection_that_already_waits_for_its_link(self) -> None:
        """Its link is down and nothing is in the air when a fault blocks the pair as well."""
        down = network('[[node]]\ncount = 2\n[[link]]\namong = "*"\nlatency_ms = 10\noutages = [[0, 20]]')
        for until in (5, 20, 30):
            [arrived] = arrivals(down, [(1, "0", "1", 100)], faults=[cut_between("0", "1", 2, until)])
            assert arrived == near(max(20, until) + 0.03)

    def test_a_hole_in_the_rate_does_not_open_the_window(self, tmp_path: Path) -> None:
        physics = Physics(headers=False, jitter=False, loss=False)
        times = []
        for text in ("0 1000\n10 0\n", "0 0\n0.1 1000\n10 0\n"):
            (tmp_path / "rates").write_text(text)
            traced = parse_network(
                '[[node]]\ncount = 2\n[[link]]\namong = "*"\nlatency_ms = 100\ntrace = "rates"',
                name="x",
                folder=tmp_path,
            )
            times += arrivals(traced, [(0, "0", "1", 2 * MB)], physics=physics)
        assert times[1] >= times[0]

    def test_ten_segments_fit_the_first_window(self) -> None:
        fast = network(PAIR.replace("rate_mbps = 10", "rate_mbps = 1000"))
        [taken] = arrivals(fast, [(0, "0", "1", 14_480)], physics=Physics(jitter=False))
        assert taken < 0.031

    def test_one_segment_is_one_packet(self) -> None:
        lossy = network(PAIR.replace("rate_mbps = 10", "loss = 0.2"))
        sends: list[Send] = [(float(n), "0", "1", 1448) for n in range(1000)]
        times = arrivals(lossy, sends, physics=Physics(jitter=False))
        late = sum(time - when > 0.05 for time, (when, *_) in zip(times, sends, strict=True))
        assert 160 < late < 240

    def test_dialling_takes_a_round_trip_whoever_asks(self) -> None:
        cut = network(PAIR.replace("30", "1000").replace("rate_mbps = 10", "") + "outages = [[10, 20]]")
        before, after = arrivals(cut, [(19.999, "0", "1", 100), (20.001, "0", "1", 100)])
        assert before == after == near(23)
        assert arrivals(cut, [(1, "0", "1", 100), (20.5, "0", "1", 100), (30, "0", "1", 100)])[1:] == [
            near(23),
            near(31),
        ]

    def test_paths_follow_latencies(self) -> None:
        net = network(
            """
            run_s = 20
            hubs = ["h", "k"]
            [[node]]
            names = ["a", "b"]
            [[link]]
            between = ["a", "h"]
            phases = [{ latency_ms = 10 }, { latency_ms = 5000 }]
            [[link]]
            between = ["b", "h"]
            [[link]]
            between = ["?", "k"]
            latency_ms = 25
        """.replace('between = ["?", "k"]', 'between = ["[ab]", "k"]')
        )
        assert arrivals(net, [(1, "a", "b", 100), (15, "a", "b", 100)]) == [near(1.01), near(15.05)]

    def test_a_broken_path_holds_nothing_back(self) -> None:
        """Sent over a long path; that is cut when a short one is back: the message is sent again, and is there soon."""
        net = network("""
            hubs = ["h", "k"]
            [[node]]
            names = ["a", "b"]
            [[link]]
            between = ["[ab]", "h"]
            latency_ms = 5
            [[link]]
            between = ["a", "h"]
            latency_ms = 5
            outages = [[0, 1]]
            [[link]]
            between = ["[ab]", "k"]
            latency_ms = 2500
            outages = [[2, 100]]
        """)
        assert arrivals(net, [(0.5, "a", "b", 100)]) == [near(2 + 0.02 + 0.01)]

    def test_phases_without_and_with_a_limit(self) -> None:
        ends = [("n0", "n1"), ("n1", "n2"), ("n2", "x"), ("y", "n2")]
        links = "".join(
            f'[[link]]\nbetween = ["{a}", "{b}"]\n'
            "phases = [{ latency_ms = 10 }, { latency_ms = 10, rate_mbps = 8 }]\n"
            for a, b in ends
        )
        net = network(f'run_s = 100\n[[node]]\nnames = ["n0", "n1", "n2", "x", "y"]\n{links}')
        times = arrivals(net, [(0, "n0", "n2", MB), (0, "y", "x", MB), (0, "n1", "x", MB), (60, "n0", "n2", MB)])
        assert times == [pytest.approx(0.02, rel=1e-3)] * 2 + [pytest.approx(0.02, rel=1e-3), near(61.02)]

    def test_cancelling_a_long_message_before_a_short_one(self) -> None:
        async def program(world: SimWorld) -> float:
            if world.name == "1":
                await world.receive("y")
                return world.now
            async with asyncio.TaskGroup() as group:
                long = group.create_task(world.peer("1").send("x", b"", bytes(300_000)))
                group.create_task(world.peer("1").send("y", b"", b"short"))
                await world.sleep(0.1)
                long.cancel()
                await world.sleep(20)
            return 0.0

        lossy = network('[[node]]\ncount = 2\n[[link]]\namong = "*"\nlatency_ms = 50\nloss = 0.05')
        assert run(lossy, program, physics=Physics())["1"] <= 0.26

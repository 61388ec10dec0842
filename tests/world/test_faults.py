import asyncio
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.config import RunConfig
from atoll.errors import FaultError
from atoll.runs import simulate_run
from atoll.trace import Event, FaultChanged, MessageRefused, Tested, Trace, ViewChanged, read_trace
from atoll.world import IDEAL, Physics, Simulation
from atoll.world.base import frame_bytes
from atoll.world.faults import Fault, load_faults, parse_faults
from atoll.world.sim.world import SimWorld
from tests.world.networks import PAIR, network, sized

NAMES = ("0", "1", "2", "3")


def faults(text: str, names: Sequence[str] = NAMES) -> tuple[Fault, ...]:
    return parse_faults(text, names)


def test_a_script() -> None:
    cut, partition, oneway, crash, slow = faults(
        """
        [[fault]]
        kind = "cut"
        between = ["0", "[12]"]
        at = 1
        until = 2
        [[fault]]
        kind = "partition"
        sides = [["0", "1"], "2", "3"]
        at = 3
        [[fault]]
        kind = "oneway"
        between = ["0", "1"]
        at = 3
        [[fault]]
        kind = "crash"
        nodes = ["3", "0"]
        at = 0
        [[fault]]
        kind = "slow"
        nodes = "*"
        factor = 4
        at = 5
        """
    )
    assert cut.pairs == {("0", "1"), ("1", "0"), ("0", "2"), ("2", "0")}
    assert len(partition.pairs) == 10
    assert ("2", "3") in partition.pairs
    assert ("0", "1") not in partition.pairs
    assert oneway.pairs == {("0", "1")}
    assert crash.nodes == ("0", "3")
    assert crash.until == math.inf
    assert str(slow) == "slow 0 1 2 3 ×4"
    assert str(cut) == "cut 0 – 1 2"
    assert str(partition) == "partition 0 1 | 2 | 3"
    assert str(oneway) == "oneway 0 → 1"


def test_a_label_says_how_much() -> None:
    (late,) = faults("[[fault]]\nkind = 'delay'\nbetween = ['0', '[12]']\nat = 1\nseconds = 2.5\nshare = 0.2")
    assert str(late) == "delay 0 – 1 2, 20%, 2.5 s"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[fault]]\nkind = 'crush'\nat = 1", "did you mean 'crash'"),
        ("[[fault]]\nkind = 'crash'\nat = 1", "needs 'nodes'"),
        ("[[fault]]\nkind = 'crash'\nnodes = '9'\nat = 1", "no node is called '9'"),
        ("[[fault]]\nkind = 'crash'\nnodes = '1'\nat = 5\nuntil = 4", "expected 0 <= at < until"),
        ("[[fault]]\nkind = 'crash'\nnodes = '1'\nat = 'soon'", "expected seconds"),
        ("[[fault]]\nkind = 'crash'\nnodes = '1'\nat = 1\nfactor = 2", "there is no key 'factor' for 'crash'"),
        ("[[fault]]\nkind = 'slow'\nnodes = '1'\nat = 1\nfactor = 0.5", "at least 1"),
        ("[[fault]]\nkind = 'cut'\nbetween = ['1']\nat = 1", "expected two nodes"),
        ("[[fault]]\nkind = 'cut'\nbetween = ['1', 7]\nat = 1", "a node's name or a pattern"),
        ("[[faults]]\nkind = 'cut'", "expected [[fault]] tables"),
        ("[[fault]", "not TOML"),
        ("[[fault]]\nat = 1\nnodes = '1'", "expected a kind: one of crash, cut"),
        ("[[fault]]\nkind = 'crash'\nnodes = []\nat = 1", "at least one node's name"),
        ("[[fault]]\nkind = 'cut'\nbetween = ['0', '0']\nat = 1", "expected different nodes"),
        ("[[fault]]\nkind = 'cut'\nbetween = ['0', []]\nat = 1", "at least one node's name"),
        ("[[fault]]\nkind = 'partition'\nsides = [['0', '1']]\nat = 1", "at least two sides"),
        ("[[fault]]\nkind = 'partition'\nsides = [['0', '1'], ['1', '2']]\nat = 1", "one side at most"),
    ],
)
def test_what_is_wrong_is_named(text: str, message: str) -> None:
    with pytest.raises(FaultError, match="faults") as error:
        faults(text)
    assert message in str(error.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FaultError, match="cannot be read"):
        load_faults(tmp_path / "none.toml", NAMES)


def arrivals(script: str) -> list[float]:
    """When node 1 gets a megabit that node 0 sends at once, and another at 10 s."""

    async def program(world: SimWorld) -> list[float]:
        if world.name == "0":
            await world.peer("1").send("x", body=bytes(125_000 - 33))
            await world.sleep(10 - world.now)
            await world.peer("1").send("x", body=bytes(125_000 - 33))
            return []
        found = []
        for _ in range(2):
            await world.receive("x")
            found.append(world.now)
        return found

    return Simulation(network(PAIR), physics=IDEAL, faults=faults(script, ("0", "1"))).run(program)["1"]


def test_a_cut_freezes_what_is_under_way() -> None:
    calm = arrivals("")
    assert calm == pytest.approx([0.13, 10.13])
    cut = arrivals('[[fault]]\nkind = "cut"\nbetween = ["0", "1"]\nat = 0.05\nuntil = 3')
    assert cut[0] == pytest.approx(3 + 0.06 + 0.13 - 0.05 + 0.03, abs=0.05)
    assert cut[1] == pytest.approx(10.13, abs=0.01)


def test_one_way_stops_one_way() -> None:
    assert arrivals('[[fault]]\nkind = "oneway"\nbetween = ["1", "0"]\nat = 0\nuntil = 5') == arrivals("")
    assert arrivals('[[fault]]\nkind = "oneway"\nbetween = ["0", "1"]\nat = 0\nuntil = 5')[0] > 5


def test_slow_and_stalled_nodes() -> None:
    async def program(world: SimWorld) -> list[float]:
        times = []
        for _ in range(4):
            await world.compute(lambda: None)
            times.append(world.now)
        return times

    net = network("[[node]]\ncount = 2\nstep_s = 1")
    slow = faults('[[fault]]\nkind = "slow"\nnodes = "1"\nfactor = 3\nat = 0.5\nuntil = 3.5', ("0", "1"))
    found = Simulation(net, faults=slow).run(program)
    assert found == {"0": [1, 2, 3, 4], "1": [1, 4, 5, 6]}
    stall = faults('[[fault]]\nkind = "stall"\nnodes = "0"\nat = 1.5\nuntil = 9', ("0", "1"))
    assert Simulation(net, faults=stall).run(program) == {"0": [1, 9, 10, 11], "1": [1, 2, 3, 4]}


def test_a_crashed_node_is_gone_and_begins_anew() -> None:
    begun: list[tuple[str, float]] = []

    async def program(world: SimWorld) -> float:
        begun.append((world.name, world.now))
        while world.now < 20:
            await world.sleep(1)
        return world.now

    script = '[[fault]]\nkind = "crash"\nnodes = "1"\nat = 5.5\nuntil = 8'
    found = Simulation(network(PAIR), faults=faults(script, ("0", "1"))).run(program)
    assert begun == [("0", 0), ("1", 0), ("1", 8)]
    assert found == {"0": 20, "1": 20}
    gone = Simulation(network(PAIR), faults=faults(script.replace("until = 8", ""), ("0", "1"))).run(program)
    assert gone == {"0": 20}


def test_peers_notice_a_crash_and_a_stall() -> None:
    async def program(world: SimWorld) -> list[float]:
        if world.name == "1":
            await asyncio.sleep(30)
            return []
        await world.peer("1").wait_until(reachable=False)
        lost = world.now
        await world.peer("1").wait_until(reachable=True)
        return [lost, world.now]

    for kind in ("stall", "crash"):
        script = faults(f'[[fault]]\nkind = "{kind}"\nnodes = "1"\nat = 5\nuntil = 8', ("0", "1"))
        lost, back = Simulation(network(PAIR), faults=script).run(program)["0"]
        assert lost == pytest.approx(5.5, abs=0.1)
        assert back == pytest.approx(8.06, abs=0.1)


@pytest.mark.parametrize("physics", [IDEAL, Physics()])
@given(
    st.lists(
        st.tuples(st.sampled_from(["duplicate", "delay", "corrupt"]), st.floats(0.1, 0.5)), min_size=1, max_size=3
    ),
    st.integers(0, 100),
)
@settings(max_examples=25, deadline=None)
def test_unruly_messages_arrive_once_in_order_and_whole(
    physics: Physics, wrong: list[tuple[str, float]], seed: int
) -> None:
    async def program(world: SimWorld) -> list[bytes]:
        peer = world.peer("1" if world.name == "0" else "0")
        for number in range(20):
            await peer.send("x", bytes([number]), sized(1000))
        return [(await peer.receive("x")).head for _ in range(20)]

    script = "\n".join(
        f'[[fault]]\nkind = "{kind}"\nbetween = ["0", "1"]\nat = 0\nuntil = 1000\nshare = {share}\n'
        + ("seconds = 2" if kind == "delay" else "")
        for kind, share in wrong
    )
    simulation = Simulation(network(PAIR), seed=seed, physics=physics, faults=faults(script, ("0", "1")))
    assert simulation.run(program) == {name: [bytes([number]) for number in range(20)] for name in "01"}
    assert all(world.messages_left() == 0 for world in simulation.worlds.values())


def test_what_arrives_spoilt_is_named_and_costs_its_bytes_again(tmp_path: Path) -> None:
    async def program(world: SimWorld) -> int:
        if world.name == "0":
            for _ in range(50):
                await world.peer("1").send("x", b"", sized(1000))
            await world.sleep(5)
        else:
            for _ in range(50):
                await world.receive("x")
        return world.sent_bytes

    script = faults('[[fault]]\nkind = "corrupt"\nbetween = ["0", "1"]\nat = 0\nshare = 0.5', ("0", "1"))
    with Trace(tmp_path / "trace") as trace:
        sent = Simulation(network(PAIR), trace=trace, faults=script).run(program)["0"]
    refused = [event for event in read_trace(tmp_path / "trace") if isinstance(event, MessageRefused)]
    assert {(event.node, event.sender, event.why) for event in refused} == {("1", "0", "checksum")}
    assert 20 < len(refused) < 100
    assert sent == (50 + len(refused)) * frame_bytes("x", b"", sized(1000))


TRAINING = """
[[fault]]
kind = "{kind}"
nodes = "{node}"
at = 10
{until}
"""


@pytest.mark.parametrize("node", ["0", "1", "2"])
@pytest.mark.parametrize(("kind", "until"), [("crash", ""), ("crash", "until = 20"), ("stall", "until = 20")])
@pytest.mark.parametrize("strategy", ["allreduce:every=2", "vrl:codec=int8"])
def test_training_goes_on_without_any_node_and_takes_it_back(
    tmp_path: Path, node: str, kind: str, until: str, strategy: str
) -> None:
    net = network('[[node]]\ncount = 3\nstep_s = 0.5\n[[link]]\namong = "*"\nlatency_ms = 10\nrate_mbps = 50')
    script = faults(TRAINING.format(kind=kind, node=node, until=until), net.node_names)
    spec = RunConfig(network=net, task="digits", strategy=strategy, limit_s=40, faults=script, shards="iid")
    simulate_run(spec, tmp_path / "trace")
    events: list[Event] = list(read_trace(tmp_path / "trace"))
    assert sum(isinstance(event, FaultChanged) for event in events) == (2 if until else 1)
    others = tuple(name for name in "012" if name != node)
    views = [event for event in events if isinstance(event, ViewChanged) and event.node in others]
    assert {event.members for event in views if event.at < 16} == {others}
    last = {event.node: event.at for event in events if isinstance(event, Tested)}
    assert all(last[name] > 30 or events[-1].at < 30 for name in others)
    if until:
        assert {event.members for event in views if event.at > 16} == {("0", "1", "2")}


def test_what_is_no_script_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FaultError, match="double brackets"):
        faults('[fault]\nkind = "crash"')
    (tmp_path / "script").write_bytes(b"\xff\xfe")
    with pytest.raises(FaultError, match="UTF-8"):
        load_faults(tmp_path / "script", NAMES)

"""Real processes with real TCP on an emulated network.  Where the system does not allow that, nothing is tested."""

import dataclasses
import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from atoll.errors import EmulationError
from atoll.network import Network, parse_network
from atoll.trace import FaultChanged, LinkChanged, read_trace
from atoll.world import Simulation
from atoll.world.emulate import supervisor
from atoll.world.emulate.supervisor import SWITCH_TRACE, WAYS, Emulation, emulate
from atoll.world.emulate.switch import SwitchStats
from atoll.world.faults import parse_faults
from tests.world.emulate.allowed import where_it_is_allowed
from tests.world.programs import PROGRAMS
from tests.world.test_conformance import NETWORK

NAMES = ("0", "1", "2")


def three(link: str, node: str = "") -> Network:
    return parse_network(
        f'[[node]]\nnames = ["0", "1", "2"]\nstep_s = 0.01\n{node}\n[[link]]\namong = "*"\n{link}', name="three"
    )


def run(
    folder: Path, network: Network, program: str, faults: str = "", by: str = "", **settings: Any
) -> tuple[dict[str, Any], SwitchStats]:
    what = Emulation(
        network=network,
        program=f"tests.world.programs:{program}",
        settings=settings,
        folder=folder,
        faults=parse_faults(faults, network.node_names),
        limit_s=60.0,
        seed=1,
        by=by,
    )
    with where_it_is_allowed(), emulate(what) as running:
        stats = running.wait()
    results = {path.name.split(".")[1]: json.loads(path.read_text()) for path in folder.glob("node.?.json")}
    return results, stats


@pytest.mark.parametrize("by", WAYS)
def test_node_programs_find_what_they_find_in_simulation(tmp_path: Path, by: str) -> None:
    found, stats = run(tmp_path, parse_network(NETWORK, name="three"), "all_programs", by=by)
    assert stats.by == by
    for program in PROGRAMS:
        simulated = Simulation(parse_network(NETWORK, name="three"), seed=1).run(program)
        assert {name: found[name][program.__name__] for name in NAMES} == simulated


@pytest.mark.parametrize(("by", "more"), [("tun", ""), ("veth", ""), ("veth", "\nloss = 0.000001"), ("proxy", "")])
def test_rates_and_latencies_are_what_the_network_says(tmp_path: Path, by: str, more: str) -> None:
    net = three(f"latency_ms = 20\nrate_mbps = 20{more}")
    found, stats = run(tmp_path, net, "send_much", by=by, sizes=[10, 500_000, 2_000_000])
    took = found["0"]
    assert 0.04 < took["10"] < 1.0, "a machine that is busy with other things may be late, but never early"
    ideal = 2_000_000 * 8 / 20e6 * 1500 / 1448 + 0.04
    assert ideal * 0.99 < took["2000000"] < ideal * 2.5
    assert 0.8 < found["0"]["small"] * 20e6 / 8 < 5, "the system's buffers do not hide how slow a link is"
    assert stats.dropped_queue < 0.1 * stats.delivered, "bulk is paced: queues hardly overflow, on a busy machine too"


def test_without_namespaces_there_are_proxies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden() -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(supervisor, "become_root_inside", forbidden)
    net = three("latency_ms = 20")
    what = Emulation(network=net, program="", folder=tmp_path)
    assert supervisor.join_nodes(what) == ("proxy", {})
    with pytest.raises(EmulationError, match=r"tun: namespaces are not allowed \(Operation not permitted\)"):
        supervisor.join_nodes(dataclasses.replace(what, by="tun"))


def test_proxies_hold_bytes_back_while_a_link_is_down(tmp_path: Path) -> None:
    script = """
    [[fault]]
    kind = "partition"
    sides = [["0"], ["1", "2"]]
    at = 1
    until = 4
    """
    found, _ = run(tmp_path, three("latency_ms = 10\nrate_mbps = 20"), "look_around", script, by="proxy", until_s=7)
    looks = [(at, set(names)) for at, names in found["0"]["seen"]]
    assert all(not names for at, names in looks if 3 < at < 4)
    assert all(names == {"1", "2"} for at, names in looks if at > 6)


def test_proxies_spoil_nothing(tmp_path: Path) -> None:
    script = '[[fault]]\nkind = "corrupt"\nbetween = ["0", "1"]\nshare = 0.5\nat = 1\nuntil = 2'
    with pytest.raises(EmulationError, match="packets cannot be corrupted"):
        run(tmp_path, three("latency_ms = 10"), "look_around", script, by="proxy", until_s=7)


def test_cuts_crashes_and_stalls(tmp_path: Path) -> None:
    """They are noticed within a second or two, and so is their end."""
    script = """
    [[fault]]
    kind = "partition"
    sides = [["0"], ["1", "2"]]
    at = 1
    until = 3
    [[fault]]
    kind = "crash"
    nodes = "2"
    at = 5
    until = 6
    [[fault]]
    kind = "stall"
    nodes = "1"
    at = 9
    until = 12
    """
    found, _ = run(tmp_path, three("latency_ms = 10\nrate_mbps = 20"), "look_around", script, until_s=14)

    def reached(name: str, start: float, end: float) -> set[str]:
        """Whom a node reached all that time."""
        looks = [set(names) for at, names in found[name]["seen"] if start <= at <= end]
        assert looks
        return set.intersection(*looks)

    def ever(name: str, start: float, end: float) -> set[str]:
        return set[str]().union(*(names for at, names in found[name]["seen"] if start <= at <= end))

    assert reached("0", 0.2, 1.0) == {"1", "2"}
    assert ever("0", 2.0, 2.95) == set()
    assert reached("1", 2.0, 2.95) == {"2"}
    assert reached("0", 4.2, 4.9) == {"1", "2"}
    assert ever("0", 5.9, 6.0) == {"1"}
    assert reached("0", 8.5, 9.0) == {"1", "2"}, "who was killed is back"
    assert ever("0", 11.0, 11.9) == {"2"}  # after a second or two: where a machine is busy, nodes are more patient
    assert reached("0", 13.2, 13.9) == {"1", "2"}, "who stood still goes on"
    faults = [event for event in read_trace(tmp_path / SWITCH_TRACE) if isinstance(event, FaultChanged)]
    assert [event.on for event in faults] == [True, False] * 3


def test_weather_is_that_of_a_simulation(tmp_path: Path) -> None:
    network = three("latency_ms = 5\nup_s = 2\ndown_s = 1")
    run(tmp_path, network, "look_around", until_s=6)
    emulated = [event for event in read_trace(tmp_path / SWITCH_TRACE) if isinstance(event, LinkChanged)]

    class Changes:
        def __init__(self) -> None:
            self.all: list[LinkChanged] = []

        def record(self, event: object) -> None:
            if isinstance(event, LinkChanged) and event.at <= 6:
                self.all.append(event)

        def flush(self) -> None:
            pass

    changes = Changes()

    async def wait(world: Any) -> None:
        while world.now < 6.1:
            await world.sleep(0.1)

    Simulation(network, seed=1, trace=changes).run(wait)
    assert changes.all
    for one, other in zip(changes.all, emulated, strict=False):
        assert (one.link, one.up) == (other.link, other.up)
        assert other.at == pytest.approx(one.at, abs=0.1)


def test_memory_is_enforced(tmp_path: Path) -> None:
    network = three("latency_ms = 5", "memory_gb = 0.3")
    found, _ = run(tmp_path, network, "eat_memory", until_s=6)
    assert set(found) == {"1", "2"}


def test_a_program_that_fails_is_named(tmp_path: Path) -> None:
    with pytest.raises(EmulationError, match=r"has died with status 1: .*KeyError: 'until_s'"):
        run(tmp_path, three("latency_ms = 5"), "look_around")


def test_what_makes_namespaces_has_no_threads() -> None:
    """numpy and torch start some, and the system then refuses a user namespace."""
    code = "import atoll.world.emulate.supervisor, sys; print('numpy' in sys.modules, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["False", "False"]


ORDINARY = """
import sys
from pathlib import Path
from atoll.network import parse_network
from atoll.world.emulate import supervisor
from atoll.world.emulate.supervisor import Emulation, emulate

if __name__ == "__main__":
    network = parse_network('[[node]]\\ncount = 2\\n[[link]]\\namong = "*"\\nlatency_ms = 5', name="two")
    program = "tests.world.programs:look_around"
    what = Emulation(network=network, program=program, settings={"until_s": 1}, folder=Path(sys.argv[1]))
    with emulate(what) as running:
        running.wait()
"""


def test_an_ordinary_user_can_do_it(tmp_path: Path) -> None:
    ordinary = ["unshare", "--user", "--map-user=1000", "--map-group=1000"]
    if os.geteuid() != 0:
        ordinary = []
    elif not shutil.which("unshare") or subprocess.run([*ordinary, "true"], check=False).returncode:
        pytest.skip("there is no ordinary user to be")
    script = tmp_path / "script.py"
    script.write_text(ORDINARY)
    root = str(Path(__file__).parents[3])
    done = subprocess.run(
        [*ordinary, sys.executable, str(script), str(tmp_path / "run")],
        check=False,
        capture_output=True,
        text=True,
        cwd=root,
        env={**os.environ, "PYTHONPATH": root},
    )
    if "does not let you" in done.stderr and "Invalid argument" not in done.stderr:
        pytest.skip(done.stderr.splitlines()[-1])
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "run").glob("node.?.json"))) == 2


def test_leaving_early_ends_everything_quietly(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    network = three("latency_ms = 5")
    what = Emulation(
        network=network,
        program="tests.world.programs:look_around",
        settings={"until_s": 60},
        folder=tmp_path,
    )
    with where_it_is_allowed(), emulate(what) as running:
        while running.poll(0.1) and running.now < 0.5:
            pass
    assert capfd.readouterr().err == ""
    started = [json.loads(path.read_text()) for path in tmp_path.glob("node.*.start.json")]
    assert len(started) == 3
    running_on = [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(tmp_path) in _read(path)]
    assert running_on == []


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""

"""Training with real processes over an emulated network gives a trace like a simulated one."""

import dataclasses
import itertools
import tomllib
from pathlib import Path

import pytest
import safetensors.torch

from atoll.config import RunConfig
from atoll.network import parse_network
from atoll.report.results import read_folder, read_result
from atoll.runs import simulate_run
from atoll.runs.emulated import run_emulated
from atoll.trace import (
    Computed,
    DataUsed,
    Emulated,
    Exchanged,
    FaultChanged,
    IslandsFormed,
    Joined,
    Tested,
    Trace,
    read_trace,
)
from atoll.world.faults import parse_faults
from tests.world.emulate.allowed import where_it_is_allowed

NETWORK = parse_network(
    '[[node]]\ncount = 3\nstep_s = 0.1\n[[link]]\namong = "*"\nlatency_ms = 10\nrate_mbps = 20', name="three"
)
CRASH = "[[fault]]\nkind = 'crash'\nnodes = '2'\nat = 3\nuntil = 4"


def test_emulated_and_simulated_runs_agree(tmp_path: Path) -> None:
    """Nothing goes wrong on these links, so both take the same steps and the same time, but for the machine's own."""
    spec = RunConfig(network=NETWORK, task="digits", strategy="allreduce:every=4", shards="iid", limit_s=40.0)
    emulated, simulated = tmp_path / "emulated.jsonl", tmp_path / "simulated.jsonl"
    with where_it_is_allowed():
        for _ in run_emulated(spec, emulated):
            pass
    simulate_run(spec, simulated)
    one, other = read_result(emulated), read_result(simulated)
    assert one is not None
    assert other is not None
    assert one.reason == other.reason == "target reached"
    assert one.seconds_to_target == pytest.approx(other.seconds_to_target, rel=0.25)
    assert one.bytes_sent == pytest.approx(other.bytes_sent, rel=0.25)
    events = list(read_trace(emulated))
    assert [event.at for event in events] == sorted(event.at for event in events)
    assert any(isinstance(event, Emulated) for event in events)
    assert any(isinstance(event, DataUsed) and event.used > 500 for event in events)
    digests: dict[str, set[str]] = {}
    for event in events:
        if isinstance(event, Exchanged) and event.digest:
            digests.setdefault(event.name, set()).add(event.digest)
    assert digests
    assert all(len(found) == 1 for found in digests.values()), "all who took a round hold the same bytes"


def test_checkpoints_final_tests_and_the_model(tmp_path: Path) -> None:
    """What exists in simulation exists here: nodes go on from what they kept, and the model is there at the end."""
    config = RunConfig(
        network=NETWORK,
        strategy="allreduce:every=4",
        shards="iid",
        limit_s=4.0,
        stops=False,
        checkpoints=tmp_path / "kept",
        save=tmp_path / "model.safetensors",
    )
    steps = []
    for resume in (False, True):
        path = tmp_path / f"{resume}.jsonl"
        with where_it_is_allowed():
            for _ in run_emulated(dataclasses.replace(config, resume=resume), path):
                pass
        tested = [event.steps for event in read_trace(path) if isinstance(event, Tested)]
        steps.append((min(tested), max(tested)))
        assert tomllib.loads(path.with_suffix(".toml").read_text())["checkpoints"] == str(config.checkpoints)
    assert steps[1][0] > steps[0][0]
    assert steps[1][1] > steps[0][1] + 5
    assert len(list((tmp_path / "kept").glob("*.safetensors"))) == len(NETWORK)
    assert safetensors.torch.load_file(tmp_path / "model.safetensors")


def test_a_node_is_killed_and_comes_back(tmp_path: Path) -> None:
    faults = parse_faults(CRASH, NETWORK.node_names)
    spec = RunConfig(
        network=NETWORK, task="digits", strategy="vrl:codec=int8", limit_s=14.0, faults=faults, stops=False
    )
    path = tmp_path / "killed.jsonl"
    with where_it_is_allowed():
        for _ in run_emulated(spec, path):
            pass
    events = list(read_trace(path))
    assert sum(isinstance(event, FaultChanged) for event in events) == 2
    assert any(isinstance(event, Joined) and event.node == "2" for event in events)
    late = {event.node for event in events if isinstance(event, Exchanged) and event.at > 12}
    assert late == {"0", "1", "2"}
    survivors = sorted(event.at for event in events if isinstance(event, Exchanged) and event.node == "0")
    assert max(after - before for before, after in itertools.pairwise(survivors)) < 3


def test_islands_lose_a_node_and_go_on(tmp_path: Path) -> None:
    """Islands 0+1 and 2: node 1 is killed, and node 0 holds the whole model until it is back."""
    faults = parse_faults(CRASH.replace("'2'", "'1'"), NETWORK.node_names)
    spec = RunConfig(
        network=NETWORK,
        task="digits",
        strategy="allreduce:every=4,overlap",
        limit_s=16.0,
        faults=faults,
        stops=False,
        islands="0+1/2",
    )
    path = tmp_path / "islands.jsonl"
    with where_it_is_allowed():
        for _ in run_emulated(spec, path):
            pass
    events = list(read_trace(path))
    formed = [event.described for event in events if isinstance(event, IslandsFormed)]
    assert formed[0] == ("0 0-1, 1 1-3", "2 0-3")
    assert ("0 0-3", "2 0-3") in formed, "without node 1"
    assert "1" in " ".join(formed[-1]).replace(",", " ").split(), "with it again"
    last = {event.node: event.at for event in events if isinstance(event, Computed)}
    assert min(last.values()) > 14, "all are at work at the end"
    assert any(isinstance(event, Exchanged) and event.at > 10 for event in events)
    assert max(event.measure for event in events if isinstance(event, Tested)) > 0.6
    away = [event for event in events if isinstance(event, Computed) and event.node == "2" and event.at > 1]
    assert max(after.since - before.at for before, after in itertools.pairwise(away)) < 2


def test_a_switch_that_was_late_is_told(tmp_path: Path) -> None:
    """Not a run to believe, and the table says so."""
    path = tmp_path / "strategy.none.seed0.jsonl"
    simulate_run(RunConfig(network=NETWORK, task="digits", strategy="none", limit_s=5.0), path)
    lines = path.read_text().splitlines(keepends=True)
    about = Emulated(at=5.0, by="tun", packets=9, late_share=0.5, latest_s=0.2, cpu_share=1.0, valid=False)
    with Trace(tmp_path / "late.jsonl") as trace:
        trace.record(about)
    late = (tmp_path / "late.jsonl").read_text().splitlines(keepends=True)[-1]
    (tmp_path / "late.jsonl").unlink()
    path.write_text("".join([*lines[:-1], late, lines[-1]]))
    assert "In 1 of 1 runs the emulated network was late" in read_folder(tmp_path).warning

"""Whole runs in the simulated world."""

import dataclasses
import hashlib
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch

from atoll.config import RunConfig
from atoll.network import load_network
from atoll.report.results import read_result
from atoll.runs import IDEAL_STRATEGY, simulate_run
from atoll.trace import (
    Computed,
    DataUsed,
    EpochEnded,
    Exchanged,
    FinalTested,
    MeanTested,
    RunEnded,
    Tested,
    TrainingStarted,
    read_trace,
)
from atoll.world.faults import parse_faults
from tests.training.idx import write_small_mnist

SPEC = RunConfig(network=load_network("triangle"), task="digits", strategy="allreduce:every=4", limit_s=300.0)


def run_and_digest(spec: RunConfig, path: str) -> str:
    simulate_run(spec, Path(path))
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


@pytest.mark.parametrize(
    "strategy",
    [
        "allreduce:every=4",
        "allreduce:overlap,best",
        "allreduce:overlap,ahead=shared,codec=int8",
        "diloco:every=8,rate=1,codec=int4",
        "decent",
        "fda",
        "flexible",
        "gossip:aware",
        "gossip:codec=int8",
        "gossip:pushsum",
        "noloco:every=4",
        "powersgd:rank=4",
        "sparseloco:every=4",
        "ssp",
    ],
)
def test_learns_in_bad_weather(tmp_path: Path, strategy: str) -> None:
    spec = dataclasses.replace(SPEC, strategy=strategy)
    simulate_run(spec, tmp_path / "t")
    events = list(read_trace(tmp_path / "t"))
    started = next(event for event in events if isinstance(event, TrainingStarted))
    assert (started.task, started.strategy, started.target, started.parameters) == ("digits", strategy, 0.95, 4810)
    assert events[-1].at < 300
    assert isinstance(events[-1], RunEnded)
    assert events[-1].reason == "target reached"
    assert any(isinstance(event, MeanTested) for event in events)
    assert any(isinstance(event, Exchanged) for event in events)
    tested = [event for event in events if isinstance(event, Tested)]
    assert tested[-1].sent_bytes > 0
    steps = sum(isinstance(event, Computed) for event in events)
    assert steps >= max(event.steps for event in tested)


def test_alone_on_one_label_nobody_arrives(tmp_path: Path) -> None:
    simulate_run(dataclasses.replace(SPEC, strategy="none", shards="label", limit_s=60.0), tmp_path / "t")
    events = list(read_trace(tmp_path / "t"))
    assert isinstance(events[-1], RunEnded)
    assert events[-1].reason == "time limit"
    assert max(event.measure for event in events if isinstance(event, Tested)) < 0.7


def test_one_seed_gives_the_same_bytes_also_in_other_processes(tmp_path: Path) -> None:
    spec = dataclasses.replace(SPEC, strategy="gossip:aware", limit_s=30.0)
    first = run_and_digest(spec, str(tmp_path / "a"))
    assert run_and_digest(spec, str(tmp_path / "b")) == first
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        others = [pool.submit(run_and_digest, spec, str(tmp_path / f"p{n}")) for n in range(2)]
        assert [other.result() for other in others] == [first, first]


def test_the_ideal_is_quicker_than_anything_on_bad_links(tmp_path: Path) -> None:
    simulate_run(
        dataclasses.replace(SPEC, strategy=IDEAL_STRATEGY, role="ideal"),
        tmp_path / "ideal",
    )
    simulate_run(SPEC, tmp_path / "t")
    ideal, real = (list(read_trace(tmp_path / name))[-1].at for name in ("ideal", "t"))
    assert ideal < real


def test_dropout_is_each_nodes_own(tmp_path: Path) -> None:
    """mnist has dropout: two nodes with the same data and model still draw differently, and a seed repeats it all."""
    data = write_small_mnist(tmp_path / "data")
    spec = RunConfig(
        network=load_network("perfect:2"), task="mnist", data=data, strategy="none", limit_s=4.0, shards="iid"
    )
    assert run_and_digest(spec, str(tmp_path / "a")) == run_and_digest(spec, str(tmp_path / "b"))


def test_mnist_is_tested_on_everything_at_the_end(tmp_path: Path) -> None:
    data = write_small_mnist(tmp_path / "data")
    network = load_network("perfect:2")
    simulate_run(RunConfig(network=network, task="mnist", data=data, strategy="none", limit_s=2.0), tmp_path / "t")
    *_, first, second, _, ended = read_trace(tmp_path / "t")
    assert isinstance(ended, RunEnded)
    assert isinstance(first, FinalTested)
    assert isinstance(second, FinalTested)
    assert {first.node, second.node} == set(network.node_names)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_on_a_gpu_one_seed_gives_the_same_bytes_too(tmp_path: Path) -> None:
    data = write_small_mnist(tmp_path / "data")
    spec = RunConfig(
        network=load_network("triangle"), task="mnist", data=data, strategy="gossip", limit_s=8.0, device="cuda"
    )
    assert run_and_digest(spec, str(tmp_path / "a")) == run_and_digest(spec, str(tmp_path / "b"))


def test_selsync_with_its_own_shards(tmp_path: Path) -> None:
    simulate_run(dataclasses.replace(SPEC, strategy="selsync", shards="seldp"), tmp_path / "t")
    assert list(read_trace(tmp_path / "t"))[-1].at < 300


def test_epochs_and_uses_of_examples_are_counted(tmp_path: Path) -> None:
    net = load_network("perfect:5")
    crash = parse_faults('[[fault]]\nkind = "crash"\nnodes = "4"\nat = 0.2', net.node_names)
    found = {}
    for faults in ((), crash):
        spec = RunConfig(
            network=net, task="digits", strategy="none", limit_s=40, stops=False, shards="iid", faults=faults
        )
        simulate_run(spec, tmp_path / "trace")
        events = list(read_trace(tmp_path / "trace"))
        epochs = [event for event in events if isinstance(event, EpochEnded)]
        assert {event.node for event in epochs} == set("01234"[: 4 if faults else 5])
        assert all(event.of - 32 < event.examples <= event.of for event in epochs)
        (found[bool(faults)],) = [event for event in events if isinstance(event, DataUsed)]
    assert (found[False].examples, found[False].used, found[False].least) == (1437, 1437, 4)
    assert found[False].mean == pytest.approx(5 * 80 * 32 / 1437, rel=0.02)
    assert 0.75 < found[True].used / 1437 < 0.85, "nobody has seen what only the node that is gone has"
    result = read_result(tmp_path / "trace")
    assert result is not None
    assert result.data_used == found[True].used / 1437


@pytest.mark.parametrize("quantity", ["parameters", "gradient"])
def test_the_global_batch_can_be_held_while_nodes_are_away(tmp_path: Path, quantity: str) -> None:
    net = load_network("perfect:4")
    script = parse_faults('[[fault]]\nkind = "crash"\nnodes = ["2", "3"]\nat = 10', net.node_names)
    spec = RunConfig(
        network=net,
        task="digits",
        strategy=f"allreduce:steady,quantity={quantity}",
        limit_s=40,
        stops=False,
        faults=script,
        shards="iid",
    )
    simulate_run(spec, tmp_path / "trace")
    events = list(read_trace(tmp_path / "trace"))
    steps = [event for event in events if isinstance(event, Computed) and event.node == "0"]
    assert {event.steps for event in steps if event.at < 10} == {1}
    assert {event.steps for event in steps if event.at > 20} == {2}
    assert [event.at - event.since for event in steps if event.at > 20] == pytest.approx([1.0] * 20, abs=1e-6)

"""Whole runs in the simulated world."""

import dataclasses
import hashlib
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch

from atoll.network import load_network
from atoll.trace import Computed, Exchanged, FinalTested, MeanTested, RunEnded, Tested, TrainingStarted, read_trace
from atoll.train import IDEAL_STRATEGY, RunSpec, simulate
from tests.train.idx import write_small_mnist

SPEC = RunSpec(network=load_network("triangle"), task="digits", strategy="allreduce:every=4", limit_s=300.0)


def run_and_digest(spec: RunSpec, path: str) -> str:
    simulate(spec, Path(path))
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
    simulate(spec, tmp_path / "t")
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
    simulate(dataclasses.replace(SPEC, strategy="none", shards="label", limit_s=60.0), tmp_path / "t")
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
    simulate(
        dataclasses.replace(SPEC, network=SPEC.network.perfected(), strategy=IDEAL_STRATEGY, role="ideal"),
        tmp_path / "ideal",
    )
    simulate(SPEC, tmp_path / "t")
    ideal, real = (list(read_trace(tmp_path / name))[-1].at for name in ("ideal", "t"))
    assert ideal < real


def test_dropout_is_each_nodes_own(tmp_path: Path) -> None:
    """mnist has dropout: two nodes with the same data and model still draw differently, and a seed repeats it all."""
    data = write_small_mnist(tmp_path / "data")
    spec = RunSpec(
        network=load_network("perfect:2"), task="mnist", data=data, strategy="none", limit_s=4.0, shards="iid"
    )
    assert run_and_digest(spec, str(tmp_path / "a")) == run_and_digest(spec, str(tmp_path / "b"))


def test_mnist_is_tested_on_everything_at_the_end(tmp_path: Path) -> None:
    data = write_small_mnist(tmp_path / "data")
    network = load_network("perfect:2")
    simulate(RunSpec(network=network, task="mnist", data=data, strategy="none", limit_s=2.0), tmp_path / "t")
    *_, first, second, ended = read_trace(tmp_path / "t")
    assert isinstance(ended, RunEnded)
    assert isinstance(first, FinalTested)
    assert isinstance(second, FinalTested)
    assert {first.node, second.node} == set(network.node_names)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_on_a_gpu_one_seed_gives_the_same_bytes_too(tmp_path: Path) -> None:
    data = write_small_mnist(tmp_path / "data")
    spec = RunSpec(
        network=load_network("triangle"), task="mnist", data=data, strategy="gossip", limit_s=8.0, device="cuda"
    )
    assert run_and_digest(spec, str(tmp_path / "a")) == run_and_digest(spec, str(tmp_path / "b"))


def test_selsync_with_its_own_shards(tmp_path: Path) -> None:
    simulate(dataclasses.replace(SPEC, strategy="selsync", shards="seldp"), tmp_path / "t")
    assert list(read_trace(tmp_path / "t"))[-1].at < 300

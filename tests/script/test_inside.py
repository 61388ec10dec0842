"""Nodes that are several processes: real processes, real sockets, on loopback."""

import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from atoll.trace import Exchanged, read_trace
from tests.script import assembled
from tests.torchrun import is_torchs_abort

HERE = Path(__file__).parent
TOGETHER_S = 100.0
ENDLESS = "1000000"


@contextmanager
def node(script: Path, log: Path, *arguments: str) -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Two processes that find each other as torchrun's would; whatever is left of them at the end is killed."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    group = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    with log.open("wb") as file:
        processes = [
            subprocess.Popen(
                [sys.executable, str(script), *arguments],
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, **group, "OMP_NUM_THREADS": "1", "RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            for rank in range(2)
        ]
    try:
        yield processes
    finally:
        kill(processes)


def kill(processes: list["subprocess.Popen[bytes]"]) -> None:
    """All at once, as when a machine loses power."""
    for process in processes:
        process.kill()
    for process in processes:
        process.wait()


def assert_ended(processes: list["subprocess.Popen[bytes]"], log: Path) -> None:
    for process in processes:
        ended, told = process.wait(TOGETHER_S), log.read_text()
        assert ended == 0 or (ended == -signal.SIGABRT and is_torchs_abort(told)), told[-3000:]


def together(trace: Path, since: float = 0.0) -> list[Exchanged]:
    """The exchanges that a node had with another one."""
    events = read_trace(trace) if trace.exists() else []
    return [event for event in events if isinstance(event, Exchanged) and event.members == 2 and event.at > since]


def wait_until_together(trace: Path, log: Path) -> None:
    until = time.monotonic() + TOGETHER_S
    while len(together(trace)) < 3:
        assert time.monotonic() < until, log.read_text()[-3000:]
        time.sleep(0.2)


def invitation(log: Path) -> str:
    until = time.monotonic() + TOGETHER_S
    while "invitation:" not in log.read_text():
        assert time.monotonic() < until, log.read_text()
        time.sleep(0.2)
    (line,) = (line for line in log.read_text().splitlines() if line.startswith("invitation:"))
    return line.split()[1]


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_two_nodes_of_two_processes(tmp_path: Path, how: str) -> None:
    """They exchange; one is killed and returns; what they agreed on is the same.

    And they are what one process would be, which is replayed here.
    """
    script, logs = HERE / "assembled.py", [tmp_path / f"{place}.log" for place in range(3)]
    begin = [str(tmp_path), how, "--out", str(tmp_path / "a")]
    with node(script, logs[0], *begin, "--meetings", ENDLESS) as first:
        join = [str(tmp_path), how, "--join", invitation(logs[0])]
        # Each process exchanges its own part where each has one; else the first speaks for both.
        own = [tmp_path / place for place in (("a/0", "a/1") if how == "fsdp" else ("a",))]
        with node(script, logs[1], *join, "--out", str(tmp_path / "b"), "--meetings", ENDLESS) as second:
            for place in own:
                wait_until_together(place / "n0.jsonl", logs[1])
                (theirs,) = (tmp_path / "b" / place.relative_to(tmp_path / "a")).glob("*.jsonl")
                wait_until_together(theirs, logs[1])  # traces are written a few times a second
            kill(second)
        with node(script, logs[2], *join, "--out", str(tmp_path / "c"), "--meetings", "16") as third:
            assert_ended(third, logs[2])
        assert_ended(first, logs[0])
    for place in own:
        (theirs,) = (tmp_path / "b" / place.relative_to(tmp_path / "a")).glob("*.jsonl")
        ours = {event.name: event.digest for event in together(place / "n0.jsonl")}
        both = [event for event in together(theirs) if event.name in ours]
        assert both
        assert all(event.digest == ours[event.name] for event in both)
    one, other = (torch.load(path, weights_only=True) for path in sorted(tmp_path.glob("*.pt")))
    assert_like_one_process(one, other, parts=len(own))


def assert_like_one_process(ours: dict[str, Any], theirs: dict[str, Any], parts: int) -> None:
    """Every step is what one process would make of both processes' batches; every exchange of a part is the mean."""
    for told in (ours, theirs):
        for step in range(len(told["after"]) - 10, len(told["after"]) - 1):
            torch.testing.assert_close(replayed(told, step), told["before"][step + 1], rtol=1e-5, atol=1e-6)
    for part in range(parts):
        meetings = 0
        sides = [
            [(cut(one, part, parts), cut(other, part, parts)) for one, other in pairs(told)] for told in (ours, theirs)
        ]
        for (before, after), (their_before, their_after) in itertools.product(*sides):
            if torch.equal(after, their_after) and not torch.equal(before, after):
                torch.testing.assert_close(after, (before + their_before) / 2, rtol=1e-5, atol=1e-6)
                meetings += 1
        assert meetings >= 2


def pairs(told: dict[str, Any]) -> list[tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]]:
    """The model before and after each exchange, where there was one."""
    both = zip(told["before"], told["after"], strict=True)
    return [(one, other) for one, other in both if any(not torch.equal(one[name], other[name]) for name in one)]


def cut(model: dict[str, torch.Tensor], part: int, parts: int) -> torch.Tensor:
    """What one process has of a model: FSDP2 gives each its share of the rows."""
    return torch.cat([torch.chunk(value, parts)[part].flatten() for value in model.values()])


def replayed(told: dict[str, Any], step: int) -> dict[str, torch.Tensor]:
    """The step after one, by one process."""
    model = assembled.make_model()
    model.load_state_dict(told["after"][step])
    optimizer = torch.optim.SGD(model.parameters(), assembled.RATE)
    batches = [assembled.batch(told["node"], rank, step + 1) for rank in range(2)]
    inputs, targets = (torch.cat(each) for each in zip(*batches, strict=True))
    torch.nn.functional.cross_entropy(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return {name: value.detach() for name, value in model.state_dict().items()}


def test_all_processes_of_a_node_go_on_from_a_checkpoint(tmp_path: Path) -> None:
    """With the optimiser's state, its rates and its schedule: else they would not hold the same model for long."""
    for steps in (5, 10):
        with node(HERE / "resuming.py", tmp_path / "log", str(tmp_path)) as processes:
            assert_ended(processes, tmp_path / "log")
        one, other = (torch.load(tmp_path / f"{steps}.{rank}.pt", weights_only=True) for rank in range(2))
        for told in (one, other):
            assert (told.pop("epoch"), told.pop("step")) == (steps, steps)
            assert told.pop("lr") == pytest.approx(0.01 if steps == 5 else 0.001)
        assert all(torch.equal(one[name], other[name]) for name in one if "running" not in name)
        assert one["module.1.num_batches_tracked"] == steps
    assert [path.name for path in tmp_path.glob("node *")] == ["node 0"]

"""Nodes that are several processes: real torchrun, real sockets, on loopback."""

import itertools
import os
import signal
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

EXAMPLES = Path(__file__).parents[2] / "examples"
ENVIRONMENT = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
TOGETHER_S = 60.0


@contextmanager
def node(script: Path, log: Path, *arguments: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A torchrun group; whatever is left of it at the end is killed."""
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*start, str(script), *arguments], stdout=file, stderr=subprocess.STDOUT, env=ENVIRONMENT
        )
    try:
        yield process
    finally:
        kill(process)


def kill(process: "subprocess.Popen[bytes]") -> None:
    """All at once, as when a machine loses power: torchrun and its workers, which are in sessions of their own."""
    if process.poll() is None:
        workers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        for each in (process.pid, *map(int, workers)):
            os.kill(each, signal.SIGKILL)
        process.wait()


def together(trace: Path, since: float = 0.0) -> list[Exchanged]:
    """The exchanges that a node had with another one."""
    events = read_trace(trace) if trace.exists() else []
    return [event for event in events if isinstance(event, Exchanged) and event.members == 2 and event.at > since]


def wait_until_together(trace: Path, log: Path, since: float = 0.0) -> float:
    until = time.monotonic() + TOGETHER_S
    while len(found := together(trace, since)) < 3:
        assert time.monotonic() < until, log.read_text()[-3000:]
        time.sleep(0.2)
    return found[-1].at


def invitation(log: Path) -> str:
    until = time.monotonic() + TOGETHER_S
    while "invitation:" not in log.read_text():
        assert time.monotonic() < until, log.read_text()
        time.sleep(0.2)
    (line,) = (line for line in log.read_text().splitlines() if line.startswith("invitation:"))
    return line.split()[1]


def assert_agreed(one: Path, other: Path) -> None:
    """What two nodes hold after the rounds that both were in is the same."""
    ours = {event.name: event.digest for event in together(one)}
    both = [event for event in together(other) if event.name in ours]
    assert both
    assert all(event.digest == ours[event.name] for event in both)


def test_two_nodes_of_two_processes(tmp_path: Path) -> None:
    """They exchange; one is killed and returns; what they agreed on is the same, and so are a node's processes."""
    first, second, again = tmp_path / "first.log", tmp_path / "second.log", tmp_path / "again.log"
    ours = tmp_path / "a" / "n0.jsonl"
    begin = ["--listen", "127.0.0.1:0", "--out", str(tmp_path / "a"), "--epochs", "100000"]
    with node(EXAMPLES / "torchrun_ddp.py", first, *begin):
        join = ["--join", invitation(first), "--out", str(tmp_path / "b")]
        with node(EXAMPLES / "torchrun_ddp.py", second, *join, "--epochs", "100000") as process:
            at = wait_until_together(ours, second)
            kill(process)
        join[-1] = str(tmp_path / "c")
        with node(EXAMPLES / "torchrun_ddp.py", again, *join, "--epochs", "12", "--save", str(tmp_path)) as process:
            wait_until_together(ours, again, since=at + 1.0)
            assert process.wait(60) == 0, again.read_text()
    (theirs,) = (tmp_path / "b").glob("*.jsonl")
    assert_agreed(ours, theirs)
    one, other = (torch.load(path, weights_only=True) for path in sorted(tmp_path.glob("*.pt")))
    parameters = [name for name in one if "running" not in name]  # DDP leaves each process its own statistics
    assert all(torch.equal(one[name], other[name]) for name in parameters)


def test_parts_of_a_model_meet_their_like(tmp_path: Path) -> None:
    """FSDP2: each process exchanges the part that it has, and a node that is killed returns."""
    first, second, again = tmp_path / "first.log", tmp_path / "second.log", tmp_path / "again.log"
    small = ["--width", "16", "--layers", "1", "--steps", "1000000"]
    rings = [tmp_path / "a" / str(rank) / "n0.jsonl" for rank in range(2)]
    with node(EXAMPLES / "torchrun_fsdp.py", first, "--listen", "127.0.0.1:0", "--out", str(tmp_path / "a"), *small):
        join = ["--join", invitation(first), "--out", str(tmp_path / "b")]
        with node(EXAMPLES / "torchrun_fsdp.py", second, *join, *small) as process:
            at = max(wait_until_together(ring, second) for ring in rings)
            kill(process)
        join[-1] = str(tmp_path / "c")
        with node(EXAMPLES / "torchrun_fsdp.py", again, *join, *small):
            for ring in rings:
                wait_until_together(ring, again, since=at + 1.0)
    for rank, ring in enumerate(rings):
        (theirs,) = (tmp_path / "b" / str(rank)).glob("*.jsonl")
        assert_agreed(ring, theirs)
    assert {event.digest for event in together(rings[0])}.isdisjoint(event.digest for event in together(rings[1]))


def test_all_processes_of_a_node_go_on_from_a_checkpoint(tmp_path: Path) -> None:
    """With the optimiser's memory too: else they would not hold the same model for long."""
    for steps in (5, 10):
        with node(Path(__file__).with_name("resuming.py"), tmp_path / "log", str(tmp_path)) as process:
            assert process.wait(60) == 0, (tmp_path / "log").read_text()
        one, other = (torch.load(tmp_path / f"{steps}.{rank}.pt", weights_only=True) for rank in range(2))
        assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_a_node_of_two_processes_is_what_one_process_would_be(tmp_path: Path, how: str) -> None:
    """From one exchange to the next, replayed in this process: each node's steps with both processes' batches, and the
    mean of both nodes' models.
    """
    script, first, second = Path(__file__).with_name("assembled.py"), tmp_path / "first.log", tmp_path / "second.log"
    with (
        node(script, first, str(tmp_path), how) as one,
        node(script, second, str(tmp_path), how, "--join", invitation(first)) as other,
    ):
        assert other.wait(100) == 0, second.read_text()[-3000:]
        assert one.wait(100) == 0, first.read_text()[-3000:]
    ours, theirs = (torch.load(path, weights_only=True) for path in sorted(tmp_path.glob("*.pt")))
    meetings = [
        (here, there)
        for here, mine in enumerate(ours["after"])
        for there, yours in enumerate(theirs["after"])
        if changed(ours, here) and changed(theirs, there) and same(mine, yours)
    ]
    replayed = 0
    for (here, there), (next_here, next_there) in itertools.pairwise(meetings):
        if next_here - here == next_there - there == assembled.EVERY:
            means = [replay(each, since) for each, since in ((ours, here), (theirs, there))]
            for name, value in ours["after"][next_here].items():
                torch.testing.assert_close(value, (means[0][name] + means[1][name]) / 2, rtol=1e-5, atol=1e-6)
            replayed += 1
    assert replayed > 0, meetings


def changed(told: dict[str, Any], step: int) -> bool:
    """Whether there was an exchange after a step."""
    return not same(told["before"][step], told["after"][step])


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(value, other[name]) for name, value in one.items())


def replay(told: dict[str, Any], since: int) -> dict[str, torch.Tensor]:
    """The steps of a node after one exchange until the next, by one process."""
    model = assembled.make_model()
    model.load_state_dict(told["after"][since])
    optimizer = torch.optim.SGD(model.parameters(), assembled.RATE)
    for step in range(since + 1, since + 1 + assembled.EVERY):
        batches = [assembled.batch(told["node"], rank, step) for rank in range(2)]
        inputs, targets = (torch.cat(each) for each in zip(*batches, strict=True))
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    return model.state_dict()

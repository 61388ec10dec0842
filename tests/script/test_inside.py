"""Nodes that are several processes: real torchrun, real sockets, on loopback."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from atoll.trace import Exchanged, read_trace

EXAMPLE = Path(__file__).parents[2] / "examples" / "torchrun_ddp.py"
ENVIRONMENT = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
TOGETHER_S = 60.0


@contextmanager
def node(log: Path, *arguments: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A torchrun group; whatever is left of it at the end is killed."""
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(EXAMPLE)]
    with log.open("wb") as file:
        process = subprocess.Popen([*start, *arguments], stdout=file, stderr=subprocess.STDOUT, env=ENVIRONMENT)
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


def test_two_nodes_of_two_processes(tmp_path: Path) -> None:
    """They exchange; one is killed and returns; what they agreed on is the same, and so are a node's processes."""
    first, second, again = tmp_path / "first.log", tmp_path / "second.log", tmp_path / "again.log"
    begin = ["--listen", "127.0.0.1:0", "--out", str(tmp_path / "a"), "--epochs", "100000"]
    with node(first, *begin):
        until = time.monotonic() + TOGETHER_S
        while "invitation:" not in first.read_text():
            assert time.monotonic() < until, first.read_text()
            time.sleep(0.2)
        (line,) = (line for line in first.read_text().splitlines() if line.startswith("invitation:"))
        join = ["--join", line.split()[1], "--out", str(tmp_path / "b")]
        with node(second, *join, "--epochs", "100000") as process:
            at = wait_until_together(tmp_path / "a" / "n0.jsonl", second)
            kill(process)
        join[-1] = str(tmp_path / "c")
        with node(again, *join, "--epochs", "12", "--save", str(tmp_path)) as process:
            wait_until_together(tmp_path / "a" / "n0.jsonl", again, since=at + 1.0)
            assert process.wait(60) == 0, again.read_text()
    (theirs,) = (tmp_path / "b").glob("*.jsonl")
    ours = {event.name: event.digest for event in together(tmp_path / "a" / "n0.jsonl")}
    agreed = [event for event in together(theirs) if event.name in ours]
    assert agreed
    assert all(event.digest == ours[event.name] for event in agreed)
    one, other = (torch.load(path) for path in sorted(tmp_path.glob("*.pt")))
    parameters = [name for name in one if "running" not in name]  # DDP leaves each process its own statistics
    assert all(torch.equal(one[name], other[name]) for name in parameters)

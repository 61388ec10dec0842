"""Real nodes for benchmarks/defects.py: processes on one machine that find each other over loopback, what they wrote,
and what was done to them.
"""

import itertools
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from atoll.trace import Event, Exchanged, Joined, Tested, read_trace

ROOT = Path(__file__).parents[1]
E = TypeVar("E", bound=Event)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def wait_for(what: str, check: Callable[[], object], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not check():
        if time.monotonic() > end:
            raise TimeoutError(f"after {seconds:.0f} s: {what} has not happened")
        time.sleep(0.1)


@dataclass
class Life:
    """A process, from its start to its end."""

    node: str
    number: int
    folder: Path
    process: "subprocess.Popen[bytes]"
    began: float
    ended: float | None = None
    why: str = ""
    """How it ended, if by itself."""

    @property
    def log(self) -> Path:
        return self.folder / "log.jsonl"

    def said(self, what: str) -> list[dict[str, Any]]:
        """Whole lines of its log that are about this."""
        text = self.log.read_text() if self.log.exists() else ""
        lines = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return [line for line in lines if line["what"] == what]

    @property
    def printed(self) -> str:
        return (self.folder / "printed.txt").read_text()

    def recorded(self, *kinds: type[E]) -> list[E]:
        """Events of its trace; its node may have had any name."""
        paths = sorted((self.folder / "out").glob("*.jsonl"))
        written = [path for path in paths if b"\n" in path.read_bytes()[:1000]]
        return [event for path in written for event in read_trace(path) if isinstance(event, kinds)]

    def offset(self) -> float:
        """What to add to a time in its trace to have the machine's own clock."""
        pairs = zip(self.said("measured"), self.recorded(Tested), strict=False)
        return float(median([line["t"] - event.at for line, event in pairs] or [0.0]))

    def exchanges(self, members: int = 2) -> list[float]:
        """When it took what came of an exchange with others, by the machine's own clock."""
        offset = self.offset()
        return [event.at + offset for event in self.recorded(Exchanged) if event.members >= members]

    def model_since(self) -> float | None:
        """When its model was first the run's: it was handed over, or there was an exchange."""
        offset = self.offset()
        joined = [event.at + offset for event in self.recorded(Joined)]
        return min(joined + self.exchanges(), default=None)


@dataclass
class Nodes:
    """Processes by the name of their machine, and what was done to them."""

    folder: Path
    command: list[str]
    """What every node runs; a node's own arguments come behind."""
    logs: bool = True
    """Whether it writes a log of its own."""
    lives: list[Life] = field(default_factory=list)
    done: list[tuple[float, str, str]] = field(default_factory=list)
    """When, to whom, what."""

    def start(self, node: str, *arguments: str, what: str = "starts") -> Life:
        number = 1 + sum(life.node == node for life in self.lives)
        folder = self.folder / f"{node}-{number}"
        folder.mkdir(parents=True)
        logs = ["--log", str(folder / "log.jsonl")] if self.logs else []
        command = [*self.command, *arguments, *logs, "--out", str(folder / "out")]
        paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        with (folder / "printed.txt").open("wb") as printed:
            process = subprocess.Popen(command, cwd=folder, stdout=printed, stderr=printed, env=environment)
        life = Life(node, number, folder, process, time.monotonic())
        self.lives.append(life)
        self._note(node, what)
        return life

    def last(self, node: str) -> Life:
        return [life for life in self.lives if life.node == node][-1]

    def signal(self, node: str, number: signal.Signals, what: str) -> None:
        life = self.last(node)
        if life.process.poll() is None:
            life.process.send_signal(number)
            self._note(node, what)

    def kill(self, node: str, what: str = "is killed (-9)") -> None:
        life = self.last(node)
        if life.ended is not None:
            return
        life.process.kill()
        life.process.wait()
        life.ended = time.monotonic()
        self._note(node, what)

    def look(self) -> None:
        """Notes who has ended by itself."""
        for life in self.lives:
            if life.ended is None and life.process.poll() is not None:
                life.ended = time.monotonic()
                last = ([line for line in life.printed.splitlines() if line.strip()] or ["?"])[-1]
                life.why = last.removeprefix("atoll.errors.")
                self._note(life.node, f"ends: {life.why}")

    def sleep(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(0.2, left))
            self.look()

    def until(self, node: str, what: str, seconds: float = 60.0) -> None:
        """Waits, for a while, until a node has said something, or has ended."""
        life, end = self.last(node), time.monotonic() + seconds
        while time.monotonic() < end and life.ended is None and not life.said(what):
            self.sleep(0.2)

    def _note(self, node: str, what: str) -> None:
        self.done.append((time.monotonic(), node, what))
        print(f"{time.strftime('%H:%M:%S')} {node} {what}", flush=True)


@contextmanager
def nodes(folder: Path, command: list[str], *, logs: bool = True) -> Iterator[Nodes]:
    """Whatever happens, no process is left."""
    made = Nodes(folder, command, logs)
    try:
        yield made
    finally:
        for life in made.lives:
            if life.process.poll() is None:
                life.process.send_signal(signal.SIGCONT)
                life.process.kill()
            life.process.wait()
            life.ended = life.ended or time.monotonic()


def longest_gap(times: list[float], start: float, stop: float) -> float:
    inside = [start, *(each for each in sorted(times) if start < each < stop), stop]
    return max(later - earlier for earlier, later in itertools.pairwise(inside))

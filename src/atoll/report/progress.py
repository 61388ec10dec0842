"""How far runs are, read from their traces while they are written."""

import json
from pathlib import Path
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

__all__ = ["RunsProgress", "TraceTail"]


class TraceTail:
    """Follows a trace that is being written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self.now = 0.0
        self.latest: dict[str, float] = {}

    def look(self) -> None:
        """Reads the complete lines that have come since."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                news = file.read()
        except FileNotFoundError:
            return
        complete = news.rfind(b"\n") + 1
        self._offset += complete
        for line in news[:complete].splitlines():
            if b'"kind":"tested"' in line:
                event = json.loads(line)
                self.now = event["at"]
                self.latest[event["node"]] = event["measure"]


class RunsProgress:
    """A bar a run: virtual time, the nodes' mean measure, and the fastest so far."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}", table_column=None),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[told]}"),
            console=console,
            transient=True,
        )
        self._tails: dict[Path, tuple[TaskID, TraceTail]] = {}
        self.fastest: tuple[float, str] | None = None

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def add(self, path: Path, label: str, limit_s: float) -> None:
        """A run whose trace will be at `path`."""
        task = self._progress.add_task(label, total=limit_s, told="waits", visible=False)
        self._tails[path] = task, TraceTail(path)

    def update(self) -> None:
        for task, tail in self._tails.values():
            tail.look()
            if tail.latest:
                mean = sum(tail.latest.values()) / len(tail.latest)
                told = f"{tail.now:7.1f} s  {mean:.3f}"
                if self.fastest:
                    told += f"  (fastest so far: {self.fastest[1]}, {self.fastest[0]:.1f} s)"
                self._progress.update(task, completed=tail.now, told=told, visible=True)

    def done(self, path: Path, seconds: float | None, strategy: str) -> None:
        """A run has ended, with the target after so many seconds or without it."""
        task, _ = self._tails.pop(path)
        self._progress.remove_task(task)
        if seconds is not None and (self.fastest is None or seconds < self.fastest[0]):
            self.fastest = seconds, strategy

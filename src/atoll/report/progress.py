"""How far runs are, read from their traces while they are written."""

from pathlib import Path
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from atoll.report.board import RunBoard
from atoll.trace import Event, Tested, TraceTail

__all__ = ["RunsProgress"]


class _Run:
    """A run that is under way."""

    def __init__(self, task: TaskID, path: Path, kinds: tuple[type[Event], ...]) -> None:
        self.task = task
        self.tail = TraceTail(path, *kinds)
        self.board = RunBoard()
        self.latest: dict[str, float] = {}

    def look(self) -> None:
        for event in self.tail.look():
            self.board.watch(event)
            if isinstance(event, Tested):
                self.latest[event.node] = event.measure


class RunsProgress:
    """A bar a run: its time, the nodes' mean measure, and the fastest so far.

    Args:
        console: where to show it.
        board: whether to show all nodes of a run, while just one is under way.
    """

    def __init__(self, console: Console, *, board: bool = False) -> None:
        self._board = board
        self._progress = Progress(
            TextColumn("{task.description}", table_column=None),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[told]}"),
            console=console,
        )
        self._live = Live(self, console=console, transient=True, refresh_per_second=4)
        self._runs: dict[Path, _Run] = {}
        self.fastest: tuple[float, str] | None = None

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def __rich__(self) -> RenderableType:
        under_way = [run for run in self._runs.values() if run.board.now > 0]
        return Group(self._progress, under_way[0].board) if self._board and len(under_way) == 1 else self._progress

    def add(self, path: Path, label: str, limit_s: float) -> None:
        """A run whose trace will be at `path`."""
        task = self._progress.add_task(label, total=limit_s, told="waits", visible=False)
        self._runs[path] = _Run(task, path, RunBoard.KINDS if self._board else (Tested,))

    def update(self) -> None:
        for run in self._runs.values():
            run.look()
            if run.board.now > 0:
                mean = f"  {sum(run.latest.values()) / len(run.latest):.3f}" if run.latest else ""
                told = f"{run.board.now:7.1f} s{mean}"
                if self.fastest:
                    told += f"  (fastest so far: {self.fastest[1]}, {self.fastest[0]:.1f} s)"
                self._progress.update(run.task, completed=run.board.now, told=told, visible=True)

    def done(self, path: Path, seconds: float | None, strategy: str) -> None:
        """A run has ended, with the target after so many seconds or without it."""
        self._progress.remove_task(self._runs.pop(path).task)
        if seconds is not None and (self.fastest is None or seconds < self.fastest[0]):
            self.fastest = seconds, strategy

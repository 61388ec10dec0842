"""The progress of runs, read from their traces while they are written: bars in a terminal, else lines of a log."""

from pathlib import Path
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from atoll.report.board import RunBoard
from atoll.trace import Event, Tested, TraceTail

__all__ = ["RunsProgress"]

LINE_EVERY_S = 10.0
"""The interval between two lines of a log."""
MOST_RUNS = 4
"""The most runs in a line of a log."""


class _Run:
    """A run in progress."""

    def __init__(self, task: TaskID, label: str, path: Path, kinds: tuple[type[Event], ...]) -> None:
        self.task = task
        self.label = label
        self.tail = TraceTail(path, *kinds)
        self.board = RunBoard()
        self.latest: dict[str, float] = {}

    def look(self) -> None:
        for event in self.tail.look():
            self.board.watch(event)
            if isinstance(event, Tested):
                self.latest[event.node] = event.measure

    @property
    def mean(self) -> str:
        """The mean of the nodes' latest measures, if there are any."""
        return f"  {sum(self.latest.values()) / len(self.latest):.3f}" if self.latest else ""


class RunsProgress:
    """A bar for each run: its time, the nodes' mean measure, and the fastest so far.  If the console is no terminal, a
    line for each run that ends, and one every ten seconds about the others.

    Args:
        console: shows the progress; its clock sets when another line is due.
        board: whether to show all nodes of a run, while only one is in progress.
    """

    def __init__(self, console: Console, *, board: bool = False) -> None:
        self._console = console
        self._board = board
        self._progress = Progress(
            TextColumn("{task.description}", table_column=None),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[told]}"),
            console=console,
        )
        self._live = Live(self, console=console, transient=True, refresh_per_second=4)
        self._runs: dict[Path, _Run] = {}
        self._total = self._ended = 0
        self._line_s = console.get_time()
        self.fastest: tuple[float, str] | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def __rich__(self) -> RenderableType:
        under_way = [run for run in self._runs.values() if run.board.now > 0]
        return Group(self._progress, under_way[0].board) if self._board and len(under_way) == 1 else self._progress

    def add(self, path: Path, label: str, limit_s: float) -> None:
        """Adds a run whose trace will be at `path`."""
        task = self._progress.add_task(label, total=limit_s, told="waiting", visible=False)
        self._total += 1
        self._runs[path] = _Run(task, label, path, RunBoard.KINDS if self._board else (Tested,))

    def update(self) -> None:
        for run in self._runs.values():
            run.look()
            if run.board.now > 0:
                told = f"{run.board.now:7.1f} s{run.mean}"
                if self.fastest:
                    told += f"  (fastest so far: {self.fastest[1]}, {self.fastest[0]:.1f} s)"
                self._progress.update(run.task, completed=run.board.now, told=told, visible=True)
        now = self._console.get_time()
        if not self._console.is_terminal and now - self._line_s >= LINE_EVERY_S:
            self._line_s = now
            self._say_how_far()

    def _say_how_far(self) -> None:
        under_way = [run for run in self._runs.values() if run.board.now > 0]
        told = [f"{run.label} at {run.board.now:.1f} s{run.mean}" for run in under_way[:MOST_RUNS]]
        told += [f"{len(under_way) - MOST_RUNS} more"] if len(under_way) > MOST_RUNS else []
        self._print(f"{self._ended} of {self._total} runs done; {'; '.join(told) or 'the next ones are starting'}")

    def _print(self, line: str, style: str | None = None) -> None:
        self._console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)

    def failed(self, path: Path, told: str) -> None:
        """Removes a failed run; `told` says which one and why."""
        self._progress.remove_task(self._runs.pop(path).task)
        self._ended += 1
        self._print(f"Failed: {told}", style="red")

    def done(self, path: Path, seconds: float | None, strategy: str | None) -> None:
        """Removes a run that has ended, with the seconds to its target, if it was reached.  `strategy` is given if the
        run is compared with others.
        """
        run = self._runs.pop(path)
        self._progress.remove_task(run.task)
        self._ended += 1
        if not self._console.is_terminal:
            reached = "target not reached" if seconds is None else f"target reached after {seconds:.1f} s"
            self._print(f"{self._ended} of {self._total} runs done: {run.label}: {reached}")
        if strategy is not None and seconds is not None and (self.fastest is None or seconds < self.fastest[0]):
            self.fastest = seconds, strategy

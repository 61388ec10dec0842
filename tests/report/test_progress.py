import io
from pathlib import Path

from rich.console import Console

from atoll.report.progress import RunsProgress
from atoll.trace import Tested, Trace


def test_bars_and_the_fastest() -> None:
    with RunsProgress(Console(file=io.StringIO())) as progress:
        progress.add(Path("a"), "slow, seed 0", 10)
        progress.add(Path("b"), "quick, seed 0", 10)
        progress.update()
        progress.done(Path("a"), 7.0, "slow")
        progress.done(Path("b"), 5.0, "quick")
        assert progress.fastest == (5.0, "quick")


def test_a_board_of_the_only_run(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=150)
    with Trace(tmp_path / "a.jsonl") as trace, RunsProgress(console, board=True) as progress:
        progress.add(tmp_path / "a.jsonl", "run", 10)
        trace.record(Tested(at=1.0, node="x", steps=5, measure=0.5, sent_bytes=0))
        trace.flush()
        progress.update()
        console.print(progress)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "accuracy 50.0%" in shown


def test_without_a_terminal_there_are_lines(tmp_path: Path) -> None:
    """One for each run that ends, one every ten seconds, and no control codes of a terminal."""
    clock = [0.0]
    console = Console(file=io.StringIO(), width=40, get_time=lambda: clock[-1])
    with RunsProgress(console) as progress:
        for name in ("a", "b"):
            progress.add(tmp_path / f"{name}.jsonl", f"{name}, seed 0", 100)
        with Trace(tmp_path / "a.jsonl") as trace:
            trace.record(Tested(at=3.0, node="x", steps=5, measure=0.5, sent_bytes=0))
        for now in (1.0, 9.0, 10.0, 11.0, 20.5):
            clock.append(now)
            progress.update()
        progress.done(tmp_path / "a.jsonl", 7.0, "a")
        progress.failed(tmp_path / "b.jsonl", "b, seed 0: ValueError: wrong")
    shown = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    how_far = "0 of 2 runs done; a, seed 0 at 3.0 s  0.500"
    assert shown == [
        how_far,
        how_far,
        "1 of 2 runs done: a, seed 0: target reached after 7.0 s",
        "Failed: b, seed 0: ValueError: wrong",
    ]


def test_in_a_terminal_there_are_bars_and_no_lines(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, get_time=lambda: 100.0)
    with RunsProgress(console) as progress:
        progress.add(tmp_path / "a.jsonl", "a, seed 0", 100)
        progress.done(tmp_path / "a.jsonl", None, "a")
    assert "runs done" not in console.file.getvalue()  # type: ignore[attr-defined]

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

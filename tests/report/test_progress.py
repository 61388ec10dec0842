import io
from pathlib import Path

from rich.console import Console

from atoll.report.progress import RunsProgress


def test_bars_and_the_fastest() -> None:
    with RunsProgress(Console(file=io.StringIO())) as progress:
        progress.add(Path("a"), "slow, seed 0", 10)
        progress.add(Path("b"), "quick, seed 0", 10)
        progress.update()
        progress.done(Path("a"), 7.0, "slow")
        progress.done(Path("b"), 5.0, "quick")
        assert progress.fastest == (5.0, "quick")

import io
from pathlib import Path

from rich.console import Console

from atoll.report.progress import RunsProgress, TraceTail
from atoll.trace import Tested, Trace


def test_a_tail_reads_whole_lines_as_they_come(tmp_path: Path) -> None:
    tail = TraceTail(tmp_path / "t")
    tail.look()  # not there yet
    assert tail.latest == {}
    with Trace(tmp_path / "t") as trace:
        trace.record(Tested(at=1.0, node="a", steps=1, measure=0.5, sent_bytes=0))
        trace.flush()
        tail.look()
        assert (tail.now, tail.latest) == (1.0, {"a": 0.5})
        with (tmp_path / "t").open("a") as torn:
            torn.write('{"kind":"tested","at":2.0')
        tail.look()
        assert tail.now == 1.0


def test_bars_and_the_fastest() -> None:
    with RunsProgress(Console(file=io.StringIO())) as progress:
        progress.add(Path("a"), "slow, seed 0", 10)
        progress.add(Path("b"), "quick, seed 0", 10)
        progress.update()
        progress.done(Path("a"), 7.0, "slow")
        progress.done(Path("b"), 5.0, "quick")
        assert progress.fastest == (5.0, "quick")

from pathlib import Path

import pytest

from atoll.errors import MissingExtra
from atoll.report import tensorboard
from atoll.trace import Computed, Exchanged, Tested, Trace, Waited


def test_scalars(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: PLC0415

    path = tmp_path / "run.jsonl"
    with Trace(path) as trace:
        for step in range(4):
            trace.record(Computed(at=step + 0.5, node="a", since=float(step), steps=1))
        trace.record(Waited(at=5.0, node="a", since=4.5, why="exchange"))
        trace.record(Exchanged(at=5.0, node="a", name="round 0", via="ring", since=4.0, members=3, late=False))
        trace.record(Tested(at=6.0, node="b", steps=4, measure=0.25, sent_bytes=7))
    assert tensorboard.write_scalars([path], tmp_path / "board") == 2
    found = EventAccumulator(str(tmp_path / "board" / "run" / "a"))
    found.Reload()
    assert [(each.step, each.value) for each in found.Scalars("time/exchange")] == [(4, 1.0)]
    assert len(found.Scalars("time/step")) == 4
    other = EventAccumulator(str(tmp_path / "board" / "run" / "b"))
    other.Reload()
    assert other.Scalars("measure")[0].value == 0.25


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch.utils.tensorboard", None)
    with pytest.raises(MissingExtra, match=r"pip install 'atoll\[tensorboard\]'"):
        tensorboard.write_scalars([], tmp_path)

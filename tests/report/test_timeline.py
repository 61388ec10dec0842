import io
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgba

from atoll.config import RunConfig
from atoll.network import load_network
from atoll.report.timeline import timelines
from atoll.runs import simulate_run
from atoll.trace import Event, Exchanged, LinkChanged, Planned, RunEnded, RunStarted, Transferred, read_trace


def run(events: list[Event], *links: str) -> list[Event]:
    started = RunStarted(at=0.0, atoll="0", world="sim", network="n", nodes=("a", "b"), links=links, seed=0)
    return [started, *events, RunEnded(at=10.0, reason="finished")]


@pytest.mark.parametrize(("strategy", "pictures"), [("flexible", 2), ("allreduce:every=4", 1)])
def test_decisions_are_drawn_where_there_are_any(tmp_path: Path, strategy: str, pictures: int) -> None:
    trace = tmp_path / "trace.jsonl"
    simulate_run(RunConfig(network=load_network("flexible-c1"), task="digits", strategy=strategy, limit_s=8), trace)
    drawn = timelines(list(read_trace(trace)), 8)
    assert len(drawn) == pictures
    if pictures == 2:
        ratios, seconds = drawn[1].axes
        legend = ratios.get_legend()
        assert legend is not None
        assert {text.get_text() for text in legend.get_texts()} <= {
            "own",
            "gather",
            "direct",
            "ring",
            "tree",
            "hd",
            "star",
        }
        took, expected = (np.asarray(line.get_ydata()) for line in seconds.get_lines())
        assert took.size == expected.size > 5


@pytest.mark.parametrize(("seconds", "took"), [(0.0, 1.0), (1.0, 0.0)])
def test_decisions_without_a_positive_time_are_drawn(seconds: float, took: float) -> None:
    """Nothing was expected, or exchanges took no time: neither fits a logarithmic axis."""
    events: list[Event] = []
    for place in range(5):
        name, at = f"round {place}", 1.0 + place
        events.append(Planned(at=at, node="a", name=name, via="direct", ratio=0.01, seconds=seconds, why=""))
        events.append(Exchanged(at=at + took, node="a", name=name, members=2, via="direct", since=at, late=False))
    for figure in timelines(run(events), 10.0):
        figure.savefig(io.BytesIO(), format="svg")


def test_a_link_that_is_down_is_not_in_use() -> None:
    """A transfer begins, is interrupted by an outage, and goes on afterwards; a short one lies within the outage."""
    events: list[Event] = [
        LinkChanged(at=2.0, link="a~b", up=False),
        Transferred(at=4.0, sender="b", receiver="a", channel="x", bytes=1, since=3.0, began=3.0),
        LinkChanged(at=5.0, link="a~b", up=True),
        Transferred(at=6.0, sender="a", receiver="b", channel="x", bytes=1, since=1.0, began=1.0),
        LinkChanged(at=6.001, link="a~b", up=False),  # shorter than what is drawn as one
        LinkChanged(at=6.002, link="a~b", up=True),
        Transferred(at=7.0, sender="a", receiver="b", channel="x", bytes=1, since=6.003, began=6.003),
    ]
    [figure] = timelines(run(events, "a~b"), 10.0)
    colours = [np.asarray(each.get_facecolor())[0] for each in figure.axes[0].collections]
    [in_use] = [
        each
        for each, colour in zip(figure.axes[0].collections, colours, strict=True)
        if np.allclose(colour, to_rgba("#2a6f97"))
    ]
    spans = [(path.get_extents().x0, path.get_extents().x1) for path in in_use.get_paths()]
    assert [(round(start, 3), round(stop, 3)) for start, stop in spans] == [(1, 2), (5, 6.001), (6.002, 7)]

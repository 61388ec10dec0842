from pathlib import Path

import numpy as np
import pytest

from atoll.network import load_network
from atoll.report.timeline import timelines
from atoll.train import RunSpec, simulate


@pytest.mark.parametrize(("strategy", "pictures"), [("flexible", 2), ("allreduce:every=4", 1)])
def test_decisions_are_drawn_where_there_are_any(tmp_path: Path, strategy: str, pictures: int) -> None:
    trace = tmp_path / "trace.jsonl"
    simulate(RunSpec(network=load_network("flexible-c1"), task="digits", strategy=strategy, limit_s=8), trace)
    drawn = timelines(trace, 8)
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

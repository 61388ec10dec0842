import math
from pathlib import Path

import pytest
from scipy import stats

from atoll.errors import TraceError
from atoll.report.results import Comparison, read_folder, read_result, t_quantile
from atoll.trace import Event, MeanTested, RunEnded, RunStarted, Tested, Trace, TrainingStarted, Waited
from tests.report.runs import small_comparison


def write(path: Path, events: list[Event]) -> Path:
    with Trace(path) as trace:
        trace.record(RunStarted(at=0.0, atoll="0", world="sim", network="n", nodes=("a", "b", "c"), links=(), seed=7))
        trace.record(
            TrainingStarted(
                at=0.0, task="t", strategy="s", role="strategy", shards="iid", target=0.9, rising=True, parameters=3
            )
        )
        for event in events:
            trace.record(event)
    return path


def a_test(at: float, node: str, measure: float, *counts: int) -> Tested:
    return Tested(
        at=at, node=node, steps=counts[0] if counts else 1, measure=measure, sent_bytes=counts[1] if counts else 0
    )


def test_arrival_is_half_of_the_nodes_at_one_time(tmp_path: Path) -> None:
    events: list[Event] = [
        a_test(1, "a", 0.95, 10, 100),
        a_test(2, "a", 0.5, 20, 150),  # it has lost it again
        a_test(3, "b", 0.92, 21, 200),
        MeanTested(at=3.5, measure=0.91),
        a_test(4, "a", 0.93, 30, 300),
        Waited(at=4.0, node="a", since=1.0, why="x"),
        Waited(at=6.0, node="b", since=3.0, why="x"),
        a_test(6, "c", 0.97, 31, 900),
        RunEnded(at=7.0, reason="target reached"),
    ]
    result = read_result(write(tmp_path / "t", events))
    assert result is not None
    assert (result.any_seconds, result.seconds_to_target, result.all_seconds, result.mean_model_seconds) == (
        1,
        4,
        6,
        3.5,
    )
    assert result.bytes_sent == 500  # of a and b until then; c had said nothing
    assert result.steps_to_target == pytest.approx((30 + 21) / 2)
    assert result.waiting_share == pytest.approx((3 + 1) / 12)
    assert result.best == 0.97
    assert result.seed == 7


def test_who_does_not_arrive_is_never_left_out(tmp_path: Path) -> None:
    arrived = read_result(write(tmp_path / "a", [a_test(1, "a", 1), a_test(2, "b", 1), RunEnded(at=3.0, reason="")]))
    never = read_result(write(tmp_path / "b", [a_test(1, "a", 0.1), RunEnded(at=3.0, reason="")]))
    assert arrived is not None
    assert never is not None
    [row] = Comparison.of([arrived, never]).rows()
    assert (row.reached, row.seconds, row.ratio) == (1, None, None)


def test_an_unfinished_run_has_no_result(tmp_path: Path) -> None:
    assert read_result(write(tmp_path / "t", [a_test(1, "a", 1)])) is None


def test_intervals_and_ratios() -> None:
    comparison = read_folder(small_comparison())
    first, last = comparison.rows()
    assert first.strategy == "allreduce:every=4"
    assert last.strategy == "none"
    times = [run.seconds_to_target for run in first.runs]
    assert None not in times
    assert first.seconds == pytest.approx(sum(time or 0 for time in times) / 2)
    half_spread = abs((times[0] or 0) - (times[1] or 0)) / 2
    assert first.interval == pytest.approx(12.706 * half_spread * math.sqrt(2) / math.sqrt(2), rel=1e-3)
    assert first.ideal_seconds is not None
    assert first.ratio == pytest.approx((first.seconds or 0) / first.ideal_seconds)


def test_json_has_what_it_promises() -> None:
    told = read_folder(small_comparison()).as_json()
    assert (told["network"], told["task"], told["target"]) == ("triangle", "digits", 0.95)
    assert len(told["results"]) == 4
    keys = {
        "strategy",
        "seed",
        "seconds_to_target",
        "ideal_seconds",
        "steps_to_target",
        "bytes_sent",
        "waiting_share",
        "best_accuracy",
    }
    assert all(keys <= set(result) for result in told["results"])
    missed = [result for result in told["results"] if result["strategy"] == "none"]
    assert all(result["seconds_to_target"] is None for result in missed)


def test_folders_without_results(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="expected traces"):
        read_folder(tmp_path)
    write(tmp_path / "t.jsonl", [])
    with pytest.raises(TraceError, match="none of its 1 traces is of a finished run"):
        read_folder(tmp_path)


@pytest.mark.parametrize("freedom", [*range(1, 12), 30, 99, 1000])
@pytest.mark.parametrize("share", [0.5, 0.9, 0.975, 0.995])
def test_quantiles_of_t_are_those_of_scipy(share: float, freedom: int) -> None:
    assert t_quantile(share, freedom) == pytest.approx(stats.t.ppf(share, freedom), rel=1e-9, abs=1e-9)

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from atoll.compare import ComparisonPlan, compare, simulate
from atoll.config import RunConfig
from atoll.errors import ConfigError, StrategyError, TaskError
from atoll.network import load_network
from atoll.report.page import write_page
from atoll.report.results import read_folder
from atoll.report.tables import comparison_table
from atoll.training import load_task


def plan(**changes: Any) -> ComparisonPlan:
    which = {name: changes.pop(name) for name in ("strategies", "seeds") if name in changes}
    settings: dict[str, Any] = {"network": load_network("triangle"), "shards": "iid", "limit_s": 30.0, **changes}
    which = {"strategies": ("allreduce:every=4", "none"), "seeds": (0, 1), **which}
    return ComparisonPlan(base=RunConfig(**settings), **which)


def test_runs_everything_and_keeps_the_traces(tmp_path: Path) -> None:
    (tmp_path / "old.jsonl").write_text("of an earlier comparison")
    found = compare(plan(), tmp_path, jobs=2, console=Console(file=io.StringIO()))
    assert {run.role for run in found.results} >= {"ideal", "strategy"}
    assert len([run for run in found.results if run.role == "strategy"]) == 4
    assert {path.name for path in tmp_path.glob("*.jsonl")} == {run.path.name for run in found.results}


def break_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A strategy that nobody knows then fails when it runs."""
    monkeypatch.setattr(ComparisonPlan, "check", lambda _: None)
    monkeypatch.setattr(RunConfig, "__post_init__", lambda _: None)


def test_one_failed_run_does_not_discard_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is shown with its seed and the reason, here and in every later report."""
    break_checks(monkeypatch)
    told = io.StringIO()
    found = compare(
        plan(strategies=("allreduce:every=4", "unheard-of"), limit_s=5.0), tmp_path, jobs=2, console=Console(file=told)
    )
    assert [run.seed for run in found.results if run.role == "strategy"] == [0, 1]
    assert sorted((each.strategy, each.seed) for each in found.failures) == [("unheard-of", 0), ("unheard-of", 1)]
    again = read_folder(tmp_path)
    assert set(again.failures) == set(found.failures)
    for comparison in (found, again):
        with (console := Console(width=150, file=io.StringIO())).capture() as shown:
            console.print(comparison_table(comparison))
        assert "allreduce:every=4" in shown.get()
        assert "Failed: unheard-of, seed 1: there is no strategy 'unheard-of'" in shown.get()
        write_page(comparison, tmp_path / "report.html")
        assert "Failed: unheard-of, seed 1" in (tmp_path / "report.html").read_text()
        assert len(comparison.as_json()["failures"]) == 2
    assert "Failed: unheard-of, seed 0: there is no strategy" in told.getvalue()


def test_where_every_run_fails_the_error_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    break_checks(monkeypatch)
    with pytest.raises(StrategyError, match="there is no strategy 'unheard-of'"):
        compare(
            plan(strategies=("unheard-of",), seeds=(0,), limit_s=2.0),
            tmp_path,
            jobs=1,
            console=Console(file=io.StringIO()),
        )


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"strategies": ("allreduce:evry=4",)}, StrategyError),
        ({"shards": "idd"}, TaskError),
        ({"task": "digist"}, TaskError),
        ({"task": "mnist"}, TaskError),
        ({"islands": "0+9"}, TaskError),
        ({"islands": "auto:memory=1kB"}, TaskError),
        ({"islands": "auto", "script": ("train.py",), "world": "emulate"}, ConfigError),
    ],
)
def test_mistakes_are_found_before_anything_runs(
    tmp_path: Path, changes: dict[str, object], error: type[Exception]
) -> None:
    with pytest.raises(error):
        compare(plan(**changes), tmp_path / "out", jobs=1, console=Console(file=io.StringIO()))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("network", "task", "trained"),
    [("odticn-9", "mnist", "mnist-plain"), ("odticn-9", "digits", "digits"), ("nine", "mnist", "mnist")],
)
def test_odticns_networks_train_mnist_as_odticn_did(network: str, task: str, trained: str) -> None:
    assert RunConfig(network=load_network(network), task=task).task == trained


def test_a_task_of_ones_own() -> None:
    found = simulate(load_task("digits"), "triangle", ["allreduce:every=4", "none"], shards="iid", limit_s=40.0)
    assert set(found.seconds) == {"allreduce:every=4", "none"}
    assert "allreduce:every=4" in str(found)
    with pytest.raises(StrategyError):
        simulate(load_task("digits"), strategies=["nonsense"])

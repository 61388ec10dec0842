"""The traces of a live run, which every node writes for itself, are one run in every report."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from atoll.report import runs
from atoll.report.page import write_page
from atoll.report.results import read_folder
from atoll.report.runs import group_traces, load_run
from atoll.report.timeline import timelines
from atoll.trace import Computed, Event, RunEnded, RunStarted, Tested, Trace, TrainingStarted, ViewChanged

SEATS = tuple(f"n{place}" for place in range(16))


def start(at: float, seed: int = 0, world: str = "live") -> RunStarted:
    return RunStarted(at=at, atoll="0", world=world, network="live", nodes=SEATS, links=(), seed=seed)


def write(path: Path, node: str, *, begin: float, steps: int, ended: bool = True, seed: int = 0) -> Path:
    """What one node of a live run writes: a step and a test a second."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with Trace(path) as trace:
        trace.record(start(begin, seed))
        if steps:
            trace.record(
                TrainingStarted(
                    at=begin,
                    task="t",
                    strategy="s",
                    role="strategy",
                    shards="iid",
                    target=0.9,
                    rising=True,
                    parameters=3,
                )
            )
            trace.record(ViewChanged(at=begin, node=node, view="v", members=("n0", "n1")))
        for step in range(steps):
            at = begin + step + 1
            trace.record(Computed(at=at, node=node, since=at - 1, steps=step))
            trace.record(Tested(at=at, node=node, steps=step + 1, measure=0.1 * step, sent_bytes=100))
        if ended:
            trace.record(RunEnded(at=begin + steps + 1, reason="left"))
    return path


@pytest.mark.parametrize("places", [("n0.jsonl", "n1.jsonl"), ("A/n0.jsonl", "B/n1.jsonl")])
def test_two_nodes_are_one_run_of_two_nodes(tmp_path: Path, places: tuple[str, str]) -> None:
    """Put together in one folder, or each in a folder of its own."""
    write(tmp_path / places[0], "n0", begin=0, steps=12)
    write(tmp_path / places[1], "n1", begin=3, steps=11)
    found = read_folder(tmp_path)
    [result] = found.results
    assert (result.nodes, result.strategy, result.seed) == (2, "s", 0)
    assert result.ended_s == 15
    assert result.seconds_to_target == 10  # half of two: n0 has 0.9 after ten steps
    assert result.all_seconds == 13
    write_page(found, tmp_path / "report.html")
    assert "2 nodes, task t, iid shards, target 0.9, 1 seed." in (tmp_path / "report.html").read_text()
    [figure] = timelines(load_run(result.paths), result.ended_s)
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["n0", "n1"]


def test_a_node_that_was_started_again_is_one_node(tmp_path: Path) -> None:
    """It was killed, so its first trace has no end; it wrote a further one beside it."""
    write(tmp_path / "n0.jsonl", "n0", begin=0, steps=12)
    write(tmp_path / "n1.jsonl", "n1", begin=1, steps=4, ended=False)
    write(tmp_path / "n1.2.jsonl", "n1", begin=7, steps=3)
    [result] = read_folder(tmp_path).results
    assert result.nodes == 2
    events = load_run(result.paths)
    assert [event.at for event in events] == sorted(event.at for event in events)
    assert [type(event) for event in events if isinstance(event, RunStarted | TrainingStarted | RunEnded)] == [
        RunStarted,
        TrainingStarted,
        RunEnded,
    ]
    assert sum(isinstance(event, Computed) and event.node == "n1" for event in events) == 7


def test_who_took_a_seat_and_never_trained_is_not_shown(tmp_path: Path) -> None:
    write(tmp_path / "n0.jsonl", "n0", begin=0, steps=3)
    write(tmp_path / "n1.jsonl", "n1", begin=1, steps=0)
    [result] = read_folder(tmp_path).results
    assert (result.nodes, len(result.paths)) == (1, 1)


def test_a_run_whose_nodes_were_all_killed_is_shown(tmp_path: Path) -> None:
    write(tmp_path / "n0.jsonl", "n0", begin=0, steps=3, ended=False)
    [result] = read_folder(tmp_path).results
    assert (result.ended_s, result.reason) == (3, "not ended")


def test_other_runs_are_other_runs(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{seed}.jsonl", "n0", begin=0, steps=2, seed=seed) for seed in (0, 1)]
    assert group_traces(paths) == [(paths[0],), (paths[1],)]


def test_runs_with_names_are_told_apart_by_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same task and seed, twice; and nodes that have not come to train yet."""
    told: dict[Path, str] = {Path("a"): "first", Path("b"): "second", Path("c"): "first"}

    def read(path: Path) -> list[SimpleNamespace | Event]:
        return [Started(run=told[path])]

    class Started(SimpleNamespace):
        world = "live"

    monkeypatch.setattr(runs, "read_trace", read)
    monkeypatch.setattr(runs, "RunStarted", Started)
    assert group_traces(told) == [(Path("a"), Path("c")), (Path("b"),)]


def test_a_simulated_run_is_read_as_it_is(tmp_path: Path) -> None:
    events = [start(0.0, world="sim"), RunEnded(at=1.0, reason="finished")]
    paths = []
    for name in "ab":
        paths.append(tmp_path / name)
        with Trace(paths[-1]) as trace:
            for event in events:
                trace.record(event)
    assert group_traces(paths) == [(paths[0],), (paths[1],)]
    assert load_run(paths[:1]) == events

"""The results of runs, as functions of their traces alone."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from atoll.errors import TraceError
from atoll.report.failures import RunFailure, read_failures
from atoll.report.runs import group_traces, load_run
from atoll.trace import (
    DataUsed,
    Emulated,
    Event,
    Exchanged,
    FinalTested,
    RunEnded,
    RunStarted,
    Targets,
    Tested,
    TrainingStarted,
    Waited,
)

__all__ = ["Comparison", "Row", "RunResult", "read_folder", "read_result", "t_quantile"]


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """The result of one run.  Seconds are `None` if the target was not reached."""

    paths: tuple[Path, ...]
    """Its trace; of a live run, those of all its nodes."""
    network: str
    nodes: int
    task: str
    shards: str
    target: float
    rising: bool
    strategy: str
    role: str
    seed: int
    reason: str
    ended_s: float
    seconds_to_target: float | None
    """When half of the nodes' own models had reached the target."""
    any_seconds: float | None
    all_seconds: float | None
    mean_model_seconds: float | None
    """When the mean of all replicas had reached it."""
    steps_to_target: float
    """Steps of a node until then, or until the end."""
    exchanges: float
    """Exchanges of a node until then, or until the end."""
    bytes_sent: int
    """Bytes sent by all nodes until then, or until the end."""
    waiting_share: float
    best: float
    final: float | None
    """The median node's measure on the task's final test examples, if it has any."""
    data_used: float | None
    """The share of the training examples that were used at least once."""
    valid: bool
    """Whether it can be trusted: the switch of an emulated network may have been too slow."""
    by_proxy: bool
    """Whether links were emulated by proxies, which are milder than real ones."""
    curve: tuple[tuple[float, float], ...]
    """The mean of the nodes' latest tests, over time."""

    @property
    def path(self) -> Path:
        return self.paths[0]


def read_result(*paths: Path) -> RunResult | None:
    """The result of a finished run, from its trace, or from those of all nodes of a live run; `None` if the trace has
    no end.
    """
    events = load_run(paths)
    if not events or not isinstance(events[-1], RunEnded):
        return None
    started = next((event for event in events if isinstance(event, RunStarted)), None)
    training = next((event for event in events if isinstance(event, TrainingStarted)), None)
    if started and started.world == "live" and training is None:
        return None  # its nodes have joined and left
    if started is None or training is None:
        raise TraceError(f"trace {paths[0]}: not of a training run")
    targets = Targets(started.nodes)
    for event in events:
        targets.watch(event)
    arrivals = targets.arrivals
    until = arrivals.half if arrivals.half is not None else events[-1].at
    latest: dict[str, Tested] = {}
    for event in events:
        if isinstance(event, Tested) and event.at <= until:
            latest[event.node] = event
    waited = sum(
        min(event.at, until) - event.since for event in events if isinstance(event, Waited) and event.since < until
    )
    measures = [event.measure for event in events if isinstance(event, Tested)]
    finals = [event.measure for event in events if isinstance(event, FinalTested)]
    best = max if training.rising else min
    return RunResult(
        paths=paths,
        network=started.network,
        nodes=len(started.nodes),
        task=training.task,
        shards=training.shards,
        target=training.target,
        rising=training.rising,
        strategy=training.strategy,
        role=training.role,
        seed=started.seed,
        reason=events[-1].reason,
        ended_s=events[-1].at,
        seconds_to_target=arrivals.half,
        any_seconds=arrivals.any,
        all_seconds=arrivals.all,
        mean_model_seconds=arrivals.mean,
        steps_to_target=fmean([event.steps for event in latest.values()]) if latest else 0.0,
        exchanges=sum(isinstance(event, Exchanged) and event.at <= until for event in events) / len(started.nodes),
        bytes_sent=sum(event.sent_bytes for event in latest.values()),
        waiting_share=waited / (until * len(started.nodes)) if until else 0.0,
        best=best(measures) if measures else math.nan,
        final=median(finals) if finals else None,
        data_used=next((event.used / event.examples for event in events if isinstance(event, DataUsed)), None),
        valid=all(event.valid for event in events if isinstance(event, Emulated)),
        by_proxy=any(event.by == "proxy" for event in events if isinstance(event, Emulated)),
        curve=tuple(_curve(events)),
    )


def _curve(events: list[Event]) -> Iterable[tuple[float, float]]:
    latest: dict[str, float] = {}
    for event in events:
        if isinstance(event, Tested):
            latest[event.node] = event.measure
            yield event.at, fmean(latest.values())


def t_quantile(share: float, freedom: int) -> float:
    """The value that Student's t with this many degrees of freedom stays below with probability `share` (0.5 or more).

    >>> round(t_quantile(0.975, 4), 3)
    2.776
    """
    low, high = 0.0, math.pi / 2
    for _ in range(60):  # bisection, to the last bit
        angle = (low + high) / 2
        low, high = (angle, high) if _t_within(angle, freedom) < 2 * share - 1 else (low, angle)
    return math.sqrt(freedom) * math.tan(low)


def _t_within(angle: float, freedom: int) -> float:
    """P(|t| < √freedom · tan(angle)): Abramowitz and Stegun, 26.7.3 (odd) and 26.7.4 (even)."""
    odd = freedom % 2
    total, term = 0.0, math.cos(angle) if odd else 1.0
    for power in range(odd, freedom - 1, 2):
        total += term
        term *= (power + 1) / (power + 2) * math.cos(angle) ** 2
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if odd else total


@dataclass(frozen=True, kw_only=True)
class Row:
    """A strategy over all seeds."""

    strategy: str
    runs: tuple[RunResult, ...]
    """The runs that ended; means are over them."""
    ideal_seconds: float | None
    on_perfect: tuple[RunResult, ...] = ()
    failed: int = 0
    """How many runs failed."""

    @property
    def reached(self) -> int:
        return sum(run.seconds_to_target is not None for run in self.runs)

    @property
    def seconds(self) -> float | None:
        """The mean; `None` if a seed did not reach the target."""
        times = [run.seconds_to_target for run in self.runs if run.seconds_to_target is not None]
        return fmean(times) if len(times) == len(self.runs) else None

    @property
    def interval(self) -> float | None:
        """Half of the 95 % interval of the mean."""
        times = [run.seconds_to_target for run in self.runs if run.seconds_to_target is not None]
        if len(times) < 2 or len(times) < len(self.runs):
            return None
        return t_quantile(0.975, len(times) - 1) * stdev(times) / math.sqrt(len(times))

    @property
    def ratio(self) -> float | None:
        if self.seconds is None or not self.ideal_seconds:
            return None
        return self.seconds / self.ideal_seconds

    @property
    def ratio_on_perfect(self) -> float | None:
        """The ratio of the same strategy on links that cost nothing: the optimiser's part of a ratio below 1."""
        times = [run.seconds_to_target for run in self.on_perfect]
        known = [time for time in times if time is not None]
        if not known or len(known) < len(times) or not self.ideal_seconds:
            return None
        return fmean(known) / self.ideal_seconds

    def mean(self, name: str) -> float:
        return fmean(getattr(run, name) for run in self.runs)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Strategies side by side."""

    results: tuple[RunResult, ...]
    ideal_seconds: dict[int, float | None] = field(default_factory=dict)
    failures: tuple[RunFailure, ...] = ()
    """Runs that failed."""

    @classmethod
    def of(cls, results: Iterable[RunResult], failures: Iterable[RunFailure] = ()) -> "Comparison":
        found = tuple(results)
        return cls(
            results=found,
            ideal_seconds={run.seed: run.seconds_to_target for run in found if run.role == "ideal"},
            failures=tuple(failures),
        )

    @property
    def first(self) -> RunResult:
        return self.results[0]

    @property
    def warning(self) -> str:
        """Warnings about the results, if there are any."""
        late = sum(not run.valid for run in self.results)
        told = []
        if late:
            told.append(f"In {late} of {len(self.results)} runs the emulated network was late: use a quieter machine.")
        if any(run.by_proxy for run in self.results):
            told.append(
                "Links were emulated by proxies, since this system allows no network namespaces: "
                "outages are milder than real ones."
            )
        return " ".join(told)

    def rows(self) -> list[Row]:
        """One row for each strategy, the fastest first; strategies that did not reach the target come last."""
        names = dict.fromkeys(run.strategy for run in self.results if run.role == "strategy")
        rows = [self._row(name) for name in names]
        return sorted(rows, key=lambda row: (row.seconds is None, row.seconds or -row.mean("best")))

    def _row(self, name: str) -> Row:
        runs = tuple(run for run in self.results if run.role == "strategy" and run.strategy == name)
        ideals = [self.ideal_seconds.get(run.seed) for run in runs]
        known = [ideal for ideal in ideals if ideal is not None]
        return Row(
            strategy=name,
            runs=runs,
            ideal_seconds=fmean(known) if known and len(known) == len(ideals) else None,
            on_perfect=tuple(run for run in self.results if run.role == "perfect" and run.strategy == name),
            failed=sum(each.role == "strategy" and each.strategy == name for each in self.failures),
        )

    @property
    def lost(self) -> list[str]:
        """The strategies of which no run ended, because all of them failed."""
        ended = {run.strategy for run in self.results if run.role == "strategy"}
        failed = dict.fromkeys(each.strategy for each in self.failures if each.role == "strategy")
        return [strategy for strategy in failed if strategy not in ended]

    def as_json(self) -> dict[str, Any]:
        """The content of the file that `--json` writes."""
        return {
            "network": self.first.network.removeprefix("perfect (").removesuffix(")"),
            "task": self.first.task,
            "shards": self.first.shards,
            "target": self.first.target,
            "results": [
                {
                    "strategy": run.strategy,
                    "seed": run.seed,
                    "seconds_to_target": run.seconds_to_target,
                    "ideal_seconds": self.ideal_seconds.get(run.seed),
                    "steps_to_target": run.steps_to_target if run.seconds_to_target is not None else None,
                    "bytes_sent": run.bytes_sent,
                    "waiting_share": run.waiting_share,
                    "data_used": run.data_used,
                    "best_accuracy": None if math.isnan(run.best) else run.best,
                    "final_accuracy": run.final,
                    "any_seconds": run.any_seconds,
                    "all_seconds": run.all_seconds,
                    "mean_model_seconds": run.mean_model_seconds,
                }
                for run in self.results
                if run.role == "strategy"
            ],
            "failures": [
                {"strategy": each.strategy, "role": each.role, "seed": each.seed, "reason": each.reason}
                for each in self.failures
            ],
        }


def read_folder(folder: Path) -> Comparison:
    """All finished runs of a folder of traces; those of a live run's nodes may each be in a folder of its own."""
    paths = sorted(folder.glob("*.jsonl")) or sorted(folder.glob("*/*.jsonl"))
    if not paths:
        raise TraceError(f"{folder}: expected traces (*.jsonl) in it")
    groups = group_traces(paths)
    results = [result for group in groups if (result := read_result(*group))]
    if not any(result.role == "strategy" for result in results):
        raise TraceError(f"{folder}: none of its {len(paths)} traces is of a finished run")
    return Comparison.of(results, read_failures(folder))

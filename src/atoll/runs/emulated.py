"""One run on an emulated network: configuration and trace are as in simulation, and all times are real."""

import contextlib
import dataclasses
import shutil
from collections.abc import Callable, Generator
from pathlib import Path

import numpy as np

from atoll.config import DEFAULT_LIMIT_S, RunConfig
from atoll.errors import EmulationError
from atoll.runs.emulated_node import settings_for
from atoll.runs.verdict import Verdict
from atoll.trace import (
    Computed,
    Emulated,
    ExamplesUsed,
    Exchanged,
    FaultChanged,
    IslandsFormed,
    ReachChanged,
    RunEnded,
    Tested,
    Trace,
    TraceTail,
    TrainingStarted,
    Waited,
    WayMeasured,
    read_trace,
)
from atoll.training.shares import data_used, read_used
from atoll.world.emulate.supervisor import SWITCH_TRACE, Emulation, emulate
from atoll.world.emulate.switch import SwitchStats

__all__ = ["emulate_all", "is_valid", "run_emulated"]

LOOK_EVERY_S = 0.2
NODE_TRACES = "node.*.jsonl"
FOLLOWED = (
    Computed,
    Exchanged,
    FaultChanged,
    IslandsFormed,
    ReachChanged,
    Tested,
    TrainingStarted,
    Waited,
    WayMeasured,
)
LATE_SHARE, CPU_SHARE = 0.05, 0.8
"""The limits of a valid run: the share of packets that the switch delivers late, and its share of a core."""


def emulate_all(
    configs: list[RunConfig], folder: Path, *, on_failure: Callable[[RunConfig, Exception], None] | None = None
) -> Generator[RunConfig | None, None, None]:
    """Runs everything, one run after the other, since they share the machine; traces go to `folder`.

    Yields each config when it is done, and `None` every now and then in between, so that progress can be shown.

    Args:
        configs: the runs.
        folder: the folder for traces.
        on_failure: called with each run that failed, and its error; the others continue.  By default, the first failure
            is raised here.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for config in configs:
        path = folder / config.file_name
        try:
            for _ in run_emulated(config, path):
                yield None
        except BaseException as error:
            path.unlink(missing_ok=True)
            if on_failure is None or not isinstance(error, Exception):
                raise
            on_failure(config, error)
            continue
        yield config


def run_emulated(config: RunConfig, trace_path: Path) -> Generator[None, None, None]:
    """Runs in real time on an emulated network, until all nodes reach the target, half did long ago, or the limit.

    The trace first gets the events that people follow during the run; at the end it has all events, in order.
    """
    limit_s = DEFAULT_LIMIT_S if config.limit_s is None else config.limit_s
    dataclasses.replace(config, limit_s=limit_s).write(trace_path.with_suffix(".toml"))
    if config.checkpoints:
        config.checkpoints.mkdir(parents=True, exist_ok=True)
        for old in config.checkpoints.glob("*.safetensors") if not config.resume else ():
            old.unlink()
    nodes = trace_path.with_suffix("")
    shutil.rmtree(nodes, ignore_errors=True)
    verdict = Verdict(config.links.node_names, stops=config.stops)
    what = Emulation(
        network=config.links,
        program=str(Path(config.script[0]).resolve()) if config.script else "atoll.runs.emulated_node:node",
        process="atoll.script.process" if config.script else "atoll.world.live.process",
        settings=settings_for(config),
        folder=nodes,
        seed=config.seed,
        faults=config.faults,
        limit_s=limit_s,
    )
    reason = ""
    try:
        with emulate(what) as running, Trace(trace_path) as progress:
            tails: dict[Path, TraceTail] = {}
            while running.poll(LOOK_EVERY_S):
                for file in [nodes / SWITCH_TRACE, *nodes.glob(NODE_TRACES)]:
                    tails.setdefault(file, TraceTail(file, *FOLLOWED))
                news = [event for tail in tails.values() for event in tail.look()]
                for event in sorted(news, key=lambda event: event.at):
                    verdict.watch(event)
                    progress.record(event)
                progress.flush()
                if not reason and verdict.is_over(running.now):
                    reason = "target reached"
                    running.stop()
                yield
            stats = running.stats
        assert stats is not None
        if config.script and not _has_trained(nodes):
            raise EmulationError(
                f"{config.script[0]} has ended without training: it has to call atoll.join() and then "
                "run.wrap(model, optimizer), as in docs/tutorial.md"
            )
        _refuse_what_nobody_held(nodes)
        _merge(nodes, trace_path, reason or ("finished" if running.now < limit_s else "time limit"), stats)
    finally:
        with contextlib.suppress(OSError):
            shutil.rmtree(nodes)


def _has_trained(nodes: Path) -> bool:
    return any(isinstance(event, TrainingStarted) for file in nodes.glob(NODE_TRACES) for event in read_trace(file))


def _refuse_what_nobody_held(nodes: Path) -> None:
    """Raises if islands were to hold the model and never could: a run without a step is no result."""
    events = (event for file in nodes.glob(NODE_TRACES) for event in read_trace(file))
    formed = [event for event in events if isinstance(event, IslandsFormed)]
    if formed and not any(event.stages for event in formed):
        raise EmulationError(formed[-1].why)


def _merge(nodes: Path, trace_path: Path, reason: str, stats: SwitchStats) -> None:
    """Merges all traces into one, in order of time, without events before the beginning."""
    files = [nodes / SWITCH_TRACE, *sorted(nodes.glob(NODE_TRACES))]
    events = [event for file in files for event in read_trace(file)]
    ended_s = max(event.at for event in events if isinstance(event, RunEnded))
    kept = [event for event in events if event.at >= 0 and not isinstance(event, (RunEnded, ExamplesUsed))]
    used = sum((read_used(event) for event in events if isinstance(event, ExamplesUsed)), np.zeros(1, dtype=np.int64))
    with Trace(trace_path) as trace:
        for event in sorted(kept, key=lambda event: min(event.at, ended_s)):
            trace.record(event)
        if len(used) > 1:
            trace.record(data_used(used, ended_s))
        trace.record(
            Emulated(
                at=ended_s,
                by=stats.by,
                packets=stats.delivered,
                late_share=stats.late_share,
                latest_s=stats.latest_s,
                cpu_share=stats.cpu_s / max(stats.wall_s, 1e-9),
                valid=is_valid(stats),
            )
        )
        trace.record(RunEnded(at=ended_s, reason=reason))


def is_valid(stats: SwitchStats) -> bool:
    """Whether the switch kept up."""
    return stats.late_share <= LATE_SHARE and stats.cpu_s <= CPU_SHARE * stats.wall_s

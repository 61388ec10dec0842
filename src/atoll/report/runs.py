"""Which traces belong together.  A simulated or an emulated run writes one file; in a live run every node writes its
own, and another one after each restart.
"""

import dataclasses
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path

from atoll.trace import Computed, Event, Exchanged, RunEnded, RunStarted, Tested, TrainingStarted, Waited, read_trace

__all__ = ["group_traces", "load_run"]

NOT_ENDED = "not ended"
"""The reason if none of a live run's nodes has left: they were killed, or still train."""
_DEEDS = Computed | Waited | Tested | Exchanged


def group_traces(paths: Iterable[Path]) -> list[tuple[Path, ...]]:
    """The files of each run, in the order of the first of them."""
    runs: dict[Hashable, list[Path]] = {}
    for path in paths:
        runs.setdefault(_run_of(path), []).append(path)
    return [tuple(files) for files in runs.values()]


def _run_of(path: Path) -> Hashable:
    """A key that the traces of one run have in common."""
    started: RunStarted | None = None
    for event in read_trace(path):
        if isinstance(event, RunStarted):
            started = event
            if started.world != "live":
                return path
            if run := getattr(started, "run", ""):
                return run
        elif isinstance(event, TrainingStarted) and started:
            # Written before runs had names: nodes that agree on all this were in one run.
            about = event.task, event.strategy, event.shards, event.target
            return started.network, started.nodes, started.seed, *about
    return path


def load_run(paths: Sequence[Path]) -> list[Event]:
    """The events of a run, in order, of all its files together.

    A live run has many more seats than nodes: the first event then names only the nodes that took part.
    """
    files = [list(read_trace(path)) for path in paths]
    started = next((event for events in files for event in events if isinstance(event, RunStarted)), None)
    if started is None or started.world != "live":
        return [event for events in files for event in events]
    merged = sorted((event for events in files for event in events), key=lambda event: event.at)
    took_part = {event.node for event in merged if isinstance(event, _DEEDS)}
    training = next((event for event in merged if isinstance(event, TrainingStarted)), None)
    ended = [event for event in merged if isinstance(event, RunEnded)]
    if training is None:
        return [started, *ended[-1:]]  # nobody has trained
    seats = tuple(name for name in started.nodes if name in took_part)
    first = dataclasses.replace(started, at=merged[0].at, nodes=seats or started.nodes[:1])
    kept = [event for event in merged if not isinstance(event, RunStarted | TrainingStarted | RunEnded)]
    last = RunEnded(at=merged[-1].at, reason=ended[-1].reason if ended else NOT_ENDED)
    return [first, training, *kept, last]

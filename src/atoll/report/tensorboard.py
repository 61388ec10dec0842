"""A trace as scalars for TensorBoard."""

from pathlib import Path
from typing import Any

from atoll.errors import needs_extra
from atoll.report.runs import group_traces, load_run
from atoll.trace import Computed, Event, Exchanged, Tested, Waited

__all__ = ["write_scalars"]


class _Node:
    """One node's scalars, by its steps."""

    def __init__(self, writer: Any) -> None:
        self.writer = writer
        self._steps = 0
        self._waited = 0.0

    def take(self, event: Event) -> None:
        if isinstance(event, Computed):
            self._steps += 1
            self._add("time/step", event.at - event.since, event.at)
        elif isinstance(event, Exchanged):
            self._add("time/exchange", event.at - event.since, event.at)
            self._add("members", event.members, event.at)
        elif isinstance(event, Waited):
            self._waited += event.at - event.since
            self._add("time/waited so far", self._waited, event.at)
        elif isinstance(event, Tested):
            self._add("measure", event.measure, event.at)
            self._add("bytes sent", event.sent_bytes, event.at)

    def _add(self, what: str, value: float, at: float) -> None:
        self.writer.add_scalar(what, value, self._steps, walltime=at)


def write_scalars(traces: list[Path], folder: Path) -> int:
    """Writes scalars for every node of every run; returns the number of nodes.

    Times are seconds of the run: choose "relative" in TensorBoard.
    """
    with needs_extra("tensorboard", "--tensorboard"):
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - few need it
    count = 0
    for paths in group_traces(traces):
        name = paths[0].stem if len(paths) == 1 else "live"
        nodes: dict[str, _Node] = {}
        for event in load_run(paths):
            if isinstance(event, Computed | Exchanged | Tested | Waited):
                if event.node not in nodes:
                    nodes[event.node] = _Node(SummaryWriter(str(folder / name / event.node)))
                nodes[event.node].take(event)
        for node in nodes.values():
            node.writer.close()
        count += len(nodes)
    return count

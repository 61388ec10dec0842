"""A board to look at while a node takes part in a live run: its peers, and how it gets on."""

from collections import deque

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from atoll.trace import Computed, Event, Exchanged, Tested, TrainingStarted, ViewChanged, Waited
from atoll.world.base import Lane
from atoll.world.live.session import Session
from atoll.world.live.world import LiveWorld

__all__ = ["Board"]

OVER_S = 30.0
"""Shares and speeds are over so long."""


class Board:
    """Sees every event of a node, and draws what it has come to."""

    def __init__(self) -> None:
        self.world: LiveWorld | None = None
        self._spans: deque[tuple[str, float, float]] = deque(maxlen=2000)
        self._steps: deque[float] = deque(maxlen=2000)
        self._tested: Tested | None = None
        self._exchanged: Exchanged | None = None
        self._rounds = 0
        self._view: ViewChanged | None = None
        self._task: TrainingStarted | None = None

    def watch(self, event: Event) -> None:
        if isinstance(event, Computed):
            self._spans.append(("computing", event.since, event.at))
            self._steps.append(event.at)
        elif isinstance(event, Waited):
            self._spans.append(("waiting", event.since, event.at))
        elif isinstance(event, Tested):
            self._tested = event
        elif isinstance(event, Exchanged):
            self._exchanged = event
            self._rounds += 1
        elif isinstance(event, ViewChanged):
            self._view = event
        elif isinstance(event, TrainingStarted):
            self._task = event

    def _share(self, what: str, now: float) -> float:
        since = max(0.0, now - OVER_S)
        spans = [(max(start, since), end) for kind, start, end in self._spans if kind == what and end > since]
        first = min((start for _, start, _ in self._spans), default=now)
        return sum(end - start for start, end in spans) / max(now - max(since, first), 1e-9)

    def line(self) -> str:
        """In a line, where nobody can see a table."""
        assert self.world is not None
        now = self.world.now
        reached = sum(session.reachable for session in self.world.host.sessions.values())
        return f"{now:.0f} s: {self.world.name}, {reached} peers reached, {self._progress(now)}"

    def _progress(self, now: float) -> str:
        recent = [at for at in self._steps if at > now - OVER_S]
        speed = len(recent) / max(now - max(now - OVER_S, min(recent, default=now)), 1e-9) if recent else 0.0
        parts = [f"{speed:.2f} steps/s"]
        if self._tested and self._task:
            measure = f"{self._tested.measure:.1%}" if self._task.rising else f"{self._tested.measure:.3f}"
            parts.insert(0, f"step {self._tested.steps}, {'accuracy' if self._task.rising else 'loss'} {measure}")
        parts.append(f"computing {self._share('computing', now):.0%}, waiting {self._share('waiting', now):.0%}")
        if self._exchanged:
            ago = now - self._exchanged.at
            parts.append(f"{self._rounds} exchanges, the last {ago:.0f} s ago among {self._exchanged.members}")
        return ", ".join(parts)

    def __rich__(self) -> RenderableType:
        world = self.world
        if world is None:
            return Text("joining …")
        table = Table(box=None, pad_edge=False)
        for column in ("peer", "reached", "round trip", "rate"):
            table.add_column(column, justify="left" if column in ("peer", "reached") else "right", no_wrap=True)
        known = [session for session in world.host.sessions.values() if session.id is not None]
        for session in known:
            table.add_row(*_row(session))
        if not known:
            table.add_row("nobody yet", "", "", "")
        title = Text.assemble((world.name, "bold"), f"  {world.now:.0f} s  {self._progress(world.now)}")
        return Group(title, Text(), table)


def _row(session: Session) -> list[str]:
    carrier = session.carrier(Lane.CONTROL)
    if carrier is None:
        return [session.name, "away", "", ""]
    reached = "straight" if carrier.via is None else f"through {carrier.via}"
    rate = f"{session.rate * 8 / 1e6:.1f} Mbit/s" if session.rate else ""
    return [session.name, reached, f"{session.round_trip_s * 1e3:.1f} ms", rate]

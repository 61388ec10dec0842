"""Live boards of a run: the work of each node, its reachable peers, and its progress."""

from collections import deque

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from atoll.trace import (
    Computed,
    Event,
    Exchanged,
    FaultChanged,
    ReachChanged,
    SeatTaken,
    Tested,
    TrainingStarted,
    Waited,
    WayMeasured,
)
from atoll.world.base import Lane
from atoll.world.live.session import Session
from atoll.world.live.world import LiveWorld

__all__ = ["Board", "Pulse", "RunBoard"]

OVER_S = 30.0
"""Shares and speeds are over this many seconds."""


class Pulse:
    """The recent work of a node, from its events."""

    def __init__(self) -> None:
        self._spans: deque[tuple[type[Event], float, float]] = deque(maxlen=2000)
        self._tested: Tested | None = None
        self._exchanged: Exchanged | None = None
        self._rounds = 0
        self._rising = True
        self._seat: SeatTaken | None = None

    def watch(self, event: Event) -> None:
        if isinstance(event, Computed | Waited):
            self._spans.append((type(event), event.since, event.at))
        elif isinstance(event, Tested):
            self._tested = event
        elif isinstance(event, Exchanged):
            self._exchanged = event
            self._rounds += 1
        elif isinstance(event, TrainingStarted):
            self._rising = event.rising
        elif isinstance(event, SeatTaken):
            self._seat = event

    def share(self, what: type[Event], now: float) -> float:
        """The share of time that it has computed, or waited."""
        since = max(now - OVER_S, min((start for _, start, _ in self._spans), default=now))
        spans = [(max(start, since), end) for kind, start, end in self._spans if kind is what and end > since]
        return sum(end - start for start, end in spans) / max(now - since, 1e-9)

    def speed(self, now: float) -> str:
        recent = [(start, end) for kind, start, end in self._spans if kind is Computed and end > now - OVER_S]
        speed = len(recent) / max(now - recent[0][0], 1e-9) if recent else 0.0
        return f"{speed:.2f} steps/s"

    @property
    def measure(self) -> str:
        if self._tested is None:
            return ""
        return f"accuracy {self._tested.measure:.1%}" if self._rising else f"loss {self._tested.measure:.3f}"

    @property
    def steps(self) -> int:
        return self._tested.steps if self._tested else 0

    def last_exchange(self, now: float) -> str:
        last = self._exchanged
        if last is None:
            return ""
        took = f"{last.at - last.since:.2f} s, " if last.at > last.since else ""
        return f"{took}{now - last.at:.0f} s ago, among {last.members}"

    @property
    def seat(self) -> str:
        """Its place among islands, if there are any."""
        if self._seat is None:
            return ""
        if not self._seat.island:
            return "idle: the model does not fit, or the node is not needed"
        layers = f"layers {self._seat.start} to {self._seat.stop - 1}"
        return f"stage {self._seat.stage + 1} of {self._seat.stages} of island {self._seat.island}, {layers}"

    def told(self, now: float) -> str:
        """A summary in one line."""
        parts = [f"step {self.steps}, {self.measure}"] if self._tested else []
        parts = [self.seat, *parts] if self._seat else parts
        parts.append(self.speed(now))
        parts.append(f"computing {self.share(Computed, now):.0%}, waiting {self.share(Waited, now):.0%}")
        if self._exchanged:
            parts.append(f"{self._rounds} exchanges, the last {self.last_exchange(now)}")
        return ", ".join(parts)


class Board:
    """The board of one node of a live run: sees all its events, and asks its world about its peers."""

    def __init__(self) -> None:
        self.world: LiveWorld | None = None
        self._pulse = Pulse()

    def watch(self, event: Event) -> None:
        self._pulse.watch(event)

    def line(self) -> str:
        """One line, for a log without tables."""
        assert self.world is not None
        now = self.world.now
        reached = sum(session.reachable for session in self.world.host.sessions.values())
        return f"{now:.0f} s: {self.world.name}, {reached} peer{'s' * (reached != 1)} reached, {self._pulse.told(now)}"

    def __rich__(self) -> RenderableType:
        world = self.world
        if world is None:
            return Text("joining …")
        table = _table("peer", "reached", "round trip", "rate")
        known = [session for session in world.host.sessions.values() if session.id is not None]
        for session in known:
            table.add_row(*_row(session))
        if not known:
            table.add_row("nobody yet", "", "", "")
        title = Text.assemble((world.name, "bold"), f"  {world.now:.0f} s  {self._pulse.told(world.now)}")
        return Group(title, Text(), table)


class RunBoard:
    """The board of all nodes of a run, from its trace while it is written."""

    KINDS = (Computed, Waited, Tested, Exchanged, TrainingStarted, ReachChanged, WayMeasured, FaultChanged)

    def __init__(self) -> None:
        self.now = 0.0
        self._pulses: dict[str, Pulse] = {}
        self._ways: dict[tuple[str, str], WayMeasured] = {}
        self._away: set[tuple[str, str]] = set()
        self._gone: set[str] = set()
        self._started: TrainingStarted | None = None

    def watch(self, event: Event) -> None:
        self.now = max(self.now, event.at)
        if isinstance(event, TrainingStarted):
            self._started = event
        elif isinstance(event, ReachChanged):
            (self._away.discard if event.reachable else self._away.add)((event.node, event.peer))
        elif isinstance(event, WayMeasured):
            self._ways[event.node, event.peer] = event
        elif isinstance(event, FaultChanged):
            if event.is_crash:
                (self._gone.update if event.on else self._gone.difference_update)(event.nodes)
        else:
            node = getattr(event, "node", "")
            if node not in self._pulses:
                pulse = self._pulses[node] = Pulse()
                if self._started:
                    pulse.watch(self._started)
            self._pulses[node].watch(event)

    def __rich__(self) -> RenderableType:
        heads = ["node", "peers", *(["round trip", "rate"] if self._ways else []), "step", "speed", "", "computing"]
        table = _table(*heads, "waiting", "last exchange")
        for name, pulse in sorted(self._pulses.items()):
            now = self.now
            doing = [
                str(pulse.steps),
                pulse.speed(now),
                pulse.measure,
                f"{pulse.share(Computed, now):.0%}",
                f"{pulse.share(Waited, now):.0%}",
                pulse.last_exchange(now),
            ]
            table.add_row(name, *self._reach(name), *doing)
        return table

    def _reach(self, name: str) -> list[str]:
        peers = [other for other in self._pulses if other != name]
        here = [other for other in peers if (name, other) not in self._away and other not in self._gone]
        ways = [self._ways[name, other] for other in here if (name, other) in self._ways]
        relayed = sum(way.via != "" for way in ways)
        told = "killed" if name in self._gone else f"{len(here)} of {len(peers)}"
        told += f", {relayed} relayed" if relayed else ""
        if not self._ways:
            return [told]
        trips = [way.round_trip_s * 1e3 for way in ways if way.round_trip_s]
        rates = [way.rate * 8 / 1e6 for way in ways if way.rate]
        return [told, _range(trips, "ms"), _range(rates, "Mbit/s")]


def _range(values: list[float], unit: str) -> str:
    if not values:
        return ""
    least, most = f"{min(values):.3g}", f"{max(values):.3g}"
    return f"{least} {unit}" if least == most else f"{least}–{most} {unit}"


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        is_text = column in ("node", "peer", "peers", "reached", "last exchange", "")
        table.add_column(column, justify="left" if is_text else "right", no_wrap=True)
    return table


def _row(session: Session) -> list[str]:
    carrier = session.carrier(Lane.CONTROL)
    if carrier is None:
        return [session.name, "unreachable", "", ""]
    reached = "direct" if carrier.via is None else f"through {carrier.via}"
    rate = f"{session.rate * 8 / 1e6:.1f} Mbit/s" if session.rate else ""
    return [session.name, reached, f"{session.round_trip_s * 1e3:.1f} ms", rate]

"""Timelines of one run: links, nodes, and the decisions of a strategy."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from atoll.trace import (
    Computed,
    Event,
    Exchanged,
    FaultChanged,
    LinkChanged,
    Planned,
    RunStarted,
    Transferred,
    ViewChanged,
    Waited,
)

__all__ = ["new_figure", "timelines"]

WAYS = {
    "own": "#2a6f97",
    "gather": "#00798c",
    "direct": "#66a182",
    "ring": "#d1495b",
    "tree": "#edae49",
    "hd": "#8d5a97",
    "star": "#7f7f7f",
}
MOST_LINKS = 12
"""If there are more links, only those that fail are drawn."""


def timelines(events: list[Event], end: float) -> list[Figure]:
    """The pictures of a run up to a time."""
    pictures = [_links_and_nodes(events, end)]
    if any(isinstance(event, Planned) for event in events):
        pictures.append(_decisions(events, end))
    return pictures


def new_figure(height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(10.4, height), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _links_and_nodes(events: list[Event], end: float) -> Figure:
    started = next(event for event in events if isinstance(event, RunStarted))
    failing = sorted({event.link for event in events if isinstance(event, LinkChanged)})
    plain = [link for link in started.links if link.count("~") == 1]
    every = [*plain, *(link for link in failing if link not in plain)]
    links = every if len(every) <= MOST_LINKS else failing or plain[:MOST_LINKS]
    faults = sorted({event.fault for event in events if isinstance(event, FaultChanged)})
    rows = [*faults, *links, *started.nodes][:40]
    place = {name: n for n, name in enumerate(rows)}
    figure, axes = new_figure(0.7 + 0.2 * len(rows))
    for fault in faults:
        times = [(event.at, event.on) for event in events if isinstance(event, FaultChanged) and event.fault == fault]
        for start, stop in _while_on(times, end):
            axes.barh(place[fault], stop - start, left=start, height=0.7, color="#9d0208", lw=0)
    for link in links:
        changes = [event for event in events if isinstance(event, LinkChanged) and event.link == link]
        states = _states(changes, end)
        for start, stop, up in states:
            axes.barh(place[link], stop - start, left=start, height=0.7, color="#dfe7ea" if up else "#e07a5f", lw=0)
        ends = set(link.split("~"))
        using = [
            (event.began, event.at)
            for event in events
            if isinstance(event, Transferred) and {event.sender, event.receiver} == ends
        ]
        # A transfer that an outage interrupts has not used the link meanwhile, whichever route it took then.
        down = [(start, stop) for start, stop, up in states if not up]
        axes.broken_barh(
            [(start, stop - start) for start, stop in _without(_joined(using, end / 500), down)],
            (place[link] - 0.2, 0.4),
            color="#2a6f97",
            lw=0,
        )
    for name in started.nodes:
        if name not in place:
            continue
        computing = [(event.since, event.at) for event in events if isinstance(event, Computed) and event.node == name]
        waiting = [(event.since, event.at) for event in events if isinstance(event, Waited) and event.node == name]
        taken = [event.at for event in events if isinstance(event, Exchanged) and event.node == name]
        row = place[name]
        axes.broken_barh(
            [(a, b - a) for a, b in _joined(computing, end / 500)], (row - 0.35, 0.7), color="#81b29a", lw=0
        )
        axes.broken_barh([(a, b - a) for a, b in waiting], (row - 0.35, 0.7), color="#f2cc8f", lw=0)
        axes.plot(taken, [row] * len(taken), "|", color="#3d405b", ms=4, mew=0.6)
        changed = [event.at for event in events if isinstance(event, ViewChanged) and event.node == name]
        axes.plot(changed, [row] * len(changed), "D", color="#9d0208", ms=3.5, mew=0)
    for label, colour in (
        ("link up", "#dfe7ea"),
        ("down", "#e07a5f"),
        ("in use", "#2a6f97"),
        ("computing", "#81b29a"),
        ("waiting", "#f2cc8f"),
    ):
        axes.barh(0, 0, color=colour, label=label)
    axes.plot([], [], "|", color="#3d405b", label="exchanged")
    if any(isinstance(event, ViewChanged) for event in events):
        axes.plot([], [], "D", color="#9d0208", ms=3.5, mew=0, label="membership changed")
    axes.legend(frameon=False, fontsize=8, ncols=7, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    axes.set_yticks(range(len(rows)), rows, fontsize=8)
    axes.set(xlim=(0, end), ylim=(len(rows) - 0.4, -0.6), xlabel="seconds")
    return figure


def _while_on(times: list[tuple[float, bool]], end: float) -> list[tuple[float, float]]:
    """The spans in which something held that began and ended at these times, perhaps several times at once."""
    spans, depth, since = [], 0, 0.0
    for time, on in times:
        if on and depth == 0:
            since = time
        depth += 1 if on else -1
        if depth == 0:
            spans.append((since, time))
    return [*spans, (since, end)] if depth else spans


def _states(changes: list[LinkChanged], end: float) -> list[tuple[float, float, bool]]:
    spans, since, up = [], 0.0, True
    for change in changes:
        spans.append((since, change.at, up))
        since, up = change.at, change.up
    return [*spans, (since, end, up)]


def _joined(spans: list[tuple[float, float]], nearer_than: float) -> list[tuple[float, float]]:
    """Joins spans that nearly touch: thousands of them would make a large file and look the same."""
    joined: list[tuple[float, float]] = []
    for start, stop in sorted(spans):
        if joined and start - joined[-1][1] <= nearer_than:
            joined[-1] = joined[-1][0], max(joined[-1][1], stop)
        else:
            joined.append((start, stop))
    return joined


def _without(spans: list[tuple[float, float]], gaps: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Removes gaps from spans; gaps come in order."""
    for first, last in gaps:
        spans = [
            piece
            for start, stop in spans
            for piece in ((start, min(stop, first)), (max(start, last), stop))
            if piece[1] > piece[0]
        ]
    return spans


def _decisions(events: list[Event], end: float) -> Figure:
    """The share sent and its route, why they changed, and the expected and actual time of exchanges."""
    taken: dict[str, float] = {}
    plans: dict[str, Planned] = {}
    for event in events:
        if isinstance(event, Exchanged):
            taken[event.name] = max(taken.get(event.name, 0.0), event.at - event.since)
        elif isinstance(event, Planned) and event.at <= end:
            plans.setdefault(event.name, event)
    figure = Figure(figsize=(10.4, 3.4), layout="constrained")
    ratios, seconds = figure.subplots(2, 1, sharex=True)
    for via, colour in WAYS.items():
        by_this = [plan for plan in plans.values() if plan.via == via]
        if by_this:
            times = [plan.at for plan in by_this]
            ratios.plot(times, [plan.ratio for plan in by_this], ".", color=colour, ms=3.5, label=via)
    for plan in plans.values():
        if plan.why:
            ratios.axvline(plan.at, color="#bbbbbb", lw=0.6, zorder=0)
    expected = [plan for plan in plans.values() if plan.seconds > 0 and plan.name in taken]
    seconds.plot([p.at for p in expected], [taken[p.name] for p in expected], ".", color="#3d405b", ms=3, label="took")
    seconds.plot([p.at for p in expected], [p.seconds for p in expected], color="#d1495b", lw=1, label="expected")
    ratios.set(yscale="log", ylabel="share sent")
    seconds.set(ylabel="seconds", xlabel="seconds", xlim=(0, end))
    if any(taken[plan.name] > 0 for plan in expected):  # a logarithmic axis needs something to show
        seconds.set_yscale("log")
    ratios.legend(frameon=False, fontsize=8, ncols=7, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    seconds.legend(frameon=False, fontsize=8, loc="upper right")
    for axes in (ratios, seconds):
        axes.spines[["top", "right"]].set_visible(False)
    return figure

"""A network in a terminal: a drawing, tables, and a timeline of its changes."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from atoll.network import Link, Network, Node, Way
from atoll.network.weather import latency_at, outages, rates
from atoll.report.drawing import Canvas

__all__ = ["list_networks", "show_network"]

_MOST_DRAWN = 40
_MOST_ROWS = 24
_BARS = "▁▂▃▄▅▆▇█"

Point = tuple[float, float]


def list_networks(networks: Iterable[Network]) -> RenderableType:
    table = Table(box=None, pad_edge=False)
    table.add_column("network", style="bold", no_wrap=True)
    table.add_column("nodes", justify="right")
    table.add_column("links", justify="right")
    table.add_column("what it is")
    for network in networks:
        table.add_row(network.name, str(len(network)), str(len(network.links)), network.about)
    return table


def show_network(network: Network, *, seed: int, seconds: float | None, width: int) -> RenderableType:
    """Everything about one network, for a terminal of `width` characters."""
    parts: list[RenderableType] = [
        Text.assemble((network.name, "bold"), f"  {network.about}\n" if network.about else "\n"),
        _drawing(network, min(width, 76)),
        _node_table(network),
        Text(),
        _link_table(network),
    ]
    if any(link.fails or _has_rates(link) for link in network.links):
        parts += [Text(), _timeline(network, seed, seconds or network.run_s or 120.0, width)]
    return Group(*parts)


# The drawing ---


def _drawing(network: Network, width: int) -> Text:
    points = [*network.node_names, *network.hubs]
    if len(points) > _MOST_DRAWN:
        return Text(f"({len(points)} points: too many to draw)\n", style="dim")
    places = _places(network)
    canvas = Canvas(width, 5 if _is_chain(network) else 19)
    for link in network.links:
        style = "yellow" if link.changes else "bright_black"
        canvas.line(places[link.a], places[link.b], style=style, dashed=link.fails)
    for name in points:
        hub = name in network.hubs
        canvas.label(places[name], f" {name} " if hub else f"[{name}]", style="cyan" if hub else "bold")
    legend = "[node]  hub   solid: always up   dashed: goes down at times   yellow: changes\n"
    return Text.assemble(canvas.text(), (legend, "dim"))


def _is_chain(network: Network) -> bool:
    names = network.node_names
    pairs = {frozenset((link.a, link.b)) for link in network.links}
    return not network.hubs and len(names) > 2 and pairs == {frozenset(pair) for pair in itertools.pairwise(names)}


def _places(network: Network) -> dict[str, Point]:
    """A chain in a row; else hubs on an inner ring with their nodes around them, and other nodes on an outer ring."""
    names = network.node_names
    if _is_chain(network):
        return {name: (0.05 + 0.9 * index / (len(names) - 1), 0.5) for index, name in enumerate(names)}
    hub_of: dict[str, str] = {}
    for link in network.links:
        for one, other in ((link.a, link.b), (link.b, link.a)):
            if other in network.hubs and one not in network.hubs:
                hub_of.setdefault(one, other)
    if len(network.hubs) == 1 or not hub_of:
        places = _ring(names, 0.46)
        places.update(_ring(network.hubs, 0.0 if len(network.hubs) == 1 else 0.2))
        return places
    places = _ring(network.hubs, 0.22)
    order = sorted(names, key=lambda name: network.hubs.index(hub_of[name]) if name in hub_of else len(network.hubs))
    angle = _angles(len(network.hubs))
    for index, hub in enumerate(network.hubs):
        mine = [name for name in order if hub_of.get(name) == hub]
        spread = 2 * math.pi / len(network.hubs) * 0.62
        for place, name in enumerate(mine):
            turn = angle[index] + spread * ((place + 0.5) / len(mine) - 0.5)
            places[name] = _on_ring(turn, 0.46)
    places.update(_ring([name for name in names if name not in places], 0.46))
    return places


def _angles(count: int) -> list[float]:
    return [2 * math.pi * index / count - math.pi / 2 for index in range(count)]


def _on_ring(angle: float, radius: float) -> Point:
    return 0.5 + radius * math.cos(angle), 0.5 + radius * math.sin(angle)


def _ring(names: Iterable[str], radius: float) -> dict[str, Point]:
    names = list(names)
    return {name: _on_ring(angle, radius) for name, angle in zip(names, _angles(len(names)), strict=True)}


# The tables ---


def _node_table(network: Network) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("nodes", "seconds a step", "memory", "access up / down"):
        table.add_column(column, no_wrap=column != "nodes")
    alike: dict[Node, list[str]] = {}
    for node in network.nodes:
        alike.setdefault(dataclasses.replace(node, name="x"), []).append(node.name)
    for node, names in alike.items():
        memory = "" if node.memory_bytes is None else f"{node.memory_bytes / 1e9:g} GB"
        access = "" if node.up_bps == node.down_bps == math.inf else f"{_rate(node.up_bps)} / {_rate(node.down_bps)}"
        table.add_row(_names(names), f"{node.step_s:.4g}", memory, access)
    return table


def _link_table(network: Network) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("links", "latency", "rate", "loss", "what happens to them"):
        table.add_column(column)
    alike: dict[Link, list[str]] = {}
    for link in network.links:
        alike.setdefault(dataclasses.replace(link, a="a", b="b"), []).append(link.name)
    for link, names in alike.items():
        table.add_row(
            _names(names),
            _both(link, _latency),
            _both(link, _way_rate),
            _both(link, lambda way: f"{way.loss:.3g}" if way.loss else "–"),
            ", ".join(_happenings(link)) or "nothing",
        )
    return table


def _names(names: list[str]) -> str:
    shown = " ".join(names) if len(names) <= 12 else " ".join([*names[:6], "…", names[-1]])
    return f"{shown} ({len(names)})" if len(names) > 3 else shown


def _both(link: Link, tell: Callable[[Way], str]) -> str:
    there, back = tell(link.there), tell(link.back)
    return there if there == back else f"{there} →, {back} ←"


def _latency(way: Way) -> str:
    if way.walk:
        return f"{way.walk.low_s:g}–{way.walk.high_s:g} s, wandering"
    if way.phases:
        values = [phase.latency_s * 1e3 for phase in way.phases]
        return f"{min(values):g}–{max(values):g} ms"
    jitter = f" ± {way.jitter_s * 1e3:g}" if way.jitter_s else ""
    return f"{way.latency_s * 1e3:g}{jitter} ms"


def _way_rate(way: Way) -> str:
    if way.trace:
        return f"{_rate(way.trace.mean_bps)} on average"
    if way.fading:
        middle = way.fading.quantiles_bps[len(way.fading.quantiles_bps) // 2]
        return f"about {_rate(middle)}"
    if way.phases:
        values = [phase.rate_bps for phase in way.phases]
        return f"{_rate(min(values))} – {_rate(max(values))}"
    return _rate(way.rate_bps)


def _rate(bps: float) -> str:
    return "no limit" if bps == math.inf else f"{bps / 1e6:.3g} Mbit/s" if bps < 1e9 else f"{bps / 1e9:.3g} Gbit/s"


def _happenings(link: Link) -> Iterator[str]:
    if link.up_down:
        yield f"up {link.up_down.up_s:g} s, down {link.up_down.down_s:g} s on average"
    for outage in link.outages:
        yield f"down from {outage.start_s:g} s " + (
            "permanently" if outage.end_s == math.inf else f"to {outage.end_s:g} s"
        )
    if link.gaps:
        yield f"gaps of {link.gaps.least_s:g}–{link.gaps.most_s:g} s, seldom over a minute"
    if link.there.fading or link.back.fading:
        yield "rate fades by the second"
    if link.there.trace or link.back.trace:
        yield "rate follows a trace"
    if link.there.walk or link.back.walk:
        yield "latency moves after every message"
    if link.there.phases or link.back.phases:
        yield f"{len(link.there.phases or link.back.phases)} phases"


# The timeline ---


def _has_rates(link: Link) -> bool:
    return any(way.fading or way.trace or way.phases for way in (link.there, link.back))


def _timeline(network: Network, seed: int, seconds: float, width: int) -> Text:
    """A row for each link that goes down, and one for each direction whose rate changes."""
    rows = list(_rows(network))
    labels = max(len(label) for label, *_ in rows[:_MOST_ROWS])
    columns = max(20, min(width - labels - 14, 100))
    drawn = Text.assemble(("What changes", "bold"), (f", seed {seed}, the first {seconds:g} s", "dim"), "\n")
    for label, link, way, name in rows[:_MOST_ROWS]:
        drawn.append(f"{label:>{labels}} ", "bold")
        drawn.append_text(_row(link, (name, way), network, seed=seed, seconds=seconds, columns=columns))
        drawn.append("\n")
    ticks = 5
    axis = "".join(f"{seconds * n / ticks:<{columns // ticks}.4g}" for n in range(ticks))
    drawn.append(" " * (labels + 1) + f"{axis:<{columns}}{seconds:.4g} s\n", "dim")
    if len(rows) > _MOST_ROWS:
        drawn.append(f"and {len(rows) - _MOST_ROWS} more\n", "dim")
    drawn.append("█ up, ▁–█ its rate", "green")
    drawn.append("  ")
    drawn.append("░ down", "red")
    return drawn


def _rows(network: Network) -> Iterator[tuple[str, Link, Way, str]]:
    for link in network.links:
        ways = [(f"{link.a}>{link.b}", link.there), (f"{link.b}>{link.a}", link.back)]
        if _has_rates(link) and not (link.there.phases and link.there == link.back):
            yield from ((name, link, way, name) for name, way in ways)
        elif link.fails or _has_rates(link):
            yield link.name, link, link.there, ways[0][0]


def _row(link: Link, direction: tuple[str, Way], network: Network, *, seed: int, seconds: float, columns: int) -> Text:
    name, way = direction
    changes = list(itertools.takewhile(lambda change: change[0] < seconds, rates(way, name, seed, network.run_s)))
    down = list(itertools.takewhile(lambda span: span[0] < seconds, outages(link, seed)))
    most = max(rate for _, rate in changes)
    row = Text()
    for column in range(columns):
        start, end = seconds * column / columns, seconds * (column + 1) / columns
        away = sum(max(0.0, min(end, stop) - max(start, begin)) for begin, stop in down)
        if away > (end - start) / 2:
            row.append("░", "red")
        elif math.isfinite(most):
            height = math.ceil(_mean_rate(changes, start, end) / max(most, 1e-9) * len(_BARS))
            row.append(_BARS[min(max(height, 1), len(_BARS)) - 1], "yellow" if away else "green")
        else:
            row.append("█", "yellow" if away else "green")
    row.append(f" {_rate(most)}" + (f", {_latencies(way, network)}" if way.phases else ""), "dim")
    return row


def _latencies(way: Way, network: Network) -> str:
    run_s = network.run_s or 1.0
    values = [latency_at(way, run_s * (n + 0.5) / len(way.phases), run_s) * 1e3 for n in range(len(way.phases))]
    return f"{min(values):g}–{max(values):g} ms"


def _mean_rate(changes: list[tuple[float, float]], start: float, end: float) -> float:
    ends = [time for time, _ in changes[1:]] + [math.inf]
    carried = sum(
        rate * max(0.0, min(end, stop) - max(start, begin)) for (begin, rate), stop in zip(changes, ends, strict=True)
    )
    return carried / (end - start)

"""A comparison as one HTML page that opens anywhere, offline: figures are SVG inside it."""

import html
import io
from collections.abc import Iterable
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from atoll.report.results import Comparison, RunResult
from atoll.trace import Computed, Exchanged, LinkChanged, RunStarted, Transferred, Waited, read_trace

__all__ = ["write_page"]

COLOURS = ["#2a6f97", "#d1495b", "#66a182", "#edae49", "#8d5a97", "#3d405b", "#00798c", "#9c6644", "#7f7f7f", "#b5838d"]
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 1060px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2.2rem; } p { color: #555; margin: .3rem 0; }
table { border-collapse: collapse; margin: 1rem 0; font-size: 13px; }
th, td { padding: .25rem .6rem; text-align: right; border-bottom:
1px solid #ddd; } th:first-child, td:first-child { text-align: left; font-weight: 600; } svg { max-width: 100%; height:
auto; }
"""


_TIME_TO_TARGET = (
    "Half of the nodes' own models have it; bars are means, whiskers 95 % intervals, "
    "the line is the ideal: gradients averaged every step on perfect links."
)
_LINKS_AND_NODES = (
    "The first seed of each strategy. Links: up, down, and in use. Nodes: computing, waiting, "
    "and when they took the result of an exchange."
)


def _section(title: str, about: str) -> str:
    return f"<h2>{title}</h2><p>{about}</p>"


def write_page(comparison: Comparison, path: Path) -> None:
    """Writes the report of a comparison."""
    first = comparison.first
    rows = comparison.rows()
    network = comparison.as_json()["network"]
    colours = {row.strategy: COLOURS[n % len(COLOURS)] for n, row in enumerate(rows)}
    about = f"{first.nodes} nodes, task {html.escape(first.task)}, {html.escape(first.shards)} shards"
    parts = [
        f"<h1>{html.escape(network)}: which way of talking reaches the target first</h1>",
        f"<p>{about}, target {first.target:g}, {len(rows[0].runs)} seeds.</p>",
        _table(comparison),
        _section("Learning over time", "Mean of the nodes' own models; the band spans the seeds."),
        _svg(_curves(comparison, colours)),
        _section("Time to target", _TIME_TO_TARGET),
        _svg(_bars(comparison, colours)),
        _section("Bytes", "Sent a node until the target, or until the end."),
        _svg(_bytes(comparison, colours)),
        _section("Links and nodes", _LINKS_AND_NODES),
    ]
    for row in rows:
        run = min(row.runs, key=lambda each: each.seed)
        parts.append(f"<h3>{html.escape(row.strategy)}</h3>")
        parts.append(_svg(_timeline(run)))
    body = "\n".join(parts)
    page = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Atoll: {html.escape(network)}</title>'
        f"<style>{_STYLE}</style></head><body>\n{body}\n</body></html>\n"
    )
    path.write_text(page, encoding="utf-8")


def _svg(figure: Figure) -> str:
    buffer = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "atoll"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def _figure(height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(10.4, height), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _table(comparison: Comparison) -> str:
    heads = [
        "strategy",
        "seconds to target",
        "± 95 %",
        "of ideal",
        "any node",
        "all nodes",
        "mean model",
        "steps",
        "MB a node",
        "waiting",
        "best",
    ]
    lines = ["<table><tr>" + "".join(f"<th>{head}</th>" for head in heads) + "</tr>"]
    for row in comparison.rows():
        cells = [
            html.escape(row.strategy),
            f"{row.reached} of {len(row.runs)} arrived" if row.seconds is None else f"{row.seconds:.1f}",
            "" if row.interval is None else f"{row.interval:.1f}",
            "" if row.ratio is None else f"{row.ratio:.2f}",
            *(
                _mean_seconds(getattr(run, name) for run in row.runs)
                for name in ("any_seconds", "all_seconds", "mean_model_seconds")
            ),
            f"{row.mean('steps_to_target'):.0f}",
            f"{row.mean('bytes_sent') / row.runs[0].nodes / 1e6:.2f}",
            f"{row.mean('waiting_share'):.0%}",
            f"{row.mean('best'):.4g}",
        ]
        lines.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    return "\n".join([*lines, "</table>"])


def _mean_seconds(times: Iterable[float | None]) -> str:
    found = list(times)
    known = [time for time in found if time is not None]
    return f"{sum(known) / len(known):.1f}" if known and len(known) == len(found) else "–"


def _at(curve: tuple[tuple[float, float], ...], times: list[float]) -> list[float]:
    values, place, last = [], 0, float("nan")
    for time in times:
        while place < len(curve) and curve[place][0] <= time:
            last = curve[place][1]
            place += 1
        values.append(last)
    return values


def _curves(comparison: Comparison, colours: dict[str, str]) -> Figure:
    figure, axes = _figure(4.6)
    rows = comparison.rows()
    arrived = [run.ended_s for row in rows for run in row.runs if run.seconds_to_target is not None]
    end = 1.1 * max(
        arrived or [run.ended_s for row in rows for run in row.runs]
    )  # who never arrives is not watched for ever
    for row in rows:
        until = min(max(run.ended_s for run in row.runs), end)
        times = [until * n / 240 for n in range(241)]
        values = [_at(run.curve, times) for run in row.runs]
        columns = list(zip(*values, strict=True))
        middle = [sorted(column)[len(column) // 2] for column in columns]
        axes.plot(times, middle, color=colours[row.strategy], label=row.strategy, lw=1.8)
        axes.fill_between(
            times, [min(c) for c in columns], [max(c) for c in columns], color=colours[row.strategy], alpha=0.15, lw=0
        )
    axes.axhline(comparison.first.target, color="#999999", lw=0.9, ls="--")
    axes.text(0, comparison.first.target, " target", va="bottom", color="#777777", fontsize=9)
    axes.set(xlabel="virtual seconds", ylabel="accuracy" if comparison.first.rising else "loss", xlim=(0, end))
    axes.legend(frameon=False, fontsize=9, loc="lower right" if comparison.first.rising else "upper right")
    return figure


def _bars(comparison: Comparison, colours: dict[str, str]) -> Figure:
    rows = comparison.rows()
    figure, axes = _figure(0.9 + 0.36 * len(rows))
    for place, row in enumerate(rows):
        if row.seconds is None:
            axes.text(
                0, place, f"  {row.reached} of {len(row.runs)} seeds arrived", va="center", color="#777777", fontsize=9
            )
        else:
            axes.barh(
                place, row.seconds, xerr=row.interval or 0, color=colours[row.strategy], height=0.62, ecolor="#333333"
            )
            axes.text(row.seconds + (row.interval or 0), place, f"  {row.seconds:.1f} s", va="center", fontsize=9)
    ideal = rows[0].ideal_seconds
    if ideal:
        axes.axvline(ideal, color="#222222", lw=1, ls="--")
        axes.text(ideal, -0.75, f"ideal {ideal:.1f} s ", ha="right", fontsize=9)
    axes.set_yticks(range(len(rows)), [row.strategy for row in rows])
    axes.set(xlabel="virtual seconds", ylim=(len(rows) - 0.4, -1.1))
    axes.set_xlim(0, None if any(row.seconds for row in rows) else 2 * (ideal or 1))
    return figure


def _bytes(comparison: Comparison, colours: dict[str, str]) -> Figure:
    rows = comparison.rows()
    figure, axes = _figure(0.8 + 0.36 * len(rows))
    for place, row in enumerate(rows):
        megabytes = row.mean("bytes_sent") / row.runs[0].nodes / 1e6
        axes.barh(place, megabytes, color=colours[row.strategy], height=0.62)
        axes.text(megabytes, place, f"  {megabytes:.2f}", va="center", fontsize=9)
    axes.set_yticks(range(len(rows)), [row.strategy for row in rows])
    axes.set(xlabel="MB a node", ylim=(len(rows) - 0.4, -0.6))
    return figure


def _timeline(run: RunResult) -> Figure:
    """Links and nodes of one run on one time axis."""
    events = list(read_trace(run.path))
    started = next(event for event in events if isinstance(event, RunStarted))
    failing = sorted({event.link for event in events if isinstance(event, LinkChanged)})
    links = failing or [link for link in started.links if link.count("~") == 1][:12]
    rows = [*links, *started.nodes][:40]
    place = {name: n for n, name in enumerate(rows)}
    figure, axes = _figure(0.7 + 0.2 * len(rows))
    end = run.ended_s
    for link in links:
        changes = [event for event in events if isinstance(event, LinkChanged) and event.link == link]
        for start, stop, up in _states(changes, end):
            axes.barh(place[link], stop - start, left=start, height=0.7, color="#dfe7ea" if up else "#e07a5f", lw=0)
        ends = set(link.split("~"))
        using = [
            (event.began, event.at)
            for event in events
            if isinstance(event, Transferred) and {event.sender, event.receiver} == ends
        ]
        axes.broken_barh(
            [(start, stop - start) for start, stop in _joined(using, end / 500)],
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
    for label, colour in (
        ("link up", "#dfe7ea"),
        ("down", "#e07a5f"),
        ("in use", "#2a6f97"),
        ("computing", "#81b29a"),
        ("waiting", "#f2cc8f"),
    ):
        axes.barh(0, 0, color=colour, label=label)
    axes.plot([], [], "|", color="#3d405b", label="exchanged")
    axes.legend(frameon=False, fontsize=8, ncols=6, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    axes.set_yticks(range(len(rows)), rows, fontsize=8)
    axes.set(xlim=(0, end), ylim=(len(rows) - 0.4, -0.6), xlabel="virtual seconds")
    return figure


def _states(changes: list[LinkChanged], end: float) -> list[tuple[float, float, bool]]:
    spans, since, up = [], 0.0, True
    for change in changes:
        spans.append((since, change.at, up))
        since, up = change.at, change.up
    return [*spans, (since, end, up)]


def _joined(spans: list[tuple[float, float]], nearer_than: float) -> list[tuple[float, float]]:
    """Spans that nearly touch become one: thousands of them would be a large file and look the same."""
    joined: list[tuple[float, float]] = []
    for start, stop in sorted(spans):
        if joined and start - joined[-1][1] <= nearer_than:
            joined[-1] = joined[-1][0], max(joined[-1][1], stop)
        else:
            joined.append((start, stop))
    return joined

"""A comparison as one HTML page that opens anywhere, offline: figures are SVG inside it."""

import io
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib as mpl
from jinja2 import Environment, PackageLoader
from markupsafe import Markup
from matplotlib.figure import Figure

from atoll.report.results import Comparison, Row
from atoll.report.runs import load_run
from atoll.report.timeline import new_figure, timelines
from atoll.trace import Event, IslandsFormed

__all__ = ["write_page"]

COLOURS = ["#2a6f97", "#d1495b", "#66a182", "#edae49", "#8d5a97", "#3d405b", "#9c6644", "#7f7f7f", "#00798c", "#b5838d"]
_PAGES = Environment(loader=PackageLoader("atoll", "report"), autoescape=True, trim_blocks=True, lstrip_blocks=True)


def write_page(comparison: Comparison, path: Path) -> None:
    """Writes the report of a comparison."""
    first = comparison.first
    rows = comparison.rows()
    colours = {row.strategy: COLOURS[n % len(COLOURS)] for n, row in enumerate(rows)}
    nodes = f"{first.nodes} node{'s' * (first.nodes != 1)}"
    page = _PAGES.get_template("page.html").render(
        network=comparison.as_json()["network"],
        about=f"{nodes}, task {first.task}, {first.shards} shards, target {first.target:g}, {_seeds(rows)}",
        warnings=[
            *([comparison.warning] if comparison.warning else []),
            *(f"Failed: {failure.told}" for failure in comparison.failures),
        ],
        heads=_HEADS,
        rows=[_cells(row) for row in rows],
        curves=_svg(_curves(comparison, colours)),
        times=_svg(_bars(comparison, colours)),
        bytes=_svg(_bytes(comparison, colours)),
        runs=[_run(row) for row in rows],
    )
    path.write_text(page, encoding="utf-8")


def _run(row: Row) -> dict[str, Any]:
    """The links and nodes of the first run of a strategy, over time."""
    run = min(row.runs, key=lambda each: each.seed)
    events = load_run(run.paths)
    figures = [_svg(figure) for figure in timelines(events, run.ended_s)]
    return {"strategy": row.strategy, "islands": _islands(events), "figures": figures}


def _seeds(rows: list[Row]) -> str:
    count = max(len(row.runs) + row.failed for row in rows)
    return f"{count} seed{'s' * (count != 1)}"


def _islands(events: list[Event]) -> list[str]:
    """Which nodes held which layers, and from when on, if islands held the model."""
    told: list[str] = []
    before: tuple[str, ...] | None = None
    for event in events:
        if isinstance(event, IslandsFormed) and event.described != before:
            before = event.described
            islands = " · ".join(event.described) or f"none ({event.why})"
            told.append(f"Islands from {event.at:.0f} s: {islands}")
    return told


def _svg(figure: Figure) -> Markup:
    buffer = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "atoll"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return Markup(text[text.index("<svg") :])  # noqa: S704 - matplotlib has escaped it


_HEADS = (
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
    "data used",
    "best",
)


def _cells(row: Row) -> list[str]:
    return [
        row.strategy,
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
        _mean_share(run.data_used for run in row.runs),
        "" if math.isnan(row.mean("best")) else f"{row.mean('best'):.4g}",
    ]


def _mean_seconds(times: Iterable[float | None]) -> str:
    found = list(times)
    known = [time for time in found if time is not None]
    return f"{sum(known) / len(known):.1f}" if known and len(known) == len(found) else "–"


def _mean_share(shares: Iterable[float | None]) -> str:
    known = [share for share in shares if share is not None]
    return f"{sum(known) / len(known):.0%}" if known else "–"


def _at(curve: tuple[tuple[float, float], ...], times: list[float]) -> list[float]:
    values, place, last = [], 0, float("nan")
    for time in times:
        while place < len(curve) and curve[place][0] <= time:
            last = curve[place][1]
            place += 1
        values.append(last)
    return values


def _curves(comparison: Comparison, colours: dict[str, str]) -> Figure:
    made, axes = new_figure(4.6)
    rows = comparison.rows()
    arrived = [run.ended_s for row in rows for run in row.runs if run.seconds_to_target is not None]
    end = 1.1 * max(
        arrived or [run.ended_s for row in rows for run in row.runs]
    )  # runs that never reach the target are cut off
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
    axes.set(xlabel="seconds", ylabel="accuracy" if comparison.first.rising else "loss", xlim=(0, end))
    axes.legend(frameon=False, fontsize=9, loc="lower right" if comparison.first.rising else "upper right")
    return made


def _bars(comparison: Comparison, colours: dict[str, str]) -> Figure:
    rows = comparison.rows()
    made, axes = new_figure(0.9 + 0.36 * len(rows))
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
    axes.set(xlabel="seconds", ylim=(len(rows) - 0.4, -1.1))
    axes.set_xlim(0, None if any(row.seconds for row in rows) else 2 * (ideal or 1))
    return made


def _bytes(comparison: Comparison, colours: dict[str, str]) -> Figure:
    rows = comparison.rows()
    made, axes = new_figure(0.8 + 0.36 * len(rows))
    for place, row in enumerate(rows):
        megabytes = row.mean("bytes_sent") / row.runs[0].nodes / 1e6
        axes.barh(place, megabytes, color=colours[row.strategy], height=0.62)
        axes.text(megabytes, place, f"  {megabytes:.2f}", va="center", fontsize=9)
    axes.set_yticks(range(len(rows)), [row.strategy for row in rows])
    axes.set(xlabel="MB a node", ylim=(len(rows) - 0.4, -0.6))
    return made

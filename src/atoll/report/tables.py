"""Comparisons and strategies as tables for a terminal."""

import math

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from atoll.report.results import Comparison, Row
from atoll.strategies import RECIPES, Recipe

__all__ = ["comparison_table", "list_strategies", "show_strategy"]


def comparison_table(comparison: Comparison) -> RenderableType:
    first = comparison.first
    rows = comparison.rows()
    ideal = rows[0].ideal_seconds if rows else None
    title = Text.assemble(
        (f"{comparison.as_json()['network']}", "bold"),
        f", {first.task}, {first.shards} shards, target {_measure(first.target, rising=first.rising)}",
        f", ideal {ideal:.1f} s" if ideal else "",
    )
    table = Table(box=None, pad_edge=False)
    table.add_column("strategy", style="bold", overflow="fold")
    for column in ("seconds", "of ideal", "steps", "MB/node", "waiting", "best"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        cells = [
            row.strategy,
            _seconds(row),
            _ratio(row),
            f"{row.mean('steps_to_target'):.0f}",
            f"{row.mean('bytes_sent') / row.runs[0].nodes / 1e6:.2f}",
            f"{row.mean('waiting_share'):.0%}",
            _measure(row.mean("best"), rising=first.rising),
        ]
        table.add_row(*cells)
    for strategy in comparison.lost:
        table.add_row(strategy, "failed", *["–"] * 5)
    seeds = max((len(row.runs) + row.failed for row in rows), default=0)
    note = (
        f"Seconds until half of the nodes reach the target, mean over {seeds} seed{'s' * (seeds != 1)} "
        "± half of the 95 % interval; steps, bytes and waiting until then."
    )
    if any(row.on_perfect for row in rows):
        note += (
            " In brackets: the same strategy on perfect links, where it beats the ideal; that part is the optimiser's."
        )
    warning = [Text(comparison.warning, style="bold red")] if comparison.warning else []
    failed = [Text(f"Failed: {failure.told}", style="red") for failure in comparison.failures]
    return Group(title, Text(), table, Text(note, style="dim"), *failed, *warning)


def _seconds(row: Row) -> str:
    failed = f", {row.failed} failed" if row.failed else ""
    if row.seconds is None:
        return ("not reached" if row.reached == 0 else f"{row.reached} of {len(row.runs)} seeds") + failed
    return f"{row.seconds:.1f}" + (f" ± {row.interval:.1f}" if row.interval is not None else "") + failed


def _ratio(row: Row) -> str:
    if row.ratio is None:
        return "–"
    on_perfect = "" if row.ratio_on_perfect is None else f" ({row.ratio_on_perfect:.2f})"
    return f"{row.ratio:.2f}{on_perfect}"


def _measure(value: float, *, rising: bool) -> str:
    if math.isnan(value):
        return "–"  # nothing was tested yet
    return f"{value:.1%}" if rising else f"{value:.3f}"


def list_strategies() -> RenderableType:
    table = Table(box=None, pad_edge=False)
    table.add_column("strategy", style="bold", no_wrap=True)
    table.add_column("settings")
    table.add_column("what it does")
    for recipe in RECIPES.values():
        table.add_row(recipe.name, " ".join(setting.name for setting in recipe.settings), recipe.about)
    return table


def show_strategy(recipe: Recipe) -> RenderableType:
    text = Text.assemble((recipe.name, "bold"), f"  {recipe.about}\n\n", ("rule   ", "dim"), f"{recipe.rule}\n")
    text.append_text(Text.assemble(("paper  ", "dim"), f"{recipe.paper}\n"))
    table = Table(box=None, pad_edge=False)
    for column in ("setting", "type", "default"):
        table.add_column(column)
    for setting in recipe.settings:
        default = (
            {True: "yes", False: "no"}.get(setting.default) if isinstance(setting.default, bool) else setting.default
        )
        default = "–" if default is None else default
        table.add_row(Text(setting.name, style="bold"), setting.expected, str(default))
    return Group(text, table if recipe.settings else Text("It has no settings.", style="dim"))

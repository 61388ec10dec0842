"""The report of a plan of islands: tables for a terminal, and a picture."""

import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from atoll.islands import Costs, Island, Layer, Machine, MachineLinks, Plan, Terms

__all__ = ["draw_plan", "show_plan", "size"]

_PARTS = ("parameters", "optimizer", "stashes", "activations")
_UNITS = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3))
_COLOURS = ("#2a6f97", "#61a5c2", "#a9d6e5", "#f4a261")


def size(value: float) -> str:
    """Bytes with a unit."""
    for unit, factor in _UNITS:
        if value >= factor:
            return f"{value / factor:.3g} {unit}"
    return f"{value:.0f} B"


def show_plan(
    plans: Sequence[Plan], machines: Sequence[Machine], layers: Sequence[Layer], terms: Terms, every: int
) -> RenderableType:
    """The best of some plans, and why the next one is worse."""
    best = plans[0]
    parts: list[RenderableType] = [
        Text.assemble(
            (best.name, "bold"),
            f": {best.samples_a_second:.4g} samples a second predicted ({_together(terms)})\n",
        )
    ]
    legend = "send: to the next stage; held: batches; memory: weights+gradients and optimiser+old weights+activations"
    parts.append(Text(f"{legend}\n", style="dim"))
    for number, island in enumerate(best.islands, 1):
        if number > 12:
            parts.append(Text(f"… and {len(best.islands) - 12} more islands\n", style="dim"))
            break
        parts += [_island_title(number, island, terms), _stages(island, machines, layers), Text()]
    if best.idle:
        parts.append(Text(f"Without a stage: {', '.join(machines[place].name for place in best.idle)}"))
    if len(best.islands) > 1:
        parts.append(Text(_averaging(best, every, terms)))
    if best.name == "every node its own island":
        parts.append(Text("Every node can hold the whole model: plain data parallelism is the fastest here."))
    if len(plans) > 1:
        parts.append(Text(_runner_up(best, plans[1], machines)))
    return Group(*parts)


def _one(terms: Terms) -> str:
    return "batch" if terms.an_update == 1 else "piece"


def _together(terms: Terms) -> str:
    """The size of the pieces that go through the stages."""
    if terms.an_update == 1:
        return f"batches of {terms.batch}"
    return f"pieces of {terms.batch}, {terms.an_update} an update"


def _island_title(number: int, island: Island, terms: Terms) -> Text:
    cut = island.cut
    return Text.assemble(
        (f"Island {number}", "bold"),
        f": {terms.batch / cut.batch_s:.4g} samples a second, a {_one(terms)} every {cut.batch_s:.3g} s, ",
        f"{cut.bubble:.0%} idle on average; limited by {cut.limit}",
    )


def _stages(island: Island, machines: Sequence[Machine], layers: Sequence[Layer]) -> Table:
    largest = max(stage.memory.total for stage in island.cut.stages)
    unit, factor = next((each for each in _UNITS if largest >= each[1]), _UNITS[-1])
    table = Table(box=None, pad_edge=False)
    for column in ("node", "layers"):
        table.add_column(column, no_wrap=True)
    told = f"memory, {unit}"
    for column in ("busy", "send", "held", told, "free"):
        table.add_column(column, justify="right", no_wrap=column != told)
    for place, stage in zip(island.order, island.cut.stages, strict=True):
        held = layers[stage.start : stage.stop]
        free = machines[place].memory_bytes - stage.memory.total
        table.add_row(
            machines[place].name,
            held[0].name if len(held) == 1 else f"{_short(held[0].name)} … {_short(held[-1].name)}",
            f"{stage.compute_s / island.cut.batch_s:.0%}",
            "" if place == island.order[-1] else _seconds(stage.latency_s + stage.send_s),
            str(stage.holds),
            "+".join(f"{getattr(stage.memory, part) / factor:.2g}" for part in _PARTS),
            "any" if math.isinf(free) else size(free),
        )
    return table


def _seconds(value: float) -> str:
    return f"{value:.3g} s" if value >= 1 else f"{1e3 * value:.3g} ms"


def _averaging(plan: Plan, every: int, terms: Terms) -> str:
    """The time that averaging takes, and how often islands can average."""
    period = every * terms.an_update * max(island.cut.batch_s for island in plan.islands)
    told = f"Averaging between islands takes about {plan.averaging_s:.3g} s, while pipelines continue"
    if plan.averaging_s <= period:
        return f"{told}: it fits into {every} steps of the slowest island ({period:.3g} s)."
    steps = math.ceil(plan.averaging_s / (period / every))
    return f"{told}: {every} steps take {period:.3g} s, so islands average every {steps} steps of the slowest instead."


def _runner_up(best: Plan, other: Plan, machines: Sequence[Machine]) -> str:
    slower = 1 - other.samples_a_second / best.samples_a_second
    why = []
    if len(other.idle) > len(best.idle):
        why.append(f"{', '.join(machines[place].name for place in other.idle)} without a stage")
    worst = max(other.islands, key=lambda island: island.cut.bubble)
    if worst.cut.bubble > 0.01:
        names = " ".join(machines[place].name for place in worst.order)
        why.append(f"stages of {names} are idle for {worst.cut.bubble:.0%}, limited by {worst.cut.limit}")
    reason = "; ".join(why) or "its links or stages are slower"
    by = f"{slower:.1%} slower" if slower >= 5e-4 else "as fast"
    return f"Runner-up: {other.name} ({other.how}), {other.samples_a_second:.4g} samples a second, {by}: {reason}."


def draw_plan(plan: Plan, machines: Sequence[Machine], pairs: MachineLinks, costs: Costs, path: Path) -> None:
    """A picture of a plan: a row for each island, a box for each stage with its memory and how busy it is."""
    islands = plan.islands[:24]
    width = max(len(island.order) for island in islands)
    figure = Figure(figsize=(max(6.0, 2.6 * width + 1.2), 1.75 * len(islands) + 1.0), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for row, island in enumerate(islands):
        for column, (place, stage) in enumerate(zip(island.order, island.cut.stages, strict=True)):
            _box(axes, -row, island, column, machines[place], costs)
            if column + 1 < len(island.order):
                hop = pairs.hop(place, island.order[column + 1])
                rate = "" if math.isinf(hop.bytes_a_second) else f"\n{8 * hop.bytes_a_second / 1e6:.3g} Mbit/s"
                axes.annotate(
                    "", (column + 0.98, -row), (column + 0.74, -row), arrowprops={"arrowstyle": "<->", "color": "#555"}
                )
                told = f"{1e3 * stage.latency_s:.3g} ms{rate}"
                axes.text(column + 0.86, -row + 0.1, told, ha="center", va="bottom", fontsize=6.5, color="#555")
    for part, colour in zip(_PARTS, _COLOURS, strict=True):
        axes.plot([], [], "s", color=colour, label=part)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=4, frameon=False, fontsize=8, title="memory")
    more = f" (24 of {len(plan.islands)} shown)" if len(plan.islands) > 24 else ""
    axes.set_title(f"{plan.name}{more}: {plan.samples_a_second:.4g} samples a second", fontsize=11)
    axes.set_xlim(-0.1, width)
    axes.set_ylim(-len(islands) + 0.35, 0.6)
    axes.axis("off")
    figure.savefig(path, dpi=150)


def _box(axes: Axes, y: float, island: Island, x: int, machine: Machine, costs: Costs) -> None:  # noqa: PLR0917
    stage = island.cut.stages[x]
    box = FancyBboxPatch(
        (x + 0.02, y - 0.36), 0.68, 0.76, boxstyle="round,pad=0.02", facecolor="white", edgecolor="#333"
    )
    axes.add_patch(box)
    axes.text(x + 0.05, y + 0.3, machine.name, fontsize=10, fontweight="bold", va="center")
    busy = stage.compute_s / island.cut.batch_s
    axes.text(x + 0.68, y + 0.3, f"{busy:.0%} busy", fontsize=8, va="center", ha="right")
    held = costs.layers[stage.start : stage.stop]
    names = held[0].name if len(held) == 1 else f"{_short(held[0].name)} … {_short(held[-1].name)}"
    axes.text(x + 0.05, y + 0.12, f"{_short(names, 26)}", fontsize=7, va="center")
    axes.text(x + 0.05, y - 0.03, f"{len(held)} layers, {stage.holds} in flight", fontsize=7, va="center", color="#555")
    total = machine.memory_bytes if math.isfinite(machine.memory_bytes) else stage.memory.total
    left = x + 0.05
    axes.barh(y - 0.2, 0.63, left=left, height=0.1, color="#eee", edgecolor="#999", linewidth=0.5)
    for part, colour in zip(_PARTS, _COLOURS, strict=True):
        share = 0.63 * getattr(stage.memory, part) / total
        axes.barh(y - 0.2, share, left=left, height=0.1, color=colour)
        left += share
    has = f" of {size(machine.memory_bytes)}" if math.isfinite(machine.memory_bytes) else ""
    axes.text(x + 0.05, y - 0.31, f"{size(stage.memory.total)}{has}", fontsize=6.5, va="center", color="#555")


def _short(name: str, most: int = 12) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"

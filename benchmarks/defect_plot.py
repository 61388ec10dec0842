"""The picture of benchmarks/defects.py story."""

from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from benchmarks.defect_story import Story

COLOURS = {"alpha": "#4269d0", "beta": "#e8871e", "gamma": "#3ca951", "delta": "#a463f2"}


def plot(story: Story, path: Path) -> None:
    mpl.use("Agg")
    figure, (top, bottom) = plt.subplots(
        2, 1, figsize=(13, 7.6), sharex=True, height_ratios=(4, 1), layout="constrained"
    )
    named: set[str] = set()
    for curve in story.curves:
        colour = COLOURS[curve.node]
        label = "" if curve.node in named else curve.node
        named.add(curve.node)
        own = [(t, loss) for t, loss in zip(curve.times, curve.losses, strict=True)]
        ours = curve.of_the_run()
        first = ours[0][0] if ours else float("inf")
        before = [(t, loss) for t, loss in own if t <= first]
        if before:
            top.plot(*zip(*before, strict=True), color=colour, linewidth=1, linestyle=":", alpha=0.8)
        if ours:
            top.plot(*zip(*ours, strict=True), color=colour, linewidth=1.4, label=label)
        bottom.plot(curve.times, [1000 * rate for rate in curve.rates], color=colour, linewidth=1.2)
    top.plot([], [], color="grey", linestyle=":", label="own model, before the run's is here")
    best = story.best()
    top.plot(*zip(*best, strict=True), color="black", linewidth=0.8, alpha=0.7, label="best model in the run")
    _mark(story, top, bottom)
    top.set_ylabel("held-out loss (nats a character)")
    losses = [loss for curve in story.curves for loss in curve.losses]
    later = [loss for curve in story.curves for t, loss in curve.of_the_run() if t > 15]
    top.set_ylim(min(losses) - 0.05, max(min(losses) + 1.2, *later))  # the first seconds are above
    top.legend(loc="upper center", fontsize=9, framealpha=0.95, ncols=3)
    top.grid(alpha=0.25)
    bottom.grid(alpha=0.25)
    bottom.set_ylabel("rate × 1000")
    bottom.set_xlabel("seconds")
    bottom.set_xlim(0, max(curve.ended for curve in story.curves) + 8)
    bottom.set_title(f"{story.strategy}, AdamW with a schedule, batch norm, live nodes", fontsize=10, loc="left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _mark(story: Story, top: Axes, bottom: Axes) -> None:
    """A line for each thing that was done, with its name along it."""
    last = -10.0
    for at, node, what in story.done:
        colour = COLOURS[node]
        for axes in (top, bottom):
            axes.axvline(at, color=colour, linewidth=0.8, alpha=0.5)
        last = place = max(at, last + 2.6)  # names do not cover each other
        text = f"{node} {what}".replace(f"{node} the founder", f"{node}, the founder,")
        top.text(
            max(0.0, place),
            1.01,
            ":".join(text.split(":")[:2]),  # of an error its name
            rotation=45,
            rotation_mode="anchor",
            fontsize=8.5,
            color=colour,
            transform=top.get_xaxis_transform(),
        )

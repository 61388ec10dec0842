"""`atoll plan`: which nodes should hold which layers of a model."""

import dataclasses
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from atoll.cli.app import Data, NetworkName, TaskName, app
from atoll.errors import TaskError, needs_extra
from atoll.network import load_network

__all__ = ["plan"]


@app.command()
def plan(
    network: NetworkName,
    task: TaskName = "digits",
    data: Data = None,
    model_memory: Annotated[
        str | None,
        typer.Option(help="Plan for a model whose weights, gradients and optimiser take this much, as 6GB."),
    ] = None,
    node_memory: Annotated[
        str | None, typer.Option(help="Memory of nodes that declare none; default with --model-memory: 4GB.")
    ] = None,
    islands: Annotated[
        str, typer.Option(help="auto, or the nodes of each island: A1+A2/B1+B2; and settings (docs/islands.md).")
    ] = "auto",
    every: Annotated[int, typer.Option(min=1, help="Steps between two averages over islands.")] = 8,
    seed: Annotated[int, typer.Option(help="Random seed of the search.")] = 0,
    out: Annotated[Path, typer.Option("--out", help="File for the picture.")] = Path("plan.png"),
) -> None:
    """Plan which nodes should hold which layers of a model: islands, stages, memory, and the expected speed."""
    from atoll.islands import Averaging, Costs
    from atoll.islands.layout import survey_task
    from atoll.islands.settings import parse_islands
    from atoll.settings import parse_size
    from atoll.training.tasks import load_task

    with needs_extra("report", "the picture of a plan"):
        from atoll.report.islands import draw_plan, show_plan, size
    console = Console()
    net = load_network(network)
    settings = parse_islands(islands)
    if not out.parent.is_dir():
        raise TaskError(f"--out {out}: there is no folder {out.parent}")
    if node_memory or model_memory:
        settings = dataclasses.replace(settings, memory=parse_size(node_memory or "4GB", "--node-memory"))
    unsaid = [each.name for each in net.nodes if each.memory_bytes is None]
    if unsaid and model_memory and not node_memory:
        console.print(f"{len(unsaid)} nodes do not declare their memory: assuming 4 GB (--node-memory)")
    survey = survey_task(net, load_task(task, data), settings)
    if model_memory:
        survey = survey.scaled(parse_size(model_memory, "--model-memory"))
    parameters = sum(layer.parameter_bytes for layer in survey.layers)
    console.print(f"{task}: {len(survey.layers)} layers, {size(parameters)} of parameters", highlight=False)
    found = survey.plans(Averaging(every=every), seed=seed)
    if settings.islands:
        found = [survey.plan_of(settings.islands), *found]
    console.print(show_plan(found, survey.machines, survey.layers, survey.terms, every), highlight=False)
    draw_plan(found[0], survey.machines, survey.pairs, Costs(survey.layers, survey.terms), out)
    console.print(f"Picture: {out}", highlight=False, soft_wrap=True)

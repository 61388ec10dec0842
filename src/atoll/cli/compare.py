"""`atoll compare` and `atoll run`: many runs, or one, in simulation or on an emulated network."""

import dataclasses
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from atoll.cli.app import Data, Device, NetworkName, Out, Script, ShardsName, TaskName, app
from atoll.errors import CheckpointError, needs_extra
from atoll.network import load_network
from atoll.world.faults import load_faults

if TYPE_CHECKING:
    from atoll.compare import ComparisonPlan
    from atoll.config import RunConfig

__all__ = ["compare", "run"]

Limit = Annotated[
    float | None,
    typer.Option(
        "--limit", min=1.0, help="Stop each run after this many (virtual) seconds; default: 20 times the ideal."
    ),
]
Faults = Annotated[Path | None, typer.Option("--faults", help="A fault script, TOML (docs/faults.md).")]
WorldOption = Annotated[
    str,
    typer.Option(
        "--world", help="sim (simulated), or emulate: real processes and real TCP on this machine, in real time."
    ),
]
Islands = Annotated[
    str,
    typer.Option("--islands", help="Split the model over groups of nodes: auto, or A1+A2/B1+B2 (docs/islands.md)."),
]


@app.command()
def compare(
    network: NetworkName = "triangle",
    script: Script = None,
    strategies: Annotated[
        list[str] | None,
        typer.Option(
            "--strategy", "-s", help="A communication strategy; repeat for several. Default: a good selection."
        ),
    ] = None,
    task: TaskName = "digits",
    data: Data = None,
    shards: ShardsName = "dirichlet:0.3",
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds.")] = 5,
    jobs: Annotated[int, typer.Option(min=1, help="Parallel runs.")] = os.cpu_count() or 1,
    limit: Limit = None,
    device: Device = "cpu",
    faults: Faults = None,
    world: WorldOption = "sim",
    islands: Islands = "",
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the results to this file.")] = None,
    out: Out = Path("report"),
) -> None:
    """Compare communication strategies by time to target, in simulation: a table, traces, and a report page."""
    from atoll.compare import DEFAULT_STRATEGIES, ComparisonPlan
    from atoll.strategies import ISLANDS_STRATEGY

    base = _config(
        network,
        script,
        task=task,
        data=data,
        shards=shards,
        limit_s=limit,
        device=device,
        world=world,
        islands=islands,
        faults=faults,
    )
    chosen = strategies or ([ISLANDS_STRATEGY] if islands else DEFAULT_STRATEGIES)
    plan = ComparisonPlan(base=base, strategies=tuple(dict.fromkeys(chosen)), seeds=tuple(range(seeds)))
    _compare(plan, out, jobs=jobs, json_file=json_file)


def _config(
    network: str, script: list[str] | None, *, task: str, faults: Path | None, world: str, **more: Any
) -> "RunConfig":
    """The configuration from the options.  A script may stand in the place of the network."""
    from atoll.config import RunConfig

    if network.endswith(".py"):
        network, script = "triangle", [network, *(script or ())]
    net = load_network(network)
    return RunConfig(
        network=net,
        task=Path(script[0]).name if script else task,
        script=tuple(script or ()),
        faults=load_faults(faults, net.node_names) if faults else (),
        world=world,  # type: ignore[arg-type]  # it checks the value itself
        **more,
    )


def _compare(plan: "ComparisonPlan", out: Path, *, jobs: int, json_file: Path | None) -> None:
    from atoll.compare import compare as run_comparison
    from atoll.report.tables import comparison_table

    with needs_extra("report", "the report page"):  # before hours of training, not after them
        from atoll.report.page import write_page
    console = Console()
    traces = out / "traces"
    try:
        found = run_comparison(plan, traces, jobs=jobs, console=console)
    except KeyboardInterrupt:
        kept = len(list(traces.glob("*.jsonl")))
        console.print(f"Stopped. {kept} finished runs are kept in {traces}; `atoll report {out}` shows them.")
        if plan.base.checkpoints:
            where = plan.base.checkpoints
            console.print(f"The same command with --resume resumes from the last checkpoint in {where}.")
        raise typer.Exit(130) from None
    console.print(comparison_table(found))
    if json_file:
        json_file.write_text(json.dumps(found.as_json(), indent=1) + "\n")
    page = out / "report.html"
    write_page(found, page)
    console.print(f"Report: {page}", highlight=False, soft_wrap=True)
    if found.failures:
        told = f"{len(found.failures)} of {len(found.failures) + len(found.results)} runs failed"
        console.print(f"{told}; their tracebacks: {traces}/*.failed.json", highlight=False, soft_wrap=True)
        raise typer.Exit(1)


@app.command()
def run(
    context: typer.Context,
    network: Annotated[
        str, typer.Argument(help="A network, or a run's configuration file (docs/config.md).", metavar="NETWORK|FILE")
    ],
    script: Script = None,
    strategy: Annotated[
        str | None,
        typer.Option(
            "--strategy", "-s", help="Communication strategy; default: the script's own, or allreduce:every=8."
        ),
    ] = None,
    task: TaskName = "digits",
    data: Data = None,
    shards: ShardsName = "dirichlet:0.3",
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    limit: Limit = None,
    device: Device = "cpu",
    faults: Faults = None,
    world: WorldOption = "sim",
    islands: Islands = "",
    *,
    checkpoint: Annotated[
        Path | None, typer.Option("--checkpoint", help="Folder: save every node's state there regularly.")
    ] = None,
    checkpoint_every: Annotated[
        float | None, typer.Option(min=1.0, help="Virtual seconds between checkpoints; default: 60.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the last checkpoint in --checkpoint.")
    ] = False,
    save: Annotated[
        Path | None, typer.Option("--save", help="Write the final model to this file (safetensors).")
    ] = None,
    out: Out = Path("report"),
) -> None:
    """Train once, in simulation or on an emulated network, and show the progress.

    Every run writes its configuration beside its trace; `atoll run FILE` repeats it.
    """
    from atoll.compare import ComparisonPlan
    from atoll.config import RunConfig, is_config
    from atoll.strategies import DEFAULT_STRATEGY, ISLANDS_STRATEGY

    if checkpoint is not None and checkpoint.exists() and not checkpoint.is_dir():
        raise CheckpointError(f"--checkpoint: {checkpoint} is a file: expected a folder")
    more: dict[str, Any] = {
        "task": task,
        "data": data,
        "shards": shards,
        "seed": seed,
        "limit_s": limit,
        "device": device,
        "world": world,
        "islands": islands,
        "checkpoints": checkpoint,
        "checkpoint_s": checkpoint_every or 60.0,
        "resume": resume,
        "save": save,
        "strategy": strategy or "",
    }
    path = Path(network)
    if path.suffix in {".toml", ".json"} and path.is_file() and is_config(path):
        config = RunConfig.read(path)
        names = {"limit": "limit_s", "checkpoint": "checkpoints", "checkpoint_every": "checkpoint_s"}
        given = {names.get(name, name) for name in _given(context)}
        config = dataclasses.replace(config, **{name: value for name, value in more.items() if name in given})
        if faults:
            config = dataclasses.replace(config, faults=load_faults(faults, config.links.node_names))
    else:
        config = _config(network, script, faults=faults, **more)
    if checkpoint_every is not None and config.checkpoints is None:
        raise CheckpointError("--checkpoint-every: expected --checkpoint FOLDER too, which says where to save")
    unsaid = "" if config.script else ISLANDS_STRATEGY if config.islands else DEFAULT_STRATEGY
    plan = ComparisonPlan(base=config, strategies=(config.strategy or unsaid,), seeds=(config.seed,))
    _compare(plan, out, jobs=1, json_file=None)


def _given(context: typer.Context) -> list[str]:
    """The options that were written on the command line."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]

"""The command line.  What a user got wrong is told in one line on standard error, with exit status 2.

Commands import what they need when they run: torch takes seconds to load, and looking at a network should not.
"""

import dataclasses
import io
import json
import os
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from atoll.errors import CheckpointError, InvitationError, StrategyError, TaskError, UserError, nearest, needs_extra
from atoll.network import load_network, preset_names
from atoll.report.networks import list_networks, show_network
from atoll.version import VERSION
from atoll.world.faults import load_faults

if TYPE_CHECKING:
    from atoll.compare import Plan

__all__ = ["app", "main"]

app = typer.Typer(
    help="Train PyTorch models across machines joined by networks that nobody can trust.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:  # noqa: FBT001 - the shape of a typer callback
    if wanted:
        Console().print(f"atoll {VERSION}")
        raise typer.Exit


@app.callback()
def _atoll(
    version: Annotated[  # noqa: FBT002 - handled by its callback
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    pass


@app.command()
def networks(
    name: Annotated[
        str | None, typer.Argument(help="A preset's name, or the path of a TOML file; all if left out.")
    ] = None,
    seed: Annotated[int, typer.Option(help="The weather to show.")] = 0,
    seconds: Annotated[float | None, typer.Option(min=1.0, max=100_000.0, help="How much of it to show.")] = None,
) -> None:
    """List the networks that ship with Atoll, or show one: a drawing, its links, and what happens to them."""
    console = Console()
    if name is None:
        console.print(list_networks(load_network(preset) for preset in preset_names()))
    else:
        console.print(show_network(load_network(name), seed=seed, seconds=seconds, width=console.width))


NetworkName = Annotated[str, typer.Argument(help="A preset's name, or the path of a TOML file.")]
TaskName = Annotated[str, typer.Option("--task", help="digits, mnist, text, or your own as module:object.")]
Data = Annotated[Path | None, typer.Option("--data", help="Where the task's data lies.")]
ShardsName = Annotated[str, typer.Option("--shards", help="iid, dirichlet:A, label or seldp.")]
Limit = Annotated[
    float | None, typer.Option("--limit", min=1.0, help="Virtual seconds; 20 times the ideal if left out.")
]
Device = Annotated[str, typer.Option("--device", help="Where torch computes: cpu, cuda, cuda:1.")]
Faults = Annotated[Path | None, typer.Option("--faults", help="A script of faults, TOML (docs/faults.md).")]
WorldName = Annotated[
    str, typer.Option("--world", help="sim, or emulate: real processes and real TCP on this machine, in real time.")
]
Out = Annotated[Path, typer.Option("--out", help="Where traces and the report go.")]
Islands = Annotated[
    str,
    typer.Option("--islands", help="Nodes that hold a model together: auto, or A1+A2/B1+B2 (docs/islands.md)."),
]
Script = Annotated[
    list[str] | None,
    typer.Argument(help="Your own script, train.py, and its arguments, instead of a task.", metavar="[SCRIPT ARGS…]"),
]


@app.command()
def compare(
    network: NetworkName = "triangle",
    script: Script = None,
    strategies: Annotated[
        list[str] | None, typer.Option("--strategy", "-s", help="May be given many times; a good choice if left out.")
    ] = None,
    task: TaskName = "digits",
    data: Data = None,
    shards: ShardsName = "dirichlet:0.3",
    seeds: Annotated[int, typer.Option(min=1, help="How many.")] = 5,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time.")] = os.cpu_count() or 1,
    limit: Limit = None,
    device: Device = "cpu",
    faults: Faults = None,
    world: WorldName = "sim",
    islands: Islands = "",
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the results here too.")] = None,
    out: Out = Path("report"),
) -> None:
    """Find out which strategy reaches the target first, in simulation: a table, traces, and a page to look at."""
    from atoll.compare import DEFAULT_STRATEGIES, Plan
    from atoll.strategies import ISLANDS_STRATEGY

    network, script = _network_and_script(network, script)
    net = load_network(network)
    plan = Plan.of(
        net,
        task=Path(script[0]).name if script else task,
        script=script,
        data=data,
        strategies=strategies or ([ISLANDS_STRATEGY] if islands else DEFAULT_STRATEGIES),
        shards=shards,
        seeds=range(seeds),
        limit_s=limit,
        device=device,
        faults=load_faults(faults, net.node_names) if faults else (),
        world=world,
        islands=islands,
    )
    _compare(plan, out, jobs=jobs, json_file=json_file)


def _network_and_script(network: str, script: list[str] | None) -> tuple[str, list[str]]:
    """What stands where the network is expected may be a script already."""
    return ("triangle", [network, *(script or ())]) if network.endswith(".py") else (network, script or [])


def _compare(plan: "Plan", out: Path, *, jobs: int, json_file: Path | None) -> None:
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
        if plan.checkpoints:
            console.print(f"The same command with --resume goes on from the last checkpoint in {plan.checkpoints}.")
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
    network: NetworkName,
    script: Script = None,
    strategy: Annotated[
        str | None,
        typer.Option("--strategy", "-s", help="Of communication; else what the script says, or a plain mean."),
    ] = None,
    task: TaskName = "digits",
    data: Data = None,
    shards: ShardsName = "dirichlet:0.3",
    seed: Annotated[int, typer.Option(help="Where all randomness comes from.")] = 0,
    limit: Limit = None,
    device: Device = "cpu",
    faults: Faults = None,
    world: WorldName = "sim",
    islands: Islands = "",
    *,
    checkpoint: Annotated[
        Path | None, typer.Option("--checkpoint", help="Save here, now and then, what every node is.")
    ] = None,
    checkpoint_every: Annotated[
        float | None, typer.Option(min=1.0, help="Virtual seconds between checkpoints; 60 if left out.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last one in --checkpoint.")] = False,
    out: Out = Path("report"),
) -> None:
    """Train once, in simulation, and show it as it goes."""
    from atoll.compare import Plan
    from atoll.strategies import DEFAULT_STRATEGY, ISLANDS_STRATEGY

    if checkpoint is not None and checkpoint.exists() and not checkpoint.is_dir():
        raise CheckpointError(f"--checkpoint: {checkpoint} is a file: expected a folder")
    if resume and checkpoint is None:
        raise CheckpointError("--resume: expected --checkpoint FOLDER too, which says where to go on from")
    if checkpoint_every is not None and checkpoint is None:
        raise CheckpointError("--checkpoint-every: expected --checkpoint FOLDER too, which says where to save")
    network, script = _network_and_script(network, script)
    net = load_network(network)
    plan = Plan.of(
        net,
        task=Path(script[0]).name if script else task,
        script=script,
        data=data,
        strategies=[strategy or ("" if script else ISLANDS_STRATEGY if islands else DEFAULT_STRATEGY)],
        shards=shards,
        seeds=[seed],
        limit_s=limit,
        device=device,
        faults=load_faults(faults, net.node_names) if faults else (),
        world=world,
        islands=islands,
        checkpoints=checkpoint,
        checkpoint_s=checkpoint_every or 60.0,
        resume=resume,
    )
    _compare(plan, out, jobs=1, json_file=None)


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
        str | None, typer.Option(help="What nodes have that do not declare theirs; 4GB where --model-memory is given.")
    ] = None,
    islands: Annotated[
        str, typer.Option(help="auto, or the nodes of each: A1+A2/B1+B2; and settings (docs/islands.md).")
    ] = "auto",
    every: Annotated[int, typer.Option(min=1, help="Steps between two averages of islands.")] = 8,
    seed: Annotated[int, typer.Option(help="Of the search, where there are many nodes.")] = 0,
    out: Annotated[Path, typer.Option("--out", help="Where the picture goes.")] = Path("plan.png"),
) -> None:
    """Find out who should hold which layers of a model: islands, stages, memory, and how fast that will be."""
    from atoll.islands import Averaging, Costs
    from atoll.islands.layout import parse_islands, parse_size, survey_task
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
        console.print(f"{len(unsaid)} nodes do not say what memory they have: taken as 4 GB (--node-memory)")
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


@app.command()
def node(
    script: Script = None,
    listen: Annotated[
        str | None, typer.Option("--listen", help="HOST:PORT to be dialled at; without --join this begins a run.")
    ] = None,
    join: Annotated[str | None, typer.Option("--join", help="An invitation: joins the run that it is for.")] = None,
    task: Annotated[
        str | None, typer.Option("--task", help="digits if left out; who joins need only name its own, module:object.")
    ] = None,
    data: Data = None,
    strategy: Annotated[
        str | None,
        typer.Option("--strategy", "-s", help="Of communication; else what the script says, or a plain mean."),
    ] = None,
    shards: ShardsName = "seldp",
    seed: Annotated[int, typer.Option(help="Where all randomness comes from.")] = 0,
    seats: Annotated[int, typer.Option(min=2, max=250, help="How many machines may take part at one time.")] = 16,
    device: Device = "cpu",
    public: Annotated[
        list[str] | None, typer.Option("--public", help="HOST:PORT to tell others, if not what --listen says.")
    ] = None,
    key: Annotated[
        Path | None, typer.Option("--key", help="A file: keep this machine's key and run: it goes on in its old seat.")
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Leave after so many; never if left out.")] = None,
    save: Annotated[Path | None, typer.Option("--save", help="Write the model here at the end (safetensors).")] = None,
    islands: Annotated[
        str, typer.Option("--islands", help="auto: nodes hold the model together (docs/islands.md).")
    ] = "",
    memory: Annotated[
        str | None, typer.Option("--memory", help="What an island may use of this machine, as 8GB; else what is free.")
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option("--checkpoint", help="A file: keep this node's state, and go on from it.")
    ] = None,
    out: Out = Path("live"),
) -> None:
    """Take part in a run over real links: begin one, or join one with an invitation.  Ctrl-C leaves.

    What a run is about (--task, --strategy, --shards, --seed, --seats) is said by who begins it.
    """
    from atoll.islands.layout import parse_size
    from atoll.nodes import run_node, run_script_node
    from atoll.runs.live import Card, Machine
    from atoll.strategies import DEFAULT_STRATEGY, ISLANDS_STRATEGY
    from atoll.world.live.keys import Invitation, parse_address

    if listen is None and join is None:
        raise InvitationError("expected --listen HOST:PORT to begin a run, or --join INVITATION to join one")
    machine = Machine(
        data=data,
        device=device,
        listen=parse_address(listen, "--listen") if listen else None,
        public=[parse_address(each, "--public") for each in public or ()],
        out=out,
        task=task,
        key=key,
        memory=parse_size(memory, "--memory") if memory else None,
        checkpoint=checkpoint,
    )
    if join:
        what: Card | Invitation = Invitation.parse(join)
    else:
        about = f"script {Path(script[0]).name}" if script else task or "digits"
        unsaid = "" if script else ISLANDS_STRATEGY if islands else DEFAULT_STRATEGY
        what = Card(task=about, strategy=strategy or unsaid, shards=shards, seed=seed, seats=seats, islands=islands)
    if script:
        run_script_node(what, machine, Console(), script)
        return
    run_node(what, machine, Console(), steps=steps, save=save)


@app.command()
def probe(
    invitation: Annotated[str, typer.Argument(help="To a run.")],
    save: Annotated[Path | None, typer.Option("--save", help="Write the network here, as TOML.")] = None,
) -> None:
    """Ask a run what its nodes have measured of their links; the network can be simulated later."""
    from atoll.report.probe import network_of, probe_run

    report = probe_run(invitation)
    text = network_of(report)
    if save:
        try:
            save.write_text(text)
        except OSError as error:
            raise InvitationError(f"--save {save}: {error.strerror or error}") from None
        Console().print(f"Network: {save}; `atoll compare {save}` simulates it.", highlight=False, soft_wrap=True)
    else:
        Console().print(text, markup=False, highlight=False)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="What --out was.")],
    tensorboard: Annotated[
        Path | None, typer.Option("--tensorboard", help="Write scalars for TensorBoard here.")
    ] = None,
) -> None:
    """Make the table and the page again, from traces alone."""
    from atoll.report.results import read_folder
    from atoll.report.tables import comparison_table

    with needs_extra("report", "the report page"):
        from atoll.report.page import write_page
    console = Console()
    traces = folder / "traces" if (folder / "traces").is_dir() else folder
    found = read_folder(traces)
    console.print(comparison_table(found))
    page = folder / "report.html"
    write_page(found, page)
    console.print(f"Report: {page}", highlight=False, soft_wrap=True)
    if tensorboard:
        from atoll.report.tensorboard import write_scalars

        count = write_scalars(sorted(traces.glob("*.jsonl")), tensorboard)
        told = f"Scalars of {count} nodes: tensorboard --logdir {tensorboard}"
        console.print(told, highlight=False, soft_wrap=True)


@app.command()
def strategies(name: Annotated[str | None, typer.Argument(help="One of them; all if left out.")] = None) -> None:
    """List the strategies, or show one: what it does, its settings, and where it comes from."""
    from atoll.report.tables import list_strategies, show_strategy
    from atoll.strategies import RECIPES

    console = Console()
    if name is None:
        console.print(list_strategies())
        return
    if name not in RECIPES:
        raise StrategyError(f"there is no strategy {name!r}; {nearest(name, RECIPES)}")
    console.print(show_strategy(RECIPES[name]))


@app.command()
def fuzz(
    seeds: Annotated[int, typer.Option(min=1, help="How many.")] = 200,
    first: Annotated[int, typer.Option(min=0, help="The first of them.")] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time.")] = os.cpu_count() or 1,
    strategies: Annotated[
        list[str] | None, typer.Option("--strategy", "-s", help="May be given many times; all kinds if left out.")
    ] = None,
    *,
    islands: Annotated[bool, typer.Option("--islands", help="Nodes hold models together, a stage each.")] = False,
) -> None:
    """Run strategies under random faults, in simulation, and look whether what must always hold does hold."""
    from rich.progress import Progress

    from atoll.fuzz import STRATEGIES, Failure, fuzz, minimise
    from atoll.fuzz.islands import ISLAND_STRATEGIES
    from atoll.strategies import parse_strategy

    console = Console()
    chosen = tuple(strategies or (ISLAND_STRATEGIES if islands else STRATEGIES))
    for strategy in chosen:
        parse_strategy(strategy)
    counts: Counter[str] = Counter()
    failures: list[Failure] = []
    done = 0
    stopped = False
    try:
        with (
            Progress(console=console, transient=True) as progress,
            closing(fuzz(range(first, first + seeds), chosen, jobs=jobs, islands=islands)) as found,
        ):
            bar = progress.add_task("Fuzzing", total=seeds)
            for each in found:
                if each is None:
                    continue
                done += 1
                progress.update(bar, completed=done)
                case = each.case if isinstance(each, Failure) else each
                counts.update(fault.kind for fault in case.faults)
                if isinstance(each, Failure):
                    failures.append(each)
                    what = " ".join(each.what.split())
                    console.print(
                        f"seed {case.seed}, {case.strategy}: {what}", markup=False, highlight=False, soft_wrap=True
                    )
    except KeyboardInterrupt:
        stopped = True
    injected = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    told = f"Stopped after {done} of {seeds} seeds" if stopped else f"{seeds} seeds"
    console.print(f"{told}, {len(failures)} failures. Faults: {injected or 'none'}.", highlight=False)
    for failure in [] if stopped else failures[:3]:
        small = minimise(failure)
        again = "".join(f" -s {strategy}" for strategy in strategies or ()) + (" --islands" if islands else "")
        console.print(f"\nseed {small.case.seed}, {small.case.strategy}: {small.what}", markup=False, highlight=False)
        console.print(f"{small.case.network}\n{small.case.script}", markup=False, highlight=False)
        console.print(f"Again: atoll fuzz --first {small.case.seed} --seeds 1{again}", markup=False, highlight=False)
    if failures or stopped:
        raise typer.Exit(130 if stopped else 1)


def main() -> None:
    """What the `atoll` command runs."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace", line_buffering=True)  # a character that cannot be shown is replaced
    try:
        status = app(_with_script(sys.argv[1:]), standalone_mode=False)
    except UserError as error:
        _complain(str(error))
    except typer.Abort:
        sys.exit(130)
    except Exception as error:  # the command line's own complaints have no public base class
        tell = getattr(error, "format_message", None)
        if tell is None:
            raise
        _complain(str(tell()))
    else:
        sys.exit(status if isinstance(status, int) else 0)


def _with_script(arguments: list[str]) -> list[str]:
    """What follows a script's name is the script's, however it looks."""
    for place, argument in enumerate(arguments):
        if argument == "--":
            break
        if place > 0 and argument.endswith(".py") and not argument.startswith("-"):
            return [*arguments[:place], "--", *arguments[place:]]
    return arguments


def _complain(message: str) -> None:
    """One line on standard error, and status 2."""
    print("atoll:", " ".join(message.split()), file=sys.stderr)  # noqa: T201 - no markup, no wrapping
    sys.exit(2)

"""`atoll node`: take part in a run over real links."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from atoll.cli.app import Data, Device, Out, Script, ShardsName, app
from atoll.errors import InvitationError

__all__ = ["node"]


@app.command()
def node(
    script: Script = None,
    listen: Annotated[
        str | None,
        typer.Option("--listen", help="HOST:PORT to accept connections at; without --join this starts a new run."),
    ] = None,
    join: Annotated[str | None, typer.Option("--join", help="An invitation: join that run.")] = None,
    task: Annotated[
        str | None,
        typer.Option(
            "--task", help="What to train; default: digits. To join a run, name only a task of your own, module:object."
        ),
    ] = None,
    data: Data = None,
    strategy: Annotated[
        str | None,
        typer.Option(
            "--strategy", "-s", help="Communication strategy; default: the script's own, or allreduce:every=8."
        ),
    ] = None,
    shards: ShardsName = "seldp",
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    seats: Annotated[int, typer.Option(min=2, max=250, help="Largest number of machines at one time.")] = 16,
    device: Device = "cpu",
    public: Annotated[
        list[str] | None, typer.Option("--public", help="HOST:PORT to announce to others, if it differs from --listen.")
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option("--key", help="Key file: a machine that restarts with it takes its old place in the run."),
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Leave after this many steps; default: never.")] = None,
    save: Annotated[
        Path | None, typer.Option("--save", help="Write the final model to this file (safetensors).")
    ] = None,
    islands: Annotated[
        str, typer.Option("--islands", help="auto: split the model over groups of nodes (docs/islands.md).")
    ] = "",
    memory: Annotated[
        str | None, typer.Option("--memory", help="Memory that islands may use here, as 8GB; default: what is free.")
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option("--checkpoint", help="File: save this node's state there, and resume from it.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="Start a run with this configuration file (docs/config.md).")
    ] = None,
    out: Out = Path("live"),
) -> None:
    """Train on real machines: start a run, or join one with an invitation.  Ctrl-C leaves.

    --task, --strategy, --shards, --seed and --seats are set by the machine that starts the run.
    """
    from atoll.config import RunConfig
    from atoll.nodes import run_node, run_script_node
    from atoll.runs.live import Card, LocalMachine
    from atoll.settings import parse_size
    from atoll.strategies import DEFAULT_STRATEGY, ISLANDS_STRATEGY
    from atoll.world.live.keys import Invitation, parse_address

    if listen is None and join is None:
        raise InvitationError("expected --listen HOST:PORT to begin a run, or --join INVITATION to join one")
    said = RunConfig.read(config) if config else None
    machine = LocalMachine(
        data=said.data if said else data,
        device=said.device if said else device,
        listen=parse_address(listen, "--listen") if listen else None,
        public=[parse_address(each, "--public") for each in public or ()],
        out=out,
        task=task,
        key=key,
        memory=parse_size(memory, "--memory") if memory else None,
        checkpoint=checkpoint or (said.checkpoints if said else None),
    )
    if join:
        what: Card | Invitation = Invitation.parse(join)
    elif said:
        unsaid = ISLANDS_STRATEGY if said.islands else DEFAULT_STRATEGY
        what = Card(
            task=said.task,
            strategy=said.strategy or unsaid,
            shards=said.shards,
            seed=said.seed,
            seats=said.seats,
            islands=said.islands,
        )
    else:
        about = f"script {Path(script[0]).name}" if script else task or "digits"
        unsaid = "" if script else ISLANDS_STRATEGY if islands else DEFAULT_STRATEGY
        what = Card(task=about, strategy=strategy or unsaid, shards=shards, seed=seed, seats=seats, islands=islands)
    if script:
        run_script_node(what, machine, Console(), script)
        return
    run_node(what, machine, Console(), steps=steps, save=save)

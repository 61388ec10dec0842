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
    config: Annotated[
        Path | None, typer.Option("--config", help="A run's configuration: begins a run as it says (docs/config.md).")
    ] = None,
    out: Out = Path("live"),
) -> None:
    """Take part in a run over real links: begin one, or join one with an invitation.  Ctrl-C leaves.

    What a run is about (--task, --strategy, --shards, --seed, --seats) is said by who begins it.
    """
    from atoll.config import RunConfig
    from atoll.nodes import run_node, run_script_node
    from atoll.runs.live import Card, Machine
    from atoll.settings import parse_size
    from atoll.strategies import DEFAULT_STRATEGY, ISLANDS_STRATEGY
    from atoll.world.live.keys import Invitation, parse_address

    if listen is None and join is None:
        raise InvitationError("expected --listen HOST:PORT to begin a run, or --join INVITATION to join one")
    said = RunConfig.read(config) if config else None
    machine = Machine(
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

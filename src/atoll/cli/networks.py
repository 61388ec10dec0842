"""`atoll networks`: list the networks that ship with Atoll, or show one."""

from typing import Annotated

import typer
from rich.console import Console

from atoll.cli.app import app
from atoll.network import load_network, preset_names
from atoll.report.networks import list_networks, show_network

__all__ = ["networks"]


@app.command()
def networks(
    name: Annotated[
        str | None, typer.Argument(help="A preset network, or the path of a network file; default: list the presets.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed of the outages shown.")] = 0,
    seconds: Annotated[float | None, typer.Option(min=1.0, max=100_000.0, help="Seconds to show.")] = None,
) -> None:
    """List the networks that ship with Atoll, or show one: a drawing, its links, and what happens to them."""
    console = Console()
    if name is None:
        console.print(list_networks(load_network(preset) for preset in preset_names()))
    else:
        console.print(show_network(load_network(name), seed=seed, seconds=seconds, width=console.width))

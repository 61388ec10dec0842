"""The command line.  What a user got wrong is told in one line on standard error, with exit status 2."""

import io
import sys
from typing import Annotated

import typer
from rich.console import Console

from atoll.errors import UserError
from atoll.network import load_network, preset_names
from atoll.report.networks import list_networks, show_network
from atoll.version import VERSION

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


def main() -> None:
    """What the `atoll` command runs."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show a character shows another
    try:
        status = app(standalone_mode=False)
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


def _complain(message: str) -> None:
    """One line on standard error, and status 2."""
    print("atoll:", " ".join(message.split()), file=sys.stderr)  # noqa: T201 - no markup, no wrapping
    sys.exit(2)

"""The `atoll` command, and the options that several of its commands share.

Commands import their modules when they run: torch takes seconds to load, and some commands do not need it.
"""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from atoll.version import VERSION

__all__ = ["Data", "Device", "NetworkName", "Out", "Script", "ShardsName", "TaskName", "app"]

app = typer.Typer(
    help="Train PyTorch models across machines joined by unreliable networks.",
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
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


NetworkName = Annotated[str, typer.Argument(help="A preset network, or the path of a network file (TOML).")]
TaskName = Annotated[
    str, typer.Option("--task", help="What to train: digits, mnist, text, or your own as module:object.")
]
Data = Annotated[Path | None, typer.Option("--data", help="Folder with the task's data.")]
ShardsName = Annotated[
    str, typer.Option("--shards", help="How examples are split between nodes: iid, dirichlet:A, label or seldp.")
]
Device = Annotated[str, typer.Option("--device", help="Torch device: cpu, cuda, cuda:1.")]
Out = Annotated[Path, typer.Option("--out", help="Folder for traces and the report.")]
Script = Annotated[
    list[str] | None,
    typer.Argument(help="Your own training script and its arguments, instead of a task.", metavar="[SCRIPT ARGS…]"),
]

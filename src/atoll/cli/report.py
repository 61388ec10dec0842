"""`atoll report`: make the table and the page again, from traces alone."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from atoll.cli.app import app
from atoll.errors import needs_extra

__all__ = ["report"]


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="The folder that --out named.")],
    tensorboard: Annotated[Path | None, typer.Option("--tensorboard", help="Folder for TensorBoard scalars.")] = None,
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

"""`atoll probe`: show the link measurements of a run."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from atoll.cli.app import app
from atoll.errors import InvitationError

__all__ = ["probe"]


@app.command()
def probe(
    invitation: Annotated[str, typer.Argument(help="An invitation to the run.")],
    save: Annotated[Path | None, typer.Option("--save", help="Write the network to this file (TOML).")] = None,
) -> None:
    """Show the link measurements of a run's nodes, as a network that can be simulated later."""
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

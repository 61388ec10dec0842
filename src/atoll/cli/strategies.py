"""`atoll strategies`: list the strategies, or show one."""

from typing import Annotated

import typer
from rich.console import Console

from atoll.cli.app import app
from atoll.errors import StrategyError, nearest

__all__ = ["strategies"]


@app.command()
def strategies(name: Annotated[str | None, typer.Argument(help="A strategy; default: list all.")] = None) -> None:
    """List the strategies, or show one: what it does, its settings, and where it comes from."""
    from atoll.plugins import load_plugins
    from atoll.report.tables import list_strategies, show_strategy
    from atoll.strategies import RECIPES

    load_plugins()
    console = Console()
    if name is None:
        console.print(list_strategies())
        return
    if name not in RECIPES:
        raise StrategyError(f"there is no strategy {name!r}; {nearest(name, RECIPES)}")
    console.print(show_strategy(RECIPES[name]))

"""The seat that a launcher has prepared for the script in this process."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from atoll.errors import StrategyError
from atoll.strategies import Strategy, parse_strategy
from atoll.world.live.world import LiveWorld

__all__ = ["Launch", "launch", "launched", "parse_for_script"]


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A prepared seat in a run."""

    open_world: Callable[[str], AbstractAsyncContextManager[LiveWorld]]
    """Opens the world, given the script's strategy; the run begins when it is open."""
    strategy: str = ""
    """The communication strategy that the user has named; empty: that of the run or the script."""
    task: str = "script"
    """The name of the task."""
    alone: bool = False
    """Whether no other node can join."""
    invitation: Callable[[], str] = str


_prepared: list[Launch] = []


def launch(place: Launch) -> None:
    """Makes `atoll.join()` take this seat from now on."""
    _prepared[:] = [place]


def launched() -> Launch | None:
    return _prepared[0] if _prepared else None


def parse_for_script(strategy: str) -> Strategy:
    """Parses a strategy for a script, which cannot lend its examples."""
    found = parse_strategy(strategy)
    if found.shares_examples:
        raise StrategyError(
            f"strategy {strategy!r}: lenders share examples between nodes, and Atoll has no access to a script's: "
            "leave out lenders, or train a task (atoll run --task)"
        )
    return found

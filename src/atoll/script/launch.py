"""What a launcher has prepared for the script that it runs in this process."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from atoll.errors import StrategyError
from atoll.strategies import Strategy, parse_strategy
from atoll.world.live.world import LiveWorld

__all__ = ["Launch", "launch", "launched", "parse_for_script"]


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A place in a run."""

    open_world: Callable[[str], AbstractAsyncContextManager[LiveWorld]]
    """Opens the world, given the script's strategy; when it is open the run has begun."""
    strategy: str = ""
    """The communication strategy that the user has named; empty: what the run or the script says."""
    task: str = "script"
    """What to call what is learned."""
    alone: bool = False
    """Whether nobody else can take part."""
    invitation: Callable[[], str] = str


_prepared: list[Launch] = []


def launch(place: Launch) -> None:
    """From now on `atoll.join()` takes this place."""
    _prepared[:] = [place]


def launched() -> Launch | None:
    return _prepared[0] if _prepared else None


def parse_for_script(strategy: str) -> Strategy:
    """A strategy that a script's node can use: its examples are its own."""
    found = parse_strategy(strategy)
    if found.shares_examples:
        raise StrategyError(
            f"strategy {strategy!r}: with lenders, nodes give each other examples, and Atoll has none of a script's: "
            "leave out lenders, or train a task (atoll run --task)"
        )
    return found

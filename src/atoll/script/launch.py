"""What a launcher has prepared for the script that it runs in this process."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from atoll.world.live.world import LiveWorld

__all__ = ["Launch", "launch", "launched"]


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A place in a run."""

    open_world: Callable[[], AbstractAsyncContextManager[LiveWorld]]
    """Opens the world; when it is open the run has begun."""
    strategy: str = ""
    """How nodes talk; what the run or the script says if it is empty."""
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

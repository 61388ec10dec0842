"""Cards and machines: the description of a live run, and the resources of a machine in it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atoll.config import RunConfig
from atoll.errors import InvitationError
from atoll.islands.settings import parse_islands
from atoll.strategies import parse_strategy
from atoll.world.live.keys import Address

__all__ = ["Card", "LocalMachine"]

LARGEST_TEXT = 4096


@dataclass(frozen=True, kw_only=True)
class Card:
    """The description of a live run."""

    task: str
    strategy: str
    shards: str = "seldp"
    seed: int = 0
    seats: int = 16
    islands: str = ""
    """How islands hold the model (`parse_islands`); empty: every node holds all of it."""
    parameters: int = 0
    """How many values a script's model has; 0 if unknown."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"n{place}" for place in range(self.seats))

    def config(self, machine: "LocalMachine") -> RunConfig:
        """The run's configuration, on a machine."""
        return RunConfig(
            world="live",
            task=self.task,
            data=machine.data,
            strategy=self.strategy,
            shards=self.shards,
            seed=self.seed,
            device=machine.device,
            checkpoints=machine.checkpoint,
            islands=self.islands,
            seats=self.seats,
        )

    @classmethod
    def read(cls, found: dict[str, Any]) -> "Card":
        try:
            card = cls(**found)
        except TypeError as error:
            raise InvitationError(f"the run's card is not understood ({error})") from None
        card.check()
        return card

    def check(self) -> None:
        """Raises if a value is invalid."""
        for name in ("task", "strategy", "shards", "islands"):
            value = getattr(self, name)
            if not isinstance(value, str) or len(value) > LARGEST_TEXT:
                raise InvitationError(f"the run's card: {name} must be a text of at most {LARGEST_TEXT} characters")
        for name in ("seed", "parameters"):
            value = getattr(self, name)
            if type(value) is not int or abs(value) >= 2**63:
                raise InvitationError(f"the run's card: {name} must be a whole number of at most 63 bits")
        parse_strategy(self.strategy)
        if type(self.seats) is not int or not 2 <= self.seats <= 250:
            raise InvitationError(f"a run has from 2 to 250 seats, not {self.seats!r}")
        if self.islands and parse_islands(self.islands).islands:
            raise InvitationError(f"islands {self.islands!r}: nodes that come and go form them: expected auto")


@dataclass(frozen=True, kw_only=True)
class LocalMachine:
    """The resources and options of this machine."""

    data: Path | None
    device: str
    listen: Address | None
    """The address where it accepts connections; `None`: it only dials."""
    public: Sequence[Address]
    """The addresses that others should dial, if they differ."""
    out: Path | None
    """The folder for its trace; `None`: no trace."""
    task: str | None = None
    """The task that its user has named."""
    key: Path | None = None
    """The file for its key; `None`: none."""
    memory: float | None = None
    """Bytes of memory that an island may use; `None`: what the run says, or the free memory."""
    checkpoint: Path | None = None
    """The file for its state, or for its layers of an island's model; `None`: none."""

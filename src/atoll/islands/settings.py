"""How islands are formed and train, as users write it: `auto:memory=4GB,weights=predict,recompute`."""

import math
from dataclasses import dataclass
from typing import Annotated

from atoll.codecs import CODECS, parse_codec
from atoll.errors import TaskError
from atoll.islands.stage import Weights
from atoll.settings import Count, NumberRange, Read, parse_settings, parse_size, settings_of

__all__ = ["IslandSettings", "parse_islands"]


def _read_wire(text: str, where: str) -> str:
    parse_codec(text, where)
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class IslandSettings:
    """How islands are formed and train."""

    islands: tuple[tuple[str, ...], ...] = ()
    """The nodes of each island, in the order of stages; if empty, the best islands."""
    memory: Annotated[float, Read(parse_size, "a size, as in 6GB or 300MB")] = math.inf
    """The memory of nodes that do not declare theirs, in bytes."""
    weights: Weights = "stash"
    """The weights that a backward pass uses."""
    recompute: bool = False
    """Whether forward passes keep only their input."""
    slower: bool = False
    """Whether late gradients count less."""
    flush: Annotated[int, NumberRange(0)] = 0
    """The number of pieces of a batch, to train synchronously; 0: without waiting."""
    pieces: Count = 1
    """The number of pieces of a batch, without waiting."""
    accumulate: Count = 1
    """The number of batches for an update, without waiting."""
    wire: Annotated[str, Read(_read_wire, "a codec: " + ", ".join(CODECS))] = "dense"
    """The codec of activations and gradients."""


def parse_islands(text: str) -> IslandSettings:
    """Parses a user's text: `auto`, or `A1+A2/B1+B2`; and settings: `auto:memory=4GB,weights=predict,recompute`.

    >>> parse_islands("A1+A2/B1:flush=8").islands
    (('A1', 'A2'), ('B1',))
    """
    who, _, rest = text.partition(":")
    islands = () if who == "auto" else tuple(tuple(each.split("+")) for each in who.split("/"))
    settings = [setting for setting in settings_of(IslandSettings) if setting.name != "islands"]
    return IslandSettings(islands=islands, **parse_settings(rest, settings, f"islands {text!r}", TaskError))

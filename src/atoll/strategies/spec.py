"""Strategies by name: `allreduce:every=4,via=ring,overlap`.

A recipe's signature says what may be written.  What cannot be is refused in one line with what was expected.
"""

import inspect
import math
import typing
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np

from atoll.codecs import CODECS, Codec, parse_codec
from atoll.errors import StrategyError, nearest
from atoll.state import Saved
from atoll.strategies.replica import Quantity, Replica, Work
from atoll.strategies.talk import Strategy, Talk
from atoll.vectors import Vector

__all__ = [
    "DEFAULT_STRATEGY",
    "ISLANDS_STRATEGY",
    "RECIPES",
    "Count",
    "Momentum",
    "Range",
    "Recipe",
    "Setting",
    "Share",
    "parse_strategy",
    "recipe",
]

DEFAULT_STRATEGY = "allreduce:every=8"
"""How nodes talk where nobody says how: a plain mean, with nothing to tune and no further copies of the model."""
ISLANDS_STRATEGY = "allreduce:every=8,overlap"
"""The same between islands: pipelines go on while averages are on their way."""


@dataclass(frozen=True, slots=True)
class Range:
    """What a number may be."""

    least: float = 0.0
    most: float = 1e9

    def __contains__(self, value: float) -> bool:
        return self.least <= value <= self.most

    def __str__(self) -> str:
        return f" from {self.least:g} to {self.most:g}" if self.most < 1e9 else f" of at least {self.least:g}"


Count = Annotated[int, Range(1)]
Share = Annotated[float, Range(0, 1)]
Momentum = Annotated[float, Range(0, 0.999)]
"""What numbers in recipes usually may be."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Something that a user may set."""

    name: str
    kind: Any
    default: Any
    range: Range = Range()

    @classmethod
    def of(cls, name: str, hint: Any, default: Any) -> "Setting":
        if typing.get_origin(hint) is Annotated:
            kind, allowed = typing.get_args(hint)
            return cls(name, kind, default, allowed)
        return cls(name, hint, default)

    @property
    def choices(self) -> tuple[str, ...]:
        return typing.get_args(self.kind) if typing.get_origin(self.kind) is Literal else ()

    @property
    def expected(self) -> str:
        if self.choices:
            return "one of " + "|".join(self.choices)
        if self.kind == Codec | None:
            return "a codec: " + ", ".join(CODECS)
        if self.kind is bool:
            return "yes or no"
        return ("a whole number" if self.kind is int else "a number") + str(self.range)

    def read(self, text: str, where: str) -> Any:
        if self.kind == Codec | None:
            return parse_codec(text, where)
        value: Any = None
        try:
            if self.choices:
                value = text if text in self.choices else None
            elif self.kind is bool:
                value = {"yes": True, "true": True, "no": False, "false": False}.get(text)
            else:
                value = self.kind(text)
                value = value if value in self.range else None
        except ValueError:
            pass
        if value is None:
            hint = f"; {nearest(text, self.choices)}" if self.choices else ""
            raise StrategyError(f"{where}, {self.name}: expected {self.expected}, not {text!r}{hint}")
        return value


@dataclass(frozen=True, slots=True)
class Recipe:
    """A named strategy: how it is made and what may be set."""

    name: str
    make: Callable[..., Talk]
    settings: tuple[Setting, ...]
    about: str
    rule: str
    paper: str


RECIPES: dict[str, Recipe] = {}


def recipe(make: Callable[..., Talk]) -> Callable[..., Talk]:
    """Makes a function the recipe of its name."""
    hints = typing.get_type_hints(make, include_extras=True)
    settings = tuple(
        Setting.of(name, hints[name], parameter.default)
        for name, parameter in inspect.signature(make).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    )
    lines = (inspect.getdoc(make) or "").splitlines() or [""]
    told = {line.split(":")[0]: line.partition(": ")[2] for line in lines[1:] if ": " in line}
    RECIPES[make.__name__] = Recipe(
        make.__name__, make, settings, about=lines[0], rule=told.get("Rule", ""), paper=told.get("Paper", "")
    )
    return make


def parse_strategy(text: str) -> Strategy:
    """The strategy that a user wrote.

    >>> parse_strategy("allreduce:every=4,overlap").name
    'allreduce:every=4,overlap'
    """
    name, _, rest = text.partition(":")
    found = RECIPES.get(name)
    if found is None:
        raise StrategyError(f"there is no strategy {name!r}; {nearest(name, RECIPES)}")
    settings = {setting.name: setting for setting in found.settings}
    chosen: dict[str, Any] = {}
    for piece in filter(None, rest.split(",")):
        key, equals, value = piece.partition("=")
        where = f"strategy {text!r}"
        if not equals:
            key, value = _bare(key, settings, where)
        if key not in settings:
            hint = nearest(key, settings) if settings else "it has none"
            raise StrategyError(f"{where}: there is no setting {key!r}; {hint}")
        if key in chosen:
            raise StrategyError(f"{where}: {key!r} is set twice")
        chosen[key] = settings[key].read(value, where)
    make = partial(_join, found.make, chosen)
    try:
        talk = make(_Nobody())
    except StrategyError as error:
        raise StrategyError(f"strategy {text!r}: {error}") from None
    return Strategy(text, make, uses_gradients=talk.uses_gradients, shares_examples=talk.shares_examples)


class _Nobody:
    """A replica of nothing.  Parts refuse what they cannot do when they are made; each strategy is made once for it."""

    name = "nobody"
    members = ("nobody",)
    rank = 0
    steps = 0

    @property
    def world(self) -> Any:
        return self

    @property
    def group(self) -> Any:
        return self

    @property
    def work(self) -> Work:
        return np.zeros(1, dtype=np.int64)

    def read(self, quantity: Quantity) -> Vector:
        return np.zeros(0 if quantity is Quantity.BUFFERS else 1, dtype=np.float32)

    def write(self, quantity: Quantity, values: Vector) -> None:
        """Nobody has a model."""

    add = write

    def lend(self, share: float) -> bytes:  # noqa: ARG002
        return b""

    def borrow(self, examples: bytes) -> None:
        """Nor examples."""

    def scale_batch(self, factor: float) -> None:
        """Nor batches."""

    def include(self, work: Work) -> None:
        """Nor work."""

    @property
    def loss(self) -> float:
        return math.nan

    def memory(self) -> Saved:
        return {}

    @property
    def global_step(self) -> int:
        return 0

    def take_over(self, work: Work, memory: Saved, steps: int) -> None:
        """Nor anything to hand over."""


def _join(make: Callable[..., Talk], chosen: dict[str, Any], replica: Replica) -> Talk:
    return make(replica, **chosen)


def _bare(word: str, settings: dict[str, Setting], where: str) -> tuple[str, str]:
    """A word alone: a switch turned on, or a choice that only one setting has."""
    if word in settings and settings[word].kind is bool:
        return word, "yes"
    having = [setting.name for setting in settings.values() if word in setting.choices]
    if len(having) == 1:
        return having[0], word
    if word in settings:
        raise StrategyError(f"{where}: {word!r} wants a value: {word}=… ({settings[word].expected})")
    known = [*settings, *(choice for setting in settings.values() for choice in setting.choices)]
    raise StrategyError(f"{where}: there is no setting {word!r}; {nearest(word, known) if known else 'it has none'}")

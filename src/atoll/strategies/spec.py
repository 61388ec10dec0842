"""Strategies by name: `allreduce:every=4,via=ring,overlap`.

A recipe is a function that composes a strategy; the parameters of its signature are its settings.  A parameter that is
a dataclass stands for all of its fields: settings that several recipes share are written once.
"""

import dataclasses
import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from atoll.errors import StrategyError, nearest
from atoll.plugins import load_plugins
from atoll.settings import Setting, parse_settings, settings_of, write_settings
from atoll.strategies.replica import Replica
from atoll.strategies.talk import Strategy, Talk

__all__ = ["DEFAULT_STRATEGY", "ISLANDS_STRATEGY", "RECIPES", "Named", "Recipe", "parse_strategy", "recipe"]

DEFAULT_STRATEGY = "allreduce:every=8"
"""The default communication strategy: a plain mean, with nothing to tune and no further copies of the model."""
ISLANDS_STRATEGY = "allreduce:every=8,overlap"
"""The same between islands: pipelines continue while averages are in flight."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """A named strategy: its factory and its settings."""

    name: str
    make: Callable[..., Strategy]
    groups: tuple[tuple[str, Callable[..., Any]], ...]
    """Parameters that stand for several settings, and their dataclasses."""
    settings: tuple[Setting, ...]
    about: str
    rule: str
    paper: str

    def compose(self, values: dict[str, Any]) -> Strategy:
        """The strategy with these settings; the others are defaults."""
        left, given = dict(values), {}
        for name, group in self.groups:
            names = [setting.name for setting in settings_of(group)]
            given[name] = group(**{each: left.pop(each) for each in names if each in left})
        return self.make(**given, **left)


RECIPES: dict[str, Recipe] = {}
Make = typing.TypeVar("Make", bound=Callable[..., Strategy])


def recipe(make: Make) -> Make:
    """Registers a function as the recipe of its name."""
    hints = typing.get_type_hints(make)
    groups = tuple(
        (name, hints[name]) for name in inspect.signature(make).parameters if dataclasses.is_dataclass(hints[name])
    )
    settings = (*settings_of(make), *(setting for _, group in groups for setting in settings_of(group)))
    lines = (inspect.getdoc(make) or "").splitlines() or [""]
    said = {line.split(":")[0]: line.partition(": ")[2] for line in lines[1:] if ": " in line}
    name = make.__name__
    RECIPES[name] = Recipe(name, make, groups, settings, lines[0], said.get("Rule", ""), said.get("Paper", ""))
    return make


@dataclass(frozen=True, slots=True)
class Named(Strategy):
    """A recipe's strategy.  It prints as the text that a user writes, and parsing that text makes an equal one."""

    name: str = dataclasses.field(compare=False)
    """The text as written."""
    text: str
    """The same, without default values."""
    composition: Strategy = dataclasses.field(compare=False)

    def __str__(self) -> str:
        return self.text

    def start(self, replica: Replica) -> Talk:
        return self.composition.start(replica)

    @property
    def uses_gradients(self) -> bool:
        return self.composition.uses_gradients

    @property
    def shares_examples(self) -> bool:
        return self.composition.shares_examples


def parse_strategy(text: str) -> Named:
    """The strategy that a user wrote.

    >>> str(parse_strategy("allreduce:ring,every=1"))
    'allreduce:via=ring'
    """
    name, _, rest = text.partition(":")
    if name not in RECIPES:
        load_plugins()
    found = RECIPES.get(name)
    if found is None:
        raise StrategyError(f"there is no strategy {name!r}; {nearest(name, RECIPES)}")
    where = f"strategy {text!r}"
    values = parse_settings(rest, found.settings, where, StrategyError)
    try:
        composition = found.compose(values)
    except StrategyError as error:
        raise StrategyError(f"{where}: {error}") from None
    settings = write_settings(values, found.settings)
    return Named(text, f"{name}:{settings}" if settings else name, composition)

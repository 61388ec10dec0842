"""Communication strategies, composed of when, with whom, what, and how to merge."""

from atoll.strategies import recipes  # named strategies register themselves
from atoll.strategies.replica import Quantity, Replica, Work
from atoll.strategies.spec import DEFAULT_STRATEGY, ISLANDS_STRATEGY, RECIPES, Recipe, parse_strategy
from atoll.strategies.talk import Strategy, Talk

__all__ = [
    "DEFAULT_STRATEGY",
    "ISLANDS_STRATEGY",
    "RECIPES",
    "Quantity",
    "Recipe",
    "Replica",
    "Strategy",
    "Talk",
    "Work",
    "parse_strategy",
    "recipes",
]

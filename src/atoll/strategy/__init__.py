"""How nodes talk: strategies composed of when, with whom, what, and how to merge."""

from atoll.strategy import recipes  # the named ones register themselves
from atoll.strategy.replica import Quantity, Replica, Work
from atoll.strategy.spec import RECIPES, Recipe, parse_strategy
from atoll.strategy.talk import Strategy, Talk

__all__ = ["RECIPES", "Quantity", "Recipe", "Replica", "Strategy", "Talk", "Work", "parse_strategy", "recipes"]

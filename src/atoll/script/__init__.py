"""A user's own script: its model, optimiser and data, in a run with others."""

from atoll.script.joining import join
from atoll.script.run import Run

__all__ = ["Run", "join"]

"""A user's own script: its model, optimiser and data, in a run with others."""

from atoll.script.run import Run, join

__all__ = ["Run", "join"]

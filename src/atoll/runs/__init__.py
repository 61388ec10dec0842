"""Runs: the nodes of a run put together, in every world, and whether they have reached the target."""

from atoll.runs.simulated import IDEAL_STRATEGY, RunSpec, simulate

__all__ = ["IDEAL_STRATEGY", "RunSpec", "simulate"]

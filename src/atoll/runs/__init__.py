"""Runs: the nodes of a run put together, in every world, and whether they have reached the target."""

from atoll.runs.node import Kit, build_node
from atoll.runs.simulated import IDEAL_STRATEGY, simulate_run

__all__ = ["IDEAL_STRATEGY", "Kit", "build_node", "simulate_run"]

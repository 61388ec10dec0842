"""Runs: assembles the nodes of a run, in every world, and decides when the target is reached."""

from atoll.runs.node import Kit, build_node
from atoll.runs.simulated import IDEAL_STRATEGY, simulate_run

__all__ = ["IDEAL_STRATEGY", "Kit", "build_node", "simulate_run"]

"""Machines that compute wrongly: the effect of the faults `garbage` and `exaggerate` on a node's steps."""

from collections.abc import Sequence

import numpy as np

from atoll.seeds import derive
from atoll.vectors import Vector, of_array
from atoll.world.faults import Fault

__all__ = ["Damage"]


class Damage:
    """The damage of one node.

    Args:
        node: its name.
        faults: the faults of the run.
        seed: the seed of the run.
    """

    def __init__(self, node: str, faults: Sequence[Fault], seed: int) -> None:
        self._faults = [fault for fault in faults if fault.kind in ("garbage", "exaggerate") and node in fault.nodes]
        self._draw = np.random.default_rng(derive(seed, "damage", node))

    def now(self, seconds: float) -> list[Fault]:
        """The active faults at a time."""
        return [fault for fault in self._faults if fault.at <= seconds < fault.until]

    def __call__(self, faults: list[Fault], before: Vector, after: Vector) -> Vector:
        """The damaged result of a step."""
        for fault in faults:
            if fault.kind == "garbage":
                after = of_array(self._draw.normal(size=len(after)), after.device)
            else:
                after = before + fault.factor * (after - before)
        return after

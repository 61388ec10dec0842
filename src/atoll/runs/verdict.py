"""The verdict: when a run is decided."""

from collections.abc import Callable, Collection
from typing import Any

__all__ = ["Verdict"]

LINGER = 1.5
"""A run goes on until all nodes have the target, but not beyond this many times what half of them took."""


class Verdict:
    """Hears every test, and says when the run is over.

    Args:
        reached: whether a measure is the target, or better.
        stops: whether the run ends when the target is reached; else only the limit ends it.
    """

    def __init__(self, reached: Callable[[float], bool], *, stops: bool) -> None:
        self._reached = reached
        self._stops = stops
        self._last: dict[str, float] = {}
        self._half_s: float | None = None

    def tested(self, node: str, measure: float) -> None:
        self._last[node] = measure

    def begins_anew(self, node: str) -> None:
        """A node has crashed: what it had reached is gone."""
        self._last.pop(node, None)

    def is_over(self, now: float, live: Collection[str]) -> bool:
        if not live:
            return False  # nobody is at work: that may change
        arrived = sum(name in self._last and self._reached(self._last[name]) for name in live)
        if self._half_s is None and 2 * arrived >= len(live):
            self._half_s = now
        return self._stops and (arrived == len(live) or (self._half_s is not None and now > LINGER * self._half_s))

    def save(self) -> dict[str, Any]:
        return {"last": self._last, "half_s": self._half_s}

    def load(self, saved: dict[str, Any]) -> None:
        self._last, self._half_s = saved["last"], saved["half_s"]

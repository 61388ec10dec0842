"""The verdict: when a run is decided."""

from collections.abc import Sequence

from atoll.trace import Event, Targets

__all__ = ["Verdict"]

LINGER = 1.5
"""A run continues until all nodes reach the target, but at most this many times as long as half of them took."""


class Verdict:
    """Sees every event, and decides when the run is over.

    Args:
        nodes: the nodes of the run.
        stops: whether the run ends when the target is reached; otherwise only the limit ends it.
    """

    def __init__(self, nodes: Sequence[str], *, stops: bool) -> None:
        self._targets = Targets(nodes)
        self._stops = stops

    def watch(self, event: Event) -> None:
        """Processes the next event."""
        self._targets.watch(event)

    def is_over(self, now: float) -> bool:
        found = self._targets
        if not self._stops or not found.live:  # no node is live: that may change
            return False
        half_s = found.arrivals.half
        return found.arrived >= found.live or (half_s is not None and now > LINGER * half_s)

"""Which agreements a node has behind it: what tells nodes that were apart how far they went together.

An agreement is named after the view that it was made in and its number there.  A node remembers what it held when a
view ended; the last of those that another node has too is their common ancestor.
"""

from collections import deque
from collections.abc import Iterable

from atoll.exchange import Vector
from atoll.group import Summary

__all__ = ["Agreement", "Lineage"]

Agreement = tuple[str, int]
KEPT = 4
"""How many views back a common ancestor is looked for."""


class Lineage:
    """One node's agreements."""

    def __init__(self) -> None:
        self.current: Agreement = "", 0
        self._past: deque[Agreement] = deque(maxlen=KEPT)
        self._bases: deque[tuple[Agreement, list[Vector]]] = deque(maxlen=2 * KEPT)

    def summary(self) -> Summary:
        return [list(each) for each in (*self._past, self.current)]

    def agreed(self, view: str, number: int) -> None:
        self.current = view, number

    def ends(self, held: list[Vector], *, given: tuple[Agreement, list[Vector]] | None) -> None:
        """A view ends.

        Args:
            held: what the node holds, a vector a lane.
            given: the agreement that the node was about to take part in, and what it gave: should others have come to
                it, the node's changes up to there are in it.
        """
        self._past.append(self.current)
        self._bases.append((self.current, held))
        if given:
            self._bases.append(given)

    def base(self, theirs: Iterable[Agreement]) -> list[Vector] | None:
        """What this node had when it last agreed with those who have these agreements behind them; `None` if that is
        too long ago.
        """
        known = set(theirs)
        return next((held for agreement, held in reversed(self._bases) if agreement in known), None)

    def adopt(self, theirs: list[Agreement]) -> None:
        """Goes on as one of those who have these behind them."""
        *past, self.current = theirs
        self._past = deque(past, maxlen=KEPT)

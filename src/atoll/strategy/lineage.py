"""Which agreements a node has behind it: what tells nodes that were apart how far they went together.

An agreement is named after the view that it was made in and its number there.  A node remembers its last two, and those
that views ended with; the last one that most members of a new view remember is what all of them go on from.
"""

from collections.abc import Iterable
from typing import Any

from atoll.exchange import Vector
from atoll.group import Summary
from atoll.saved import Saved, note, part, read_note

__all__ = ["START", "Agreement", "Lineage", "read_summary"]

Agreement = tuple[str, int]
START: Agreement = "", 0
KEPT = 4
"""How many ends of views are remembered."""


def read_summary(summary: Summary) -> list[Agreement]:
    return [_agreement(each) for each in summary]


def _agreement(written: list[Any]) -> Agreement:
    view, number = written
    return str(view), int(number)


class Lineage:
    """One node's agreements, oldest first, each with what the node then held, a vector a fragment.

    Args:
        held: what the node begins with.
        start: what to call that; the same for all who begin together.
    """

    def __init__(self, held: list[Vector], start: Agreement = START) -> None:
        self._held: dict[Agreement, list[Vector]] = {start: held}
        self._ends: list[Agreement] = []

    @property
    def current(self) -> Agreement:
        return next(reversed(self._held))

    @property
    def held(self) -> list[Vector]:
        """What the node held at its last agreement."""
        return self._held[self.current]

    def summary(self) -> Summary:
        return [list(agreement) for agreement in self._held]

    def agreed(self, view: str, number: int, held: list[Vector]) -> None:
        self._held[view, number] = held
        keep = {*self._ends, *list(self._held)[-2:]}
        self._held = {agreement: vectors for agreement, vectors in self._held.items() if agreement in keep}

    def ends(self) -> None:
        """A view ends."""
        self._ends = [*self._ends, self.current][-KEPT:]

    def __contains__(self, agreement: Agreement) -> bool:
        return agreement in self._held

    @staticmethod
    def chosen(members: Iterable[list[Agreement]]) -> Agreement:
        """The agreement to go on from: the one that most members have behind them, and the last of these.

        All who know where the members stand find the same.
        """
        holders: dict[Agreement, int] = {}
        places: dict[Agreement, int] = {}
        for theirs in members:
            for place, agreement in enumerate(theirs):
                holders[agreement] = holders.get(agreement, 0) + 1
                places.setdefault(agreement, place)
        return max(holders, key=lambda each: (holders[each], places[each], each == START, each[1], each[0]))

    def back_to(self, agreement: Agreement) -> list[Vector]:
        """Forgets what came after an agreement, and returns what the node held then."""
        while self.current != agreement:
            del self._held[self.current]
        self._ends = [each for each in self._ends if each in self._held]
        return self._held[agreement]

    def save(self) -> Saved:
        vectors = {
            f"{place}/{number}": vector
            for place, held in enumerate(self._held.values())
            for number, vector in enumerate(held)
        }
        return {**vectors, "agreements": note(list(self._held)), "ends": note(self._ends)}

    def load(self, saved: Saved) -> None:
        names = [_agreement(each) for each in read_note(saved["agreements"])]
        self._held = {name: list(part(str(place), saved).values()) for place, name in enumerate(names)}
        self._ends = [_agreement(each) for each in read_note(saved["ends"])]

    def adopt(self, agreement: Agreement, held: list[Vector]) -> None:
        """Goes on as one of those who have just this."""
        self._held, self._ends = {agreement: held}, []

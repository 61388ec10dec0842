"""A node's past agreements: they show nodes that were apart the last state that they had in common.

An agreement is named after the view that it was made in and its number there: members agree block by block.  A node
remembers its last ones, as far back as other members may be behind, and those that views ended with.  Agreements share
the blocks in which they do not differ.

When a view is installed, every member knows where every other stands (`Standing`), and all find the same agreement to
continue from (`common_agreement`): the one from which most work survives.  A node that holds it keeps its model, and
the next round merges the changes of each since then; any other node receives it from a holder.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from atoll.membership import Summary
from atoll.state import Saved, note, read_note, section
from atoll.strategies.replica import MOST_WORK, Work
from atoll.vectors import Vector, as_array, of_array

__all__ = ["START", "Agreement", "Common", "Lineage", "Standing", "common_agreement"]

Agreement = tuple[str, int]
START: Agreement = "", 0
KEPT = 4
"""How many agreements at ends of views are kept, for small models."""
SMALL_BYTES = 16 << 20
"""For larger models only the last one is kept: each is a copy of the model."""
MOST_AGREEMENTS = 64
LONGEST_NAME = 200


@dataclass(frozen=True, slots=True)
class Standing:
    """A node's state for the others: its agreements, and the work that its model includes."""

    agreements: tuple[Agreement, ...]
    work: tuple[int, ...]
    """Samples of each member of the run that its model includes."""
    is_new: bool
    """Whether it never held the run's model: it did not begin the run, and nobody has handed it anything."""
    distrusts: frozenset[str] = frozenset()
    """Members whose state the node received and refused."""
    taking: Agreement | None = None
    """The agreement that the node is receiving and has a part of."""

    def summary(self) -> Summary:
        told: Summary = [["new", int(self.is_new)], ["work", " ".join(map(str, self.work))]]
        told += [["distrusts", name] for name in sorted(self.distrusts)]
        if self.taking:
            told.append([f"taking {self.taking[0]}", self.taking[1]])
        return told + [[f"agreed {view}", number] for view, number in self.agreements]

    @classmethod
    def read(cls, summary: Summary, members: int) -> "Standing":
        """Reads a member's summary; a `ValueError` if it is malformed."""
        agreements: list[Agreement] = []
        facts: dict[str, int | str] = {}
        distrusts, taking = set(), None
        for key, value in summary:
            if key.startswith("agreed "):
                agreements.append(_checked(key.removeprefix("agreed "), value))
            elif key.startswith("taking "):
                taking = _checked(key.removeprefix("taking "), value)
            elif key == "distrusts":
                distrusts.add(str(value)[:LONGEST_NAME])
            else:
                facts[key] = value
        work = tuple(int(each) for each in str(facts.get("work", "")).split())
        if len(work) != members or not all(0 <= each < MOST_WORK for each in work):
            raise ValueError("the work is not one count for each member")
        if not 0 < len(agreements) <= MOST_AGREEMENTS:
            raise ValueError(f"{len(agreements)} agreements")
        return cls(tuple(agreements), work, bool(facts.get("new", 1)), frozenset(distrusts), taking)


@dataclass(frozen=True, slots=True)
class Common:
    """The agreement that the members of a view continue from."""

    agreement: Agreement
    holders: tuple[str, ...]
    """The members that hold it, in the view's order."""
    work: Work
    """The work that their models include together, and so the model of all after their next round."""
    is_now: bool = False
    """Whether it is the model of the only holder at its next step boundary."""


def common_agreement(standings: Mapping[str, Standing], view: str = "") -> Common:
    """The agreement from which most work survives.

    Its holders keep their models, so all work that any of them includes survives.  A node that never held the run's
    model cannot win against one that did, whatever it has learned alone; nor can a node whose state most others have
    refused.  Among equals the one with more holders wins, and of these the last.  All nodes with the same standings get
    the same result.

    If there is a single holder, its last agreement may be old or with itself only.  Then nodes that need a state
    receive its current model, unless they have a part of the state that they were receiving before.

    Args:
        standings: the standing of each member.
        view: the name of the view that begins.
    """
    holders: dict[Agreement, list[str]] = {}
    places: dict[Agreement, int] = {}
    for name, standing in standings.items():
        for place, agreement in enumerate(standing.agreements):
            holders.setdefault(agreement, []).append(name)
            places.setdefault(agreement, place)

    def is_trusted(name: str) -> bool:
        others = [standing for other, standing in standings.items() if other != name]
        return 2 * sum(name in standing.distrusts for standing in others) <= len(others)

    def rank(agreement: Agreement) -> tuple[Any, ...]:
        names = holders[agreement]
        return (
            any(is_trusted(name) for name in names),
            any(not standings[name].is_new for name in names),
            int(_together(standings, names).sum()),
            len(names),
            places[agreement],
            agreement == START,
            agreement[1],
            agreement[0],
        )

    best = max(holders, key=rank)
    found = Common(best, tuple(holders[best]), _together(standings, holders[best]))
    if len(standings) == 1 or len(found.holders) > 1:
        return found
    own = standings[found.holders[0]].agreements
    under_way = [each.taking for each in standings.values() if each.taking in own]
    if under_way and under_way[0]:
        return replace(found, agreement=under_way[0])
    return replace(found, agreement=(view, 0), is_now=True)


def _together(standings: Mapping[str, Standing], names: list[str]) -> Work:
    work: Work = np.max([standings[name].work for name in names], axis=0).astype(np.int64)
    return work


class Lineage:
    """One node's agreements, oldest first, each with the values that the node then held, one vector per block.

    Args:
        held: the node's initial values.
        start: the name of that agreement; the same for all nodes that begin together.
        behind: by how many agreements other members may be behind.
        is_new: whether that is not the run's model, but the node's own.
    """

    def __init__(self, held: list[Vector], start: Agreement = START, *, behind: int = 1, is_new: bool = False) -> None:
        self._held: dict[Agreement, list[Vector]] = {start: held}
        self._ends: list[Agreement] = []
        self._behind = behind
        self._kept = KEPT if sum(vector.nbytes for vector in held) <= SMALL_BYTES else 1
        self.is_new = is_new

    @property
    def current(self) -> Agreement:
        return next(reversed(self._held))

    @property
    def held(self) -> list[Vector]:
        """The node's values at its last agreement."""
        return self._held[self.current]

    @property
    def agreements(self) -> tuple[Agreement, ...]:
        return tuple(self._held)

    def agreed(self, view: str, number: int, held: list[Vector]) -> None:
        self._held[view, number] = held
        keep = {*self._ends, *list(self._held)[-1 - self._behind :]}
        self._held = {agreement: vectors for agreement, vectors in self._held.items() if agreement in keep}

    def everybody_holds(self, agreement: Agreement, *, all_are_here: bool) -> None:
        """Called when all members of the view hold an agreement, or a later one: nobody needs those before it.

        Args:
            agreement: one of this node's.
            all_are_here: whether the view has all members of the run: then nobody is away with an older agreement.
        """
        if agreement not in self._held:
            return
        if all_are_here:
            self._ends = []
        names = list(self._held)
        keep = {*self._ends, *names[names.index(agreement) :]}
        self._held = {each: vectors for each, vectors in self._held.items() if each in keep}

    def ends(self) -> None:
        """Called when a view ends in which the node was not alone."""
        if self.current not in self._ends:
            self._ends = [*self._ends, self.current][-self._kept :]

    def __contains__(self, agreement: Agreement) -> bool:
        return agreement in self._held

    def back_to(self, agreement: Agreement) -> list[Vector]:
        """Forgets the agreements after this one, and returns the node's values at this one.

        It is kept like the end of a view: other nodes that took part may return to it.
        """
        while self.current != agreement:
            del self._held[self.current]
        self._ends = [each for each in self._ends if each in self._held]
        self.ends()
        return self._held[agreement]

    def save(self) -> Saved:
        """Of each agreement the blocks in which it differs from the one before."""
        vectors: Saved = {}
        before: list[Vector | None] = [None] * len(self.held)
        for place, held in enumerate(self._held.values()):
            for number, vector in enumerate(held):
                if vector is not before[number]:
                    vectors[f"{place}/{number}"] = as_array(vector)
            before = [*held]
        facts = {"agreements": note(list(self._held)), "ends": note(self._ends), "new": note(self.is_new)}
        return {**vectors, **facts}

    def load(self, saved: Saved) -> None:
        names = [_agreement(each) for each in read_note(saved["agreements"])]
        before, held = self.held, dict[Agreement, list[Vector]]()
        for place, name in enumerate(names):
            arrays = section(str(place), saved)
            held[name] = [
                of_array(arrays[str(number)], vector.device, vector.dtype) if str(number) in arrays else vector
                for number, vector in enumerate(before)
            ]
            before = held[name]
        self._held = held
        self._ends = [_agreement(each) for each in read_note(saved["ends"])]
        self.is_new = bool(read_note(saved["new"]))

    def adopt(self, agreement: Agreement, held: list[Vector]) -> None:
        """Continues from this agreement only."""
        self._held, self._ends, self.is_new = {agreement: held}, [], False

    def forget(self, start: Agreement) -> None:
        """Drops all agreements: the node must then receive the others' state."""
        self._held, self._ends, self.is_new = {start: self.held}, [], True


def _checked(view: str, number: Any) -> Agreement:
    """An agreement that another node has named."""
    if type(number) is not int or not 0 <= number < MOST_WORK or len(view) > LONGEST_NAME:
        raise ValueError(f"{view[:LONGEST_NAME]!r}, {number!r:.30} is not an agreement")
    return view, number


def _agreement(written: list[Any]) -> Agreement:
    view, number = written
    return str(view), int(number)

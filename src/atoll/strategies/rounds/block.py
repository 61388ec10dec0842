"""A block of the vector that rounds are about, and what its rounds have led to on one node.

Blocks are a few megabytes: all that is done to a model is done to one block after the other, beside training, so
temporaries stay small and in the cache.
"""

import math
from typing import NamedTuple

import numpy as np

from atoll.codecs import Feedback
from atoll.collectives.reduce import Reduced
from atoll.state import Saved
from atoll.strategies.parts.ahead import Ahead, Steps
from atoll.strategies.parts.correction import Correction, Uncorrected
from atoll.strategies.parts.outer import Outer
from atoll.vectors import Vector, all_finite, copied, distance, length, minus, times

__all__ = ["Block", "Examined"]


class Examined(NamedTuple):
    """What a block adds to the judgement of a whole round: squares of lengths."""

    changed: float = 0.0
    """Of what the mean has changed."""
    moved: float = 0.0
    """Of what this member gave."""
    agreed: float = 0.0
    """Of what all agreed on before."""
    gave: bool = False
    """Whether this member gave anything."""
    counts: bool = False
    """Whether any member did."""


class Block:
    """One block of the vector and what its rounds have led to."""

    def __init__(
        self,
        span: slice,
        outer: Outer,
        ahead: Ahead,
        correction: Correction,
        decay: float,
        *,
        absolute: bool,
        is_model: bool = True,
    ) -> None:
        self.span = span
        self.correction = correction
        self._outer = outer
        self._ahead = ahead
        self.feedback = Feedback(decay=decay)
        self._absolute = absolute
        self._is_model = is_model
        self.agreed: Vector | None = None
        """What all members hold since their last round."""
        self._contributed: Vector | None = None
        self._not_own: Vector | None = None
        """Corrections that others' cancel: in the model, and not the node's to give."""
        self._anew = False
        self.is_handed = False
        """Whether the member was handed the model and has not taken part in a round since: it has nothing to give yet,
        and what it gave would hold the others back.
        """
        self._kept_before: Vector | None = None
        self._given: Vector | None = None
        """What the member gave to the round under way, if that is needed again; its weight, and how far it moved."""
        self._weight, self._moved = 0.0, 0.0
        self._mean: Vector | None = None
        self._missed: Vector | None = None
        """What the last round came to, less what of the node's own was in it."""
        self._unshared: Vector | None = None  # gradients that were used here and are in no round yet

    @property
    def size(self) -> int:
        """How many values it has."""
        return int(self.span.stop - self.span.start)

    @property
    def copies(self) -> int:
        """How many vectors it holds at most: what was agreed on before, last and next; a snapshot; what was not sent
        before and after a round; what outer optimisers, corrections and delayed means remember.
        """
        kept = 0 if self._absolute else 2
        corrected = 0 if isinstance(self.correction, Uncorrected) else 4
        return 4 + kept + corrected + self._outer.copies + (0 if self._ahead.adds else 2)

    @property
    def is_anew(self) -> bool:
        """Whether the next round is the first among these members."""
        return self._anew

    @property
    def origin(self) -> Vector | None:
        """What members' values are changes of; `None` where they bring changes, or gradients."""
        return self.agreed if self._absolute and self._is_model else None

    def receive(self, result: Reduced, weight: float) -> Examined | None:
        """What a round came to; `None` if that is not finite.  All members hold the same bytes and see the same."""
        unsent = result.unsent
        self.feedback.keep(unsent if unsent is not None and all_finite(unsent) else None)
        self._mean = None
        if not math.isfinite(weight) or weight < 0 or not all_finite(result.total):
            return None
        if weight == 0:
            return Examined()
        total = result.total if result.total.flags.writeable else copied(result.total)
        mean: Vector = np.divide(total, np.float32(weight), out=total)
        if self._given is not None and self._weight > 0:
            sent = self._given if unsent is None else self._given - unsent
            self._missed = mean - sent / np.float32(self._weight)
        changed = distance(mean, 1.0, self.origin)
        agreed = 0.0 if self.agreed is None else length(self.agreed)
        if not self._absolute:
            assert self.agreed is not None
            mean += self.agreed
        self._mean = mean
        return Examined(changed**2, self._moved**2, agreed**2, gave=self._weight > 0, counts=True)

    @property
    def pulls(self) -> bool:
        return self._ahead.pulls

    def pull(self, values: Vector) -> Vector:
        found = self._ahead.pull(values)
        return np.zeros_like(values) if found is None else found

    def start(self, initial: Vector) -> None:
        self._outer.start(initial)
        self.agreed = initial

    def collect(self, gradient: Vector) -> None:
        self._unshared = gradient if self._unshared is None else self._unshared + gradient

    def collected(self) -> Vector | None:
        """All gradients that were used since the last round: had only the present one been shared, replicas that went
        on alone for a while would never meet again.
        """
        collected, self._unshared = self._unshared, None
        return collected

    def begin(self, snapshot: Vector | None) -> bool:
        """A round begins with the model as it is; whether that is of use to anybody."""
        self._given, self._weight, self._moved, self._missed = None, 0.0, 0.0, None
        self._kept_before = self.feedback.kept
        self._contributed = None
        if snapshot is None or not (self._ahead.adds or all_finite(snapshot)):  # who keeps nothing can see that later
            return False
        self._contributed = self._ahead.contribution(snapshot)
        self._not_own = self.correction.begin()
        return True

    def payload(self, snapshot: Vector | None, weight: float) -> Vector | None:
        """What the member gives to the round that it has begun: its values or what has changed in them, and what it has
        not sent before.

        `None` if that is of no use to anybody.
        """
        if snapshot is None or self._contributed is None:
            return None
        given = self._contributed
        if self._not_own is not None:
            given = minus(given, self._not_own)
        if not self._absolute:
            assert self.agreed is not None
            given = minus(given, self.agreed)
        given = self.feedback.given(given if weight == 1 else times(given, weight))
        if not all_finite(given):
            self.feedback.keep(self._kept_before)
            return None
        self._weight = weight
        self._moved = distance(given, 1 / weight if weight else 1.0, self.origin)
        if not isinstance(self.correction, Uncorrected):
            self._given = given
        return given

    def abandon(self, snapshot: Vector | None) -> None:
        """The round that was begun with this snapshot will not be: what it was given is the node's own again."""
        self.feedback.keep(self._kept_before)
        if snapshot is not None and self._contributed is not None:
            self._ahead.give_back(self._contributed - snapshot)

    def save(self, *, under_way: bool = False, snapshot: Vector | None = None) -> Saved:
        """What the node has not told yet.

        Args:
            under_way: whether the fragment is in a round, which is not counted on.
            snapshot: that round's.
        """
        kept, unused = self.feedback.kept, self._ahead.unused
        if under_way:
            kept = self._kept_before
        if snapshot is not None and self._contributed is not None and not self._ahead.adds:
            more = self._contributed - snapshot
            unused = more if unused is None else unused + more
        found = {"kept": kept, "unused": unused}
        return {name: values for name, values in found.items() if values is not None}

    def load(self, saved: Saved) -> None:
        self.feedback.keep(saved.get("kept"))
        if "unused" in saved:
            self._ahead.give_back(saved["unused"])

    def restart(self) -> None:
        """Rounds are among others from now on, who know nothing of those before."""
        self._ahead.restart()
        self._unshared = None  # models are averaged next, and these gradients are in them

    def begin_from(self, held: Vector, *, handed: bool = False) -> None:
        """All members go on from this, each with the model that it has, which may be just that, `handed` over.

        The next mean is of what was learned apart and is taken as it is: what an outer optimiser made of it would
        depend on where each has been.
        """
        self.agreed = held
        self._outer.start(held)
        self._anew = True
        self.is_handed = self.is_handed or handed

    def unsent(self) -> Vector:
        """What the member can still give when it has nothing new."""
        return self.feedback.given(np.zeros(self.span.stop - self.span.start, dtype=np.float32))

    def mean(self) -> Vector | None:
        """What the last round says; `None` if it says nothing of use."""
        mean, self._mean = self._mean, None
        return mean

    def follows(self, mean: Vector | None) -> Vector:
        """What all members agree on when they take this mean.

        Nothing is agreed on yet: a round that is given up after all begins from what was (`begin_from`).
        """
        assert self.agreed is not None
        if mean is None:
            return self.agreed
        if not self._anew:
            return self._outer(mean)
        self._outer.start(mean)
        self._missed = None  # it is of all that was learned apart, not of what a node's next steps will miss
        return mean

    def change(self, agreed: Vector, snapshot: Vector | None) -> Vector | None:
        """What to add to a model that has made steps since the snapshot; `None` where that needs more to be known.

        It takes the snapshot's place in memory: who only adds needs that no more.
        """
        if not self._ahead.adds or snapshot is None:
            return None
        return np.subtract(agreed, snapshot, out=snapshot) if snapshot.flags.writeable else agreed - snapshot

    def agree(self, agreed: Vector) -> None:
        """The member takes what follows from a round."""
        self.agreed, self._anew = agreed, False
        self._contributed = self._kept_before = None  # no round is under way
        if self._missed is not None:
            self.correction.learn(self._missed)
            self._missed = None

    def on_top(self, own: Vector, snapshot: Vector, steps: Steps) -> Vector:
        """The member's model from now on.

        Args:
            own: its model now.
            snapshot: what it was when the round began.
            steps: when that was, and how many steps it has done since.
        """
        assert self.agreed is not None
        if steps.since == 0 and self._ahead.adds:
            return self.agreed
        return self.agreed + self._ahead(self.agreed, own, own - snapshot, steps)

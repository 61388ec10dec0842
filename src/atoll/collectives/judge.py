"""Checks the members' contributions to a round before any of them is used.

A member that sums others' vectors checks each one first.  It refuses a vector that is not finite.  It also refuses a
vector whose norm, for the work that its member did since the last round, is many times the others'; every member can
compute this bound.  The sum is then over the rest.  A weight that is many times the others' is reduced.

A member that is refused a few times in a row is accepted again, scaled to the norm of the others.  Otherwise its data
would never be learned, and its vectors would stay long for that reason alone.

Before the first round of a view, nodes trained apart, so their contributions may differ more.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from atoll.collectives.lengths import Refusals
from atoll.vectors import Change, Numbers, Vector, added, common_length, lengths, zeros

__all__ = ["Judge", "OwnBlock", "TrailerLayout", "change_of"]

FAR_OUT = 5.0
"""Limit for a vector's norm, in medians of the others' norms; for the change of a model over some steps."""
FAR_OUT_APART = 100.0
"""The same in the first round of a view: nodes trained apart before it."""
FAR_OUT_GRADIENT = 50.0
"""The same for the gradient of one step: gradients of single batches differ much."""
HEAVY = 10.0
"""Limit for a member's weight, in medians of the others' weights."""
BUSY = 100.0
"""Limit for a member's work, in medians of the others' work."""
LOST = 0.5
"""A member whose weight is absurd may not move the model by so much of its length, whatever the round is of.  Values
that do not have the weight that they are said to have are next to nothing, and would shrink the model.
"""
LARGEST = 1e7
"""No weight, count or time in a trailer is larger, or negative."""


@dataclass(frozen=True, slots=True)
class TrailerLayout:
    """The meaning of the numbers in a round's trailer: the weight comes first."""

    counts: int = 1
    """How many of them, from the first on, are counts, and hence finite and not negative."""
    weighted: slice = field(default_factory=lambda: slice(0, 0))
    """The numbers that are multiplied with the weight: buffers."""
    own: Callable[[str], tuple[int, ...]] | None = None
    """Which of the counts a member may set, beside its weight."""
    work: Callable[[Numbers, str], int] | None = None
    """The amount of work that a member reports."""


@dataclass(frozen=True, slots=True)
class OwnBlock:
    """A block of this member, of which it adds up one of `parts` parts.

    The norm of such a part, on average over the blocks of a round so far, is always accepted, whatever the others'
    norms are: some may not change a part at all.
    """

    change: Change
    parts: int


class Judge:
    """One node's judgement of the members of its rounds.

    Args:
        trailer: the layout of trailers; default: a weight and other numbers.
        refuse: called for each refusal, with the round and the reason.
    """

    def __init__(
        self, trailer: TrailerLayout | None = None, refuse: Callable[[str, str], None] = lambda _name, _why: None
    ) -> None:
        self._trailer = trailer or TrailerLayout()
        self._refuse = refuse
        self._round = ""
        self._far_out = math.inf
        self._worked: dict[str, int] = {}
        """How much work each member had done at the last round, as all of them know it."""
        self._refused = Refusals()
        """Refusals by this node, for vectors that only it saw."""
        self._refused_alike = Refusals()
        """Refusals by all members, for vectors that all of them saw: one member's history must not change them."""
        self.distrusts_sums = False
        """Whether a sum made by others was refused: then every member should see each member's contribution."""
        self._squares: dict[str, float] = {}
        """The norm of each member's change in the blocks of this round so far."""
        self._own_squares = 0.0
        self._said: set[tuple[str, str]] = set()
        """The refusals of this round, with the kind of reason: each is reported once."""

    @property
    def is_alarmed(self) -> bool:
        """Whether a member is refused again and again: it should not be trusted to compute sums either."""
        return self._refused.is_alarming or self._refused_alike.is_alarming

    def distrust_sums(self) -> None:
        """From now on, all members see all contributions and judge alike; each forgets what only it saw."""
        if not self.distrusts_sums:
            self.restart()
            self.distrusts_sums = True

    def restart(self) -> None:
        """Called when the members of rounds have changed."""
        self._worked.clear()
        self._refused.clear()
        self._refused_alike.clear()
        self.distrusts_sums = False

    def agreed(self, work: dict[str, int]) -> None:
        """Called after a round, with its members and the work that each has done, as all of them know it."""
        self._worked |= work

    def begin(self, name: str, *, far_out: float = FAR_OUT) -> None:
        """A round begins.

        Args:
            name: its name.
            far_out: limit for a vector's norm, in medians of the others' norms.
        """
        self._round, self._far_out = name, far_out
        self._squares.clear()
        self._own_squares = 0.0
        self._said.clear()
        self._refused.begin()
        self._refused_alike.begin()

    def _complain(self, member: str, kind: str, why: str) -> None:
        if (member, kind) not in self._said:
            self._said.add((member, kind))
            self._refuse(self._round, f"{member}: {why}")

    def add_up(
        self,
        members: tuple[str, ...],
        vectors: list[Vector],
        trailers: list[Numbers],
        origin: Vector | None = None,
        *,
        block: OwnBlock | None = None,
        alike: bool = False,
    ) -> tuple[Vector, Numbers]:
        """The sum of the accepted contributions, scaled as if they had the weight of all.

        Args:
            members: the names of the members, in order.
            vectors: their values, each times its weight.
            trailers: their trailers.
            origin: what members' values are changes of; `None` where they are changes themselves.
            block: this member's whole block, where they are one part of it.
            alike: whether every member adds up the same vectors, and must get the same sum.
        """
        trailers, factors = self.trailers(members, trailers)
        scales = self.scales(members, vectors, trailers, factors, origin, block=block, alike=alike)
        summed: Numbers = np.sum(trailers, axis=0, dtype=np.float32)
        if all(scale == 1 for scale in scales) and all(factor == 1 for factor in factors):
            return added(vectors), summed
        total, weight = zeros(len(vectors[0]), vectors[0].device), 0.0
        usual_weight = median([float(each[0]) for each in trailers])
        for vector, trailer, scale, factor in zip(vectors, trailers, scales, factors, strict=True):
            if scale > 0:
                own = float(trailer[0])
                share = (
                    min(1.0, usual_weight / own) if scale < 1 < own else 1.0
                )  # a member that is accepted again weighs no more than the others
                total += share * _scaled(vector * factor, origin, own, scale)
                weight += share * own
        if weight > 0:
            total *= float(summed[0]) / weight
        elif origin is not None:
            total = origin.float() * float(summed[0])
        return total, summed

    def trailers(self, members: tuple[str, ...], trailers: list[Numbers]) -> tuple[list[Numbers], list[float]]:
        """Members' trailers after the checks: an invalid one is zeroed, and a weight far beyond the others' is reduced.

        Returns the trailers, and a factor for each member's values.
        """
        found = [
            trailer if self._makes_sense(trailer, name) else np.zeros_like(trailer)
            for name, trailer in zip(members, trailers, strict=True)
        ]
        factors = [1.0] * len(found)
        for place, trailer in enumerate(found):
            others = [float(each[0]) for other, each in enumerate(found) if other != place and each[0] > 0]
            bound = HEAVY * median(others) if len(others) > 1 else math.inf
            if trailer[0] > bound:
                self._complain(members[place], "weight", f"a weight of {trailer[0]:g}, taken as {bound:g}")
                factors[place] = bound / float(trailer[0])
                found[place] = trailer.copy()
                found[place][0] = bound
                found[place][self._trailer.weighted] *= np.float32(factors[place])
        return found, factors

    def _makes_sense(self, trailer: Numbers, member: str) -> bool:
        counts = trailer[: self._trailer.counts]
        if not np.isfinite(trailer).all() or not ((counts >= 0) & (counts <= LARGEST)).all():
            self._complain(member, "numbers", "numbers that make no sense")
            return False
        if self._trailer.own is None:
            return True
        others = np.ones(len(counts), dtype=bool)
        others[[0, *self._trailer.own(member)]] = False
        if counts[others].any():
            self._complain(member, "others", "says what others have done")
            return False
        return True

    def scales(
        self,
        members: tuple[str, ...],
        vectors: list[Vector],
        trailers: list[Numbers],
        factors: list[float],
        origin: Vector | None = None,
        *,
        block: OwnBlock | None = None,
        alike: bool = False,
    ) -> list[float]:
        """A factor for each member's vector: 0 where it is refused.

        Args:
            members: the names of the members, in order.
            vectors: their values.
            trailers: their trailers, and
            factors: what their weights were cut down by (`trailers`).
            origin: what members' values are changes of; `None` where they are changes themselves.
            block: this member's whole block, where they are one part of it.
            alike: whether every member must get the same result.
        """
        refused = self._refused_alike if alike else self._refused
        changes = [change_of(vector, float(told[0]), origin) for vector, told in zip(vectors, trailers, strict=True)]
        if alike:
            found = [common_length(change()) for change in changes]
        else:
            found = lengths([*changes, block.change] if block else changes)
        usual = self._usual(found.pop(), block.parts) if block else 0.0
        so_far = [self._length_so_far(name, each) for name, each in zip(members, found, strict=True)]
        worked = self._work_since(members, trailers)
        least = usual / median(worked)
        paces = [each / work for each, work in zip(so_far, worked, strict=True)]
        scales = []
        for place, name in enumerate(members):
            if not math.isfinite(so_far[place]):
                self._complain(name, "not finite", "not finite")
                scales.append(0.0)
                continue
            if trailers[place][0] <= 0 < so_far[place] and not trailers[place].any():
                scales.append(0.0)  # its trailer made no sense
                continue
            if factors[place] != 1 and origin is not None and found[place] > LOST * common_length(origin):
                self._complain(name, "fit", "values that do not fit its weight")
                refused.is_taken(name)
                scales.append(0.0)
                continue
            others = [pace for other, pace in enumerate(paces) if other != place and 0 < pace < math.inf]
            middle = max(median(others), least) if len(others) > 1 else math.inf
            scales.append(self._scale(name, paces[place], middle, refused, is_sane=factors[place] == 1))
        return scales

    def _scale(self, name: str, pace: float, middle: float, refused: Refusals, *, is_sane: bool) -> float:
        if self._far_out == math.inf or pace <= self._far_out * middle:
            refused.forgive(name)
            return 1.0
        if refused.is_taken(name) and is_sane:
            self._complain(name, "long", f"{pace / middle:.0f} times as long as the others; taken at their length")
            return middle / pace
        self._complain(name, "long", f"{pace / middle:.0f} times as long as the others")
        return 0.0

    def _usual(self, found: float, parts: int) -> float:
        """The norm of one of `parts` parts of the member's own blocks so far, with a block of norm `found`."""
        self._own_squares += found**2
        return math.sqrt(self._own_squares / parts)

    def _length_so_far(self, name: str, found: float) -> float:
        """The norm of a member's change in the blocks of this round, with a block of norm `found`.  Single blocks
        differ: some rows of an embedding may move by one member's data only.  Non-finite blocks do not count.
        """
        squares = self._squares.get(name, 0.0)
        if not math.isfinite(found):
            return found
        self._squares[name] = squares + found**2
        return math.sqrt(self._squares[name])

    def _work_since(self, members: tuple[str, ...], trailers: list[Numbers]) -> list[float]:
        """How much each member has worked since the last round; 1 where that is not known."""
        count = self._trailer.work
        if count is None:
            return [1.0] * len(members)
        done = {name: count(trailer, name) for name, trailer in zip(members, trailers, strict=True)}
        since = [float(max(1, done[name] - self._worked.get(name, done[name]))) for name in members]
        if any(name not in self._worked for name in members):
            return [1.0] * len(members)
        middle = median(since)
        return [min(work, BUSY * middle) for work in since]


def change_of(vector: Vector, weight: float, origin: Vector | None) -> Change:
    """A member's change, of its values times their weight."""
    return Change(vector) if weight <= 0 else Change(vector, 1 / weight, origin)


def _scaled(vector: Vector, origin: Vector | None, weight: float, scale: float) -> Vector:
    """A member's vector, with its change scaled."""
    if scale == 1:
        return vector
    if origin is None:
        return vector * scale
    start = origin.float() * weight
    return start + (vector - start) * scale

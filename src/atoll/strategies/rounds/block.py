"""A block of the vector that rounds average, and the state of its rounds on one node.

Blocks are a few megabytes.  All work on a model is done block by block, in parallel with training, so temporaries stay
small and in the cache.  What a block keeps from round to round is in the strategy's `state` format, float32, or
bfloat16 for half of the memory, and where its `memory` setting says, on the device of the model or on the host.
"""

import math
from typing import NamedTuple

import torch

from atoll.codecs import Feedback
from atoll.collectives.reduce import Reduced
from atoll.state import Saved
from atoll.strategies.parts.ahead import Ahead, Steps
from atoll.strategies.parts.correction import Correction, Uncorrected
from atoll.strategies.parts.outer import Outer
from atoll.vectors import (
    Change,
    Vector,
    all_finite,
    as_array,
    divide,
    empty,
    in_full,
    length,
    lengths,
    minus,
    of_array,
    on,
    stored,
    times,
    zeros,
)

__all__ = ["Agreed", "Block", "Contribution", "Examined", "Received"]


class Examined(NamedTuple):
    """A block's part in the check of a whole round: squared norms."""

    changed: float = 0.0
    """The squared norm of the mean's change."""
    moved: float = 0.0
    """The squared norm of this member's contribution."""
    agreed: float = 0.0
    """The squared norm of the last agreed model, or of the initial one."""
    gave: bool = False
    """Whether this member contributed."""
    counts: bool = False
    """Whether any member did."""


class Contribution(NamedTuple):
    """A member's part in a round of a block."""

    values: Vector
    """Its values or their change, times the weight, plus the residual of earlier rounds."""
    weight: float = 0.0
    moved: float = 0.0
    """The norm of its change."""


class Received(NamedTuple):
    """The result of a round for a block.  Nothing of it counts before `Block.commit`: the round may be abandoned."""

    examined: Examined | None = None
    """`None`: the sum is not finite."""
    mean: Vector | None = None
    """`None`: no member contributed."""
    unsent: Vector | None = None
    """The residual of this member's contribution, as it is kept."""
    missed: Vector | None = None
    """The mean minus the node's own contribution, for corrections."""


class Agreed(NamedTuple):
    """The values that all members hold after a round."""

    values: Vector
    """In full precision, until they are in the model or known not to be needed there."""
    kept: Vector
    """As they are kept: rounds to come are of changes from these."""


class Block:
    """One block of the vector and the state of its rounds.

    `payload`, `receive` and `follows` run on a thread, and may still run when the round has been abandoned.  So they
    change nothing but an outer optimiser, which begins again after that.
    """

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
        device: torch.device,
        home: torch.device | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.span = span
        self.correction = correction
        self._outer = outer
        self._ahead = ahead
        self.feedback = Feedback(decay=decay)
        self._absolute = absolute
        self._is_model = is_model
        self._device = device
        self._home = home or device
        self._dtype = dtype
        self.agreed: Vector | None = None
        """The values that all members agreed on in their last round, as they are kept."""
        self._contributed: Vector | None = None
        self._not_own: Vector | None = None
        """Corrections in the model that sum to zero over all nodes: the node must not contribute them."""
        self._anew = False
        self.is_handed = False
        """Whether the member received the model from a peer and has not taken part in a round since: it has nothing to
        contribute yet, and a contribution would slow the others' progress.
        """
        self._usual = 0.0
        """The length of the model's values at the start, where the block is not of a model."""
        self._unshared: Vector | None = None  # gradients that this node has used and that are in no round yet

    @property
    def size(self) -> int:
        """How many values it has."""
        return int(self.span.stop - self.span.start)

    @property
    def kept_bytes(self) -> int:
        """What it keeps between rounds: the values that were agreed on, the residual, the state of the outer optimiser,
        corrections, and delayed means.
        """
        copies = int(self._is_model) + (not self._absolute) + self._outer.copies
        in_full = self.correction.copies + (0 if self._ahead.adds else 2)
        return int(self.size * (copies * self._dtype.itemsize + 4 * in_full))

    @property
    def is_anew(self) -> bool:
        """Whether the next round is the first among these members."""
        return self._anew

    @property
    def origin(self) -> Vector | None:
        """What members' values are changes of, on the device; `None` where they bring changes, or gradients."""
        return self._agreed_here if self._absolute and self._is_model else None

    @property
    def _agreed_here(self) -> Vector:
        """The values that were agreed on, in the format in which they are kept, on the device."""
        return zeros(0, self._device) if self.agreed is None else on(self.agreed, self._device)

    def kept(self, values: Vector) -> Vector:
        """Values as the block keeps them."""
        return stored(values, self._dtype, self._home)

    def receive(self, result: Reduced, own: Contribution) -> Received:
        """Examines a round's result.  All members have the same bytes and decide alike."""
        weight, unsent = float(result.tail[0]), result.unsent
        if not math.isfinite(weight) or weight <= 0:
            kept = None if unsent is None or not all_finite(unsent) else self.kept(unsent)
            is_nothing = weight == 0 and all_finite(result.total)
            return Received(Examined() if is_nothing else None, unsent=kept)
        mean = divide(result.total, weight)
        agreed = self._agreed_here
        changes = [Change(mean, 1.0, agreed if self._absolute and self._is_model else None), Change(agreed)]
        changed, was, left = lengths([*changes, Change(agreed[:0] if unsent is None else unsent)])
        kept = None if unsent is None or not math.isfinite(left) else self.kept(unsent)
        if not math.isfinite(changed):
            return Received(unsent=kept)
        missed: Vector | None = None
        if own.weight > 0 and not isinstance(self.correction, Uncorrected):
            sent = own.values if unsent is None else minus(own.values, unsent)
            missed = torch.div(sent, own.weight, out=empty(len(sent), sent.device))
            missed = torch.sub(mean, missed, out=missed)
        if not self._absolute:
            mean += in_full(agreed)
        examined = Examined(changed**2, own.moved**2, was**2 + self._usual**2, gave=own.weight > 0, counts=True)
        return Received(examined, mean, kept, missed)

    @property
    def remembers(self) -> bool:
        """Whether it keeps anything that depends on results that it has accepted, beside what was agreed on."""
        return self.feedback.kept is not None or not self._ahead.adds

    @property
    def pulls(self) -> bool:
        return self._ahead.pulls

    def pull(self, values: Vector) -> Vector | None:
        return self._ahead.pull(values)

    def start(self, initial: Vector) -> None:
        self._outer.restart()
        if self._is_model:
            self.agreed = self.kept(initial)
        else:
            self._usual = length(initial)

    def collect(self, gradient: Vector) -> None:
        self._unshared = gradient if self._unshared is None else self._unshared + gradient

    def collected(self) -> Vector | None:
        """All gradients that were used since the last round: if only the current one were shared, replicas that
        trained alone for a while would never agree again.
        """
        collected, self._unshared = self._unshared, None
        return collected

    def begin(self, snapshot: Vector | None, *, is_sound: bool = True) -> bool:
        """Begins a round with the current model; returns whether the model is usable."""
        self._contributed = None
        if snapshot is None or not is_sound:
            return False
        self._contributed = self._ahead.contribution(snapshot)
        self._not_own = self.correction.begin()
        return True

    @property
    def sees_soundness_later(self) -> bool:
        """Whether a snapshot may be found to be unusable while the round is in progress: nothing else depends on it."""
        return self._ahead.adds

    def payload(self, snapshot: Vector | None, weight: float) -> Contribution | None:
        """The member's contribution to the round that it has begun; `None` if it is unusable."""
        if snapshot is None or self._contributed is None:
            return None
        given = self._contributed
        if self._not_own is not None:
            given = minus(given, self._not_own)
        if not self._absolute:
            given = minus(given, self._agreed_here)
        given = self.feedback.given(given if weight == 1 else times(given, weight))
        moved = lengths([Change(given, 1 / weight if weight else 1.0, self.origin)])[0]
        return Contribution(given, weight, moved) if math.isfinite(moved) or all_finite(given) else None

    def abandon(self, snapshot: Vector | None) -> None:
        """Abandons the round that was begun with this snapshot: the contribution is unsent again."""
        if snapshot is not None and self._contributed is not None and not self._ahead.adds:
            self._ahead.give_back(self._contributed - snapshot)

    def save(self, snapshot: Vector | None = None) -> Saved:
        """The values that the node has not sent yet.

        Args:
            snapshot: the snapshot of the current round, whose result is not expected.
        """
        kept, unused = self.feedback.kept, self._ahead.unused
        if snapshot is not None and self._contributed is not None and not self._ahead.adds:
            more = self._contributed - snapshot
            unused = more if unused is None else unused + more
        found = {"kept": kept, "unused": unused}
        return {name: as_array(values) for name, values in found.items() if values is not None}

    def load(self, saved: Saved) -> None:
        if "kept" in saved:
            self.feedback.keep(of_array(saved["kept"], self._home, self._dtype))
        if "unused" in saved:
            self._ahead.give_back(of_array(saved["unused"], self._device))

    def restart(self) -> None:
        """Called when the members of rounds have changed: the new ones do not know the earlier rounds."""
        self._ahead.restart()
        self._unshared = None  # models are averaged next, and these gradients are in them

    def begin_from(self, held: Vector, *, handed: bool = False) -> None:
        """All members continue from `held`, each with its own model; that is `held` itself if it was `handed` over.

        The next mean is over changes that nodes learned apart, and is used without an outer step: the outer step
        would depend on each node's history.
        """
        self.agreed = held
        self._outer.restart()
        self._anew = True
        self.is_handed = self.is_handed or handed

    def unsent(self) -> Contribution:
        """The contribution that remains when the member has nothing new."""
        return Contribution(self.feedback.given(zeros(self.size, self._device)))

    def commit(self, unsent: Vector | None) -> None:
        """A round is done: its residual goes with the next one."""
        self.feedback.keep(unsent)
        self._contributed = None

    def follows(self, mean: Vector | None) -> Agreed:
        """The values that all members agree on if they apply this mean; it takes the memory of the mean.

        The agreement is not final yet: if the round is abandoned, the next begins from the last one (`begin_from`).
        """
        assert self.agreed is not None
        if mean is None:
            return Agreed(self.agreed, self.agreed)
        if self._anew:
            self._outer.restart()
        else:
            mean = self._outer(self.agreed, mean)
        return Agreed(mean, self.kept(mean))

    def change(self, agreed: Vector, snapshot: Vector | None) -> Vector | None:
        """What to add to a model that has made steps since the snapshot; `None` if that depends on more than these.

        It overwrites the snapshot's memory, which is no longer needed then.
        """
        if not self._ahead.adds or snapshot is None:
            return None
        return torch.sub(agreed, snapshot, out=snapshot)

    def agree(self, agreed: Agreed, missed: Vector | None) -> None:
        """The member accepts the agreed result of a round.

        Args:
            agreed: the result.
            missed: the mean minus the member's own contribution.
        """
        if missed is not None and not self._anew:  # training apart does not predict the next steps
            self.correction.learn(missed)
        self.agreed, self._anew = agreed.kept, False

    def on_top(self, agreed: Vector, own: Vector, snapshot: Vector, steps: Steps) -> Vector:
        """The member's model from now on.

        Args:
            agreed: what all members agreed on.
            own: its model now.
            snapshot: its model when the round began.
            steps: the step of the snapshot, and the number of steps since.
        """
        if steps.since == 0 and self._ahead.adds:
            return agreed
        return agreed + self._ahead(agreed, own, own - snapshot, steps)

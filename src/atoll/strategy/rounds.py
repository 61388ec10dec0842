"""Everybody meets in rounds: take a snapshot, reduce it with all members, correct the model by the result.

A round's number is its id: a node's n-th round meets everybody else's n-th, whatever their speeds.  A node is in one
round at a time.

A blocking round is waited for max(2 s, `patience` × the time it is expected to take, from the last ones).  Then it
turns into an overlapped one: training goes on, transfers resume when they can, and the result is applied as a
correction when it comes: x ← mean + what lies `ahead` (own steps since the snapshot).  What was learned meanwhile is
kept.

Where less than every value is sent, members tell what they changed since the model that they agreed on last, which all
of them hold; what a codec leaves out goes with the next round.  A contribution that is not finite is not sent: the
member takes part with weight 0.
"""

import asyncio
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import numpy as np

from atoll.codec import Feedback
from atoll.codec.reduce import Plain, Reduced, Reduction, fitting
from atoll.errors import StrategyError
from atoll.exchange import Round, Vector
from atoll.strategy.ahead import Ahead, OwnSteps, Steps
from atoll.strategy.choice import Choice
from atoll.strategy.correction import Correction, Uncorrected
from atoll.strategy.merge import Mean, Weight
from atoll.strategy.outer import Outer, TakeMean
from atoll.strategy.replica import Quantity, Replica
from atoll.strategy.tail import Tail
from atoll.strategy.talk import Spawn, Talk
from atoll.strategy.when import When
from atoll.trace import ContributionRefused, Exchanged, Waited

__all__ = ["Rounds"]

LEAST_WAIT_S = 2.0
FIRST_WAIT_S = 30.0
"""How long a round is waited for before anything is known of how long rounds take."""
MEAN = Mean()


class Rounds(Talk):
    """One node's part in rounds.

    Args:
        replica: its model.
        when: when to begin a round.
        quantity: what is averaged.
        via: a collective's name, `best`, or `auto`: the first that fits.
        weight: what a member counts.
        overlap: do not wait at all.
        patience: how many times the expected time a round is waited for.
        reduction: how vectors are added up.
        decay: what unsent values are multiplied with from round to round.
        outer: makes what all make of a mean of parameters.
        ahead: makes what a node that has trained on meanwhile puts on top of it.
        fragments: into how many pieces the vector is cut; rounds take them in turn.
        who: the members of each round by its number; everybody unless given.
        post: what is made of a mean of gradients.
        correction: makes what is added to the parameters after each of the node's own steps.
    """

    def __init__(
        self,
        replica: Replica,
        *,
        when: When,
        quantity: Quantity = Quantity.PARAMETERS,
        via: str = "auto",
        weight: Weight = MEAN,
        overlap: bool = False,
        patience: float = 2.0,
        reduction: Reduction | None = None,
        decay: float = 1.0,
        outer: Callable[[], Outer] = TakeMean,
        ahead: Callable[[], Ahead] = OwnSteps,
        fragments: int = 1,
        who: Callable[[int], tuple[str, ...]] | None = None,
        post: Callable[[Vector], Vector] | None = None,
        correction: Callable[[], Correction] = Uncorrected,
    ) -> None:
        self._replica = replica
        self._when = when
        self._quantity = quantity
        self._weight = weight
        self._overlap = overlap
        self._who = who or (lambda _: replica.members)
        self._post = post
        self._patience = patience
        self._reduction = reduction or Plain()
        self._choice = Choice(fitting(via, self._reduction), self._reduction.vias)
        if quantity is Quantity.GRADIENT and ahead is not OwnSteps:
            raise StrategyError("`ahead` is about models, and gradients are averaged: expected quantity=parameters")
        size = len(replica.read(quantity))
        cuts = np.linspace(0, size, fragments + 1).round().astype(int).tolist()
        absolute = self._reduction.exact or quantity is Quantity.GRADIENT
        self._lanes = [
            _Lane(slice(start, stop), outer(), ahead(), correction(), decay, absolute=absolute)
            for start, stop in itertools.pairwise(cuts)
        ]
        self._spawn: Spawn | None = None
        self._number = 0
        self._begun_at_step = 0
        self._pending: _Pending | None = None
        self._gradient_was_merged = False
        self._durations: deque[float] = deque(maxlen=5)

    def start(self, spawn: Spawn) -> None:
        self._spawn = spawn
        self._when.start(self._replica, spawn)
        self._reduction.start(self._replica.world, self._replica.members, spawn)
        initial = self._replica.read(Quantity.PARAMETERS)
        for lane in self._lanes:
            lane.start(initial[lane.span])

    async def after_gradient(self) -> None:
        if self._quantity is Quantity.GRADIENT:
            self._gradient_was_merged = await self._turn()
            return
        pulls = [(lane.span, lane.pull) for lane in self._lanes if lane.pulls]
        if pulls:
            values, gradient = self._replica.read(Quantity.PARAMETERS), self._replica.read(Quantity.GRADIENT)
            for span, pull in pulls:
                gradient[span] += pull(values[span])
            self._replica.write(Quantity.GRADIENT, gradient)

    async def after_step(self) -> bool:
        if self._quantity is Quantity.PARAMETERS:
            self._correct()
            return await self._turn()
        return self._gradient_was_merged

    def _correct(self) -> None:
        corrections = [(lane.span, found) for lane in self._lanes if (found := lane.correction.step()) is not None]
        if corrections:
            values = self._replica.read(Quantity.PARAMETERS)
            for span, correction in corrections:
                values[span] += correction
            self._replica.write(Quantity.PARAMETERS, values)

    async def _turn(self) -> bool:
        """A step boundary."""
        if self._quantity is Quantity.GRADIENT:
            self._collect()
        merged = self._apply()
        # A gradient is exchanged before its step is counted.
        step = self._replica.steps + (self._quantity is Quantity.GRADIENT)
        if self._pending is None and self._when(self._replica, step - self._begun_at_step, self._number):
            self._begin(step, corrected=merged)
            if not self._overlap:
                await self._wait()
                merged = self._apply() or merged
        return merged

    def _collect(self) -> None:
        """Takes the gradient of this step up among those to share.  One that is not finite is not used either."""
        own = self._replica.read(self._quantity)
        if not np.isfinite(own).all():
            self._replica.write(self._quantity, np.zeros_like(own))
            return
        for lane in self._lanes:
            lane.collect(own[lane.span])

    def _begin(self, step: int, *, corrected: bool) -> None:
        """Begins a round.

        Args:
            step: the node's step.
            corrected: an earlier round's correction is in the gradient, and must stay there.
        """
        assert self._spawn is not None
        replica, world = self._replica, self._replica.world
        lane = self._lanes[self._number % len(self._lanes)]
        name = f"round {self._number}"
        if self._quantity is Quantity.GRADIENT:
            snapshot = lane.collected()
            alone = step - lane.step + corrected
        else:
            snapshot = replica.read(self._quantity)[lane.span]
            lane.correction.begin()
            alone = 1
        weight = self._weight(step - lane.step)
        payload = lane.payload(snapshot, weight)
        if payload is None:
            world.record(ContributionRefused(at=world.now, node=world.name, name=name, why="not finite"))
            snapshot, weight, payload = None, 0.0, lane.unsent()
        self._begun_at_step = lane.step = step
        tail = Tail.own(replica, weight, self._choice.report())
        via = self._choice.now()
        meeting = Round(world, name, self._who(self._number), key=self._number)
        task = self._spawn(self._reduce(meeting, payload, tail, via))
        self._pending = _Pending(self._number, via, lane, snapshot, step, alone, world.now, meeting.size, task)
        self._number += 1

    async def _reduce(self, meeting: Round, payload: Vector, tail: Vector, via: str) -> Reduced:
        if meeting.size == 1:
            return Reduced(payload, tail)
        return await self._reduction(meeting, payload, tail, via)

    async def _wait(self) -> None:
        assert self._pending is not None
        since = self._replica.world.now
        expected = self._patience * median(self._durations) if self._durations else FIRST_WAIT_S
        await asyncio.wait({self._pending.task}, timeout=max(LEAST_WAIT_S, expected))
        self._replica.world.record(
            Waited(
                at=self._replica.world.now,
                node=self._replica.world.name,
                since=since,
                why=f"round {self._pending.number}",
            )
        )

    def _apply(self) -> bool:
        """Takes the result of the round under way, if it is there."""
        pending = self._pending
        if pending is None or not pending.task.done():
            return False
        self._pending = None
        replica, world, lane = self._replica, self._replica.world, pending.lane
        result = pending.task.result()
        tail = Tail.read(result.tail, len(replica.members))
        late = replica.steps + (self._quantity is Quantity.GRADIENT) > pending.step
        values = replica.read(self._quantity)
        mean = lane.mean(result, tail.weight)
        if self._quantity is Quantity.PARAMETERS:
            steps = Steps(pending.step, replica.steps - pending.step)
            values[lane.span] = lane.agree(mean, values[lane.span], pending.snapshot, steps)
        elif mean is not None:
            mean = self._post(mean) if self._post else mean
            if pending.snapshot is None or late or pending.alone > 1:
                values[lane.span] += mean if pending.snapshot is None else mean - pending.snapshot
            else:
                values[lane.span] = mean
        replica.write(self._quantity, values)
        replica.include(tail.work)
        self._durations.append(world.now - pending.since)
        self._choice.learn(pending.via, world.now - pending.since, tail.reports)
        self._when.agreed(values, lane.span)
        world.record(
            Exchanged(
                at=world.now,
                node=world.name,
                name=f"round {pending.number}",
                via=result.via or pending.via,
                since=pending.since,
                members=pending.members,
                late=late,
            )
        )
        return True


class _Lane:
    """One fragment of the vector and what its rounds have led to."""

    def __init__(
        self, span: slice, outer: Outer, ahead: Ahead, correction: Correction, decay: float, *, absolute: bool
    ) -> None:
        self.span = span
        self.correction = correction
        self.step = 0
        """When its last round began."""
        self._outer = outer
        self._ahead = ahead
        self.feedback = Feedback(decay=decay)
        self._absolute = absolute
        self._agreed: Vector | None = None
        self._contributed: Vector | None = None
        self._unshared: Vector | None = None  # gradients that were used here and are in no round yet

    @property
    def pulls(self) -> bool:
        return type(self._ahead).pull is not Ahead.pull

    def pull(self, values: Vector) -> Vector:
        found = self._ahead.pull(values)
        return np.zeros_like(values) if found is None else found

    def start(self, initial: Vector) -> None:
        self._outer.start(initial)
        self._agreed = initial

    def collect(self, gradient: Vector) -> None:
        self._unshared = gradient if self._unshared is None else self._unshared + gradient

    def collected(self) -> Vector | None:
        """All gradients that were used since the last round: had only the present one been shared, replicas that went
        on alone for a while would never meet again.
        """
        collected, self._unshared = self._unshared, None
        return collected

    def payload(self, snapshot: Vector | None, weight: float) -> Vector | None:
        """What the member gives to a round: its values or what has changed in them, and what it has not sent before.

        `None` if that is of no use to anybody.
        """
        if snapshot is None or not np.isfinite(snapshot).all():
            return None
        given = self._contributed = self._ahead.contribution(snapshot)
        if not self._absolute:
            assert self._agreed is not None
            given = given - self._agreed
        given = self.feedback.given(given * np.float32(weight))
        return given if np.isfinite(given).all() else None

    def unsent(self) -> Vector:
        """What the member can still give when it has nothing new."""
        return self.feedback.given(np.zeros(self.span.stop - self.span.start, dtype=np.float32))

    def mean(self, result: Reduced, weight: float) -> Vector | None:
        """What a round says; `None` if it says nothing of use.  All members hold the same bytes and see the same."""
        unsent = result.unsent
        self.feedback.keep(unsent if unsent is not None and np.isfinite(unsent).all() else None)
        if weight <= 0 or not np.isfinite(result.total).all():
            return None
        mean: Vector = result.total / np.float32(weight)
        if self._absolute:
            return mean
        assert self._agreed is not None
        return self._agreed + mean

    def agree(self, mean: Vector | None, own: Vector, snapshot: Vector | None, steps: Steps) -> Vector:
        """What the member's model is from now on.

        Args:
            mean: what the round says; `None`: nothing.
            own: the member's model now.
            snapshot: what it was when the round began; `None`: of no use, so it goes on with what is agreed on.
            steps: when that was, and how many steps it has done since.
        """
        if mean is not None:
            self._agreed = self._outer(mean)
        assert self._agreed is not None
        if snapshot is None:
            return self._agreed
        if mean is None:
            return own
        assert self._contributed is not None
        self.correction.learn(mean - self._contributed)
        return self._agreed + self._ahead(self._agreed, own, own - snapshot, steps)


@dataclass(frozen=True, slots=True)
class _Pending:
    """The round that a node is in."""

    number: int
    via: str
    lane: _Lane
    snapshot: Vector | None
    """What the member's model was; `None` if it was of no use."""
    step: int
    alone: int
    """How many steps' gradients the snapshot holds."""
    since: float
    members: int
    task: asyncio.Task[Reduced]

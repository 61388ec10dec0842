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

Rounds of parameters are among those who are here (`atoll.membership`).  When that changes, a round under way is given
up, and all members go back to the last model that every one of them had agreed on: the next round, like any other, then
averages what each has changed since, together or alone.  A node that was cut off and a side of a partition are one
case.  Who does not have that model, because it is new or was away for very long, is handed it first, and has nothing to
give to its first round.  Where only one member has anything to go on from, the others are handed its model as it is
then.  Where gradients are averaged, models are averaged a few times after every such change, by rounds of their own.

A node that is alone holds no rounds.
"""

import asyncio
import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from atoll.collectives import Judge, Round
from atoll.collectives.judge import FAR_OUT, FAR_OUT_APART, FAR_OUT_GRADIENT
from atoll.collectives.reduce import Plain, Reduced, Reduction, fitting
from atoll.errors import StrategyError
from atoll.membership import GRACE_S, Summary, View
from atoll.state import Saved, part, under
from atoll.strategies.choice import Choice
from atoll.strategies.fragment import Fragment
from atoll.strategies.handover import Handover
from atoll.strategies.lineage import START, Lineage, Standing, common_agreement
from atoll.strategies.parts.ahead import Ahead, OwnSteps, Steps
from atoll.strategies.parts.correction import Correction, Uncorrected
from atoll.strategies.parts.merge import Mean, Weight
from atoll.strategies.parts.outer import Outer, TakeMean
from atoll.strategies.parts.when import AfterAView, When
from atoll.strategies.replica import Quantity, Replica
from atoll.strategies.talk import Spawn, Talk
from atoll.strategies.trailer import Tail
from atoll.trace import ContributionRefused, Exchanged, Joined, Waited
from atoll.vectors import Vector, all_finite, digest
from atoll.world.hearing import NOT_UNDERSTOOD

__all__ = ["Rounds"]

LEAST_WAIT_S = 2.0
FIRST_WAIT_S = 30.0
"""How long a round is waited for before anything is known of how long rounds take."""
MEAN = Mean()
REMEMBERED = 8
"""How many rounds' results are compared with others'."""
LONG_AGO = 1 << 30
WORSE = 1.5
"""A node's loss on its own batches may grow so much while it is apart before what it has learned counts less."""
HOPELESS_S, HOPELESS_ROUNDS = 60.0, 20.0
"""How long a round may take, and how many times as long as the last ones."""
GRACE_ROUNDS = 4
"""How many rounds long somebody may be away before the others go on without it."""


class Rounds(Talk):
    """One node's part in rounds.

    Args:
        replica: its model.
        when: when to begin a round.
        quantity: what is averaged.
        via: a collective's name, `best`, or `auto`: the first that fits.
        weight: what a member counts.
        overlap: do not wait at all.
        warmup: how many rounds are waited for all the same, at first: the first steps are the ones that go astray.
        patience: how many times the expected time a round is waited for.
        reduction: how vectors are added up.
        decay: what unsent values are multiplied with from round to round.
        outer: makes what all make of a mean of parameters.
        ahead: makes what a node that has trained on meanwhile puts on top of it.
        fragments: into how many pieces the vector is cut; rounds take them in turn.
        who: the members of each round, by its number and of those who are here; all of these unless given.
        post: what is made of a mean of gradients.
        correction: makes what is added to the parameters after each of the node's own steps.
        steady: whether the global batch stays what it is while nodes are away: the others then take larger ones.
        hand_optimizer: whether a node that is new is handed what an optimiser remembers too.  If left out, where
            gradients are averaged: models then stay alike only while their optimisers do.
        on_view: called when rounds are among others.
        first_wait_s: how long the first round of a run is waited for; a node that begins later knows no run without
            rounds, and waits no longer than for others.
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
        warmup: int = 0,
        patience: float = 2.0,
        reduction: Reduction | None = None,
        decay: float = 1.0,
        outer: Callable[[], Outer] = TakeMean,
        ahead: Callable[[], Ahead] = OwnSteps,
        fragments: int = 1,
        who: Callable[[int, tuple[str, ...]], tuple[str, ...]] | None = None,
        post: Callable[[Vector], Vector] | None = None,
        correction: Callable[[], Correction] = Uncorrected,
        steady: bool = False,
        hand_optimizer: bool | None = None,
        on_view: Callable[[], None] | None = None,
        first_wait_s: float = FIRST_WAIT_S,
    ) -> None:
        self._replica = replica
        self._when = when
        self._quantity = quantity
        self._weight = weight
        self._overlap = overlap
        self._warmup = warmup
        self._who = who or (lambda _, members: members)
        self._is_of_all = who is None
        self._post = post
        self._patience = patience
        self._reduction = reduction or Plain()
        self._via = fitting(via, self._reduction)
        self._choice = Choice(self._via, self._reduction.vias)
        if quantity is Quantity.GRADIENT and ahead is not OwnSteps:
            raise StrategyError("`ahead` is about models, and gradients are averaged: expected quantity=parameters")
        size = len(replica.read(quantity))
        cuts = np.linspace(0, size, fragments + 1).round().astype(int).tolist()
        is_model = quantity is not Quantity.GRADIENT
        absolute = self._reduction.exact or not is_model
        self._fragments = [
            Fragment(slice(start, stop), outer(), ahead(), correction(), decay, absolute=absolute, is_model=is_model)
            for start, stop in itertools.pairwise(cuts)
        ]
        self._spawn: Spawn | None = None
        self._number = 0
        self._done = 0
        self._begun_at_step = 0
        self._pending: _Pending | None = None
        self._gradient_was_merged = False
        self._durations: deque[float] = deque(maxlen=5)
        self._lineage = Lineage([])
        self._results: dict[str, str] = {}
        """Digests of what the last rounds came to."""
        self._is_astray = False
        """It holds something else than the others, and trains alone until there is a new view."""
        self._loss = math.nan
        """What the node's own loss was when it last agreed with others."""
        self._common: list[Vector] | None = None
        """What the view goes on from, as far as this node holds it."""
        self._is_sole_holder = False
        """Whether the others are to be handed this node's model, as it is at the next step boundary."""
        self._buffers = replica.read(Quantity.BUFFERS)
        """What all members' were, on average, after the last round."""
        sizes = [*(fragment.span.stop - fragment.span.start for fragment in self._fragments), len(self._buffers)]
        self._handover = Handover(replica, sizes, self._to_hand_out, optimizer=bool(hand_optimizer))
        self._steady = steady
        self._on_view = on_view
        self._first_wait_s = first_wait_s
        self._judge = Judge(Tail.trailer(replica, len(self._buffers)), self._refused)
        self._models: Rounds | None = None
        if quantity is Quantity.GRADIENT:
            self._models = Rounds(
                replica,
                when=AfterAView(),
                hand_optimizer=hand_optimizer is not False,
                on_view=self._begin_anew,
                first_wait_s=LEAST_WAIT_S,
            )

    def start(self, spawn: Spawn) -> None:
        self._spawn = spawn
        self._when.start(self._replica, spawn)
        if self._models:
            self._models.start(spawn)
        else:
            self._replica.group.start(spawn, self, progress=lambda: self._replica.steps)
            self._handover.start(spawn)
        self._reduction.start(self._replica.world, self._replica.members, spawn)
        initial = self._replica.read(Quantity.PARAMETERS)
        for fragment in self._fragments:
            fragment.start(initial[fragment.span])
        world = self._replica.world
        if world.is_late:
            self._first_wait_s = LEAST_WAIT_S
        start = START if not world.is_late else (f"{world.name} at {world.now}", 0)
        held = [_held(fragment) for fragment in self._fragments]
        self._lineage = Lineage(held, start, is_new=not world.is_founder)

    async def after_gradient(self) -> None:
        if self._quantity is Quantity.GRADIENT:
            self._gradient_was_merged = await self._turn()
            return
        pulls = [(fragment.span, fragment.pull) for fragment in self._fragments if fragment.pulls]
        if pulls:
            values, gradient = self._replica.read(Quantity.PARAMETERS), self._replica.read(Quantity.GRADIENT)
            for span, pull in pulls:
                gradient[span] += pull(values[span])
            self._replica.write(Quantity.GRADIENT, gradient)

    @property
    def uses_gradients(self) -> bool:
        return self._quantity is Quantity.GRADIENT or any(fragment.pulls for fragment in self._fragments)

    async def after_step(self) -> bool:
        if self._models:
            return await self._models.after_step() or self._gradient_was_merged
        self._correct()
        return await self._turn()

    @property
    def is_idle(self) -> bool:
        if self._models or self._handover.is_under_way or self._is_sole_holder:
            return False
        if any(not isinstance(fragment.correction, Uncorrected) for fragment in self._fragments):
            return False
        if self._replica.group.is_alone:
            return True
        pending = self._pending
        if pending is not None:
            return not pending.task.done()
        return not self._when.may_be_due(self._replica.steps - self._begun_at_step)

    def save(self) -> Saved:
        """What all agreed on, and what each has not told yet.

        Who goes on from it is to the others as one that was away; so are all of them to each other.
        """
        saved = under("models", self._models.save()) if self._models else under("lineage", self._lineage.save())
        for place, fragment in enumerate(self._fragments):
            pending = self._pending if self._pending and self._pending.fragment is fragment else None
            state = fragment.save(under_way=True, snapshot=pending.snapshot) if pending else fragment.save()
            saved |= under(f"fragment {place}", state)
        return saved

    def load(self, saved: Saved) -> None:
        if self._models:
            self._models.load(part("models", saved))
        else:
            self._lineage.load(part("lineage", saved))
            self._begin_from(self._lineage.held)
        for place, fragment in enumerate(self._fragments):
            fragment.load(part(f"fragment {place}", saved))

    @property
    def settled(self) -> bool:
        """Whether all have met since others came or went."""
        return not self._handover.is_under_way and (self._replica.group.view.number == 0 or self._number > 0)

    def _correct(self) -> None:
        steps = [(each.span, each.correction.step()) for each in self._fragments]
        corrections = [(span, correction) for span, correction in steps if correction is not None]
        if corrections:
            values = self._replica.read(Quantity.PARAMETERS)
            for span, correction in corrections:
                values[span] += correction
            self._replica.write(Quantity.PARAMETERS, values)

    async def _turn(self) -> bool:
        """A step boundary."""
        group = self._replica.group
        if self._models:
            if group.held or group.is_alone or not self._models.settled:
                return False
            self._collect()
        elif group.held or self._is_astray:
            return False
        elif self._handover.is_under_way:
            return self._join()
        elif self._is_sole_holder:
            self._hand_out_own()
        if group.is_alone:
            return False
        self._look_at_pending()
        merged = self._apply()
        # A gradient is exchanged before its step is counted.
        step = self._replica.steps + (self._quantity is Quantity.GRADIENT)
        if self._pending is None and self._when(self._replica, step - self._begun_at_step, self._number):
            self._begin(step, corrected=merged)
            if not self._overlap or self._done < self._warmup:
                await self._wait()
                merged = self._apply() or merged
        return merged

    def _collect(self) -> None:
        """Takes the gradient of this step up among those to share.  One that is not finite is not used either."""
        own = self._replica.read(self._quantity)
        if not all_finite(own):
            self._replica.write(self._quantity, np.zeros_like(own))
            return
        for fragment in self._fragments:
            fragment.collect(own[fragment.span])

    def _begin(self, step: int, *, corrected: bool) -> None:
        """Begins a round.

        Args:
            step: the node's step.
            corrected: an earlier round's correction is in the gradient, and must stay there.
        """
        assert self._spawn is not None
        replica, world = self._replica, self._replica.world
        fragment = self._fragments[self._number % len(self._fragments)]
        view = replica.group.view
        first = view.number == 0 and len(view.members) == len(replica.members)
        name = f"round {self._number}" if first else f"round {view.name}/{self._number}"
        if view.number > 0 and self._models:
            name += " of gradients"
        if self._quantity is Quantity.GRADIENT:
            snapshot = fragment.collected()
            alone = step - fragment.step + corrected
        else:
            snapshot = replica.read(self._quantity)[fragment.span]
            alone = 1
        weight = self._weight(step - fragment.step)
        if fragment.is_anew:
            weight *= self._soundness()
        if not fragment.begin(None if fragment.is_handed else snapshot):
            snapshot, weight = None, 0.0
        self._begun_at_step = fragment.step = step
        tail = Tail.own(replica, weight, self._choice.report(), alarm=self._judge.is_alarmed)
        via = "gather" if self._judge.distrusts_sums and "gather" in self._reduction.vias else self._choice.now()
        usual = FAR_OUT_GRADIENT if self._quantity is Quantity.GRADIENT else FAR_OUT
        self._judge.begin(name, fragment.origin, far_out=FAR_OUT_APART if fragment.is_anew else usual)
        meeting = Round(world, name, self._who(self._number, view.members), key=self._number, judge=self._judge)
        task = self._spawn(self._outcome(meeting, tail, via, fragment, snapshot))
        self._pending = _Pending(meeting, via, fragment, snapshot, step, alone, world.now, task)
        self._number += 1

    def _soundness(self) -> float:
        """What is to be made of what the node has learned apart: less if by its own loss it has got worse since."""
        if self._loss <= 0 or not math.isfinite(self._loss):
            return 1.0
        worse = self._replica.loss / self._loss
        return 1.0 if worse <= WORSE else (WORSE / worse if math.isfinite(worse) else 0.0)

    async def _outcome(
        self, meeting: Round, tail: Vector, via: str, fragment: Fragment, snapshot: Vector | None
    ) -> "_Outcome | None":
        """What a round comes to.  All that can be done beside training is done here: each line may take as long as
        copying a model.
        """
        payload = fragment.payload(snapshot, float(tail[0]))
        if payload is None:
            if not fragment.is_handed:
                self._refused(meeting.name, "not finite")
            snapshot, payload = None, fragment.unsent()
            Tail.silence(tail, len(self._replica.members), len(self._buffers))
        result = await self._reduce(meeting, payload, tail, via)
        if result is None:
            return None
        read = Tail.read(result.tail, len(self._replica.members), len(self._buffers))
        if read is None or not fragment.accepts(result, read.weight):
            self._refused(meeting.name, "a sum that makes no sense")
            return _Outcome.refused(via, len(self._replica.members))
        mean = fragment.mean(result, read.weight)
        await asyncio.sleep(0)
        if self._quantity is Quantity.GRADIENT:
            mean = self._post(mean) if self._post and mean is not None else mean
            return _Outcome(result.via or via, read, snapshot, mean)
        agreed = fragment.follows(mean)
        await asyncio.sleep(0)
        change = fragment.change(agreed, snapshot) if mean is not None and self._is_whole else None
        await asyncio.sleep(0)
        return _Outcome(result.via or via, read, snapshot, mean, agreed, change, digest(agreed))

    @property
    def _is_whole(self) -> bool:
        return len(self._fragments) == 1

    async def _reduce(self, meeting: Round, payload: Vector, tail: Vector, via: str) -> Reduced | None:
        if meeting.size == 1:
            return Reduced(payload, tail)
        try:
            return await self._reduction(meeting, payload, tail, via)
        except* NOT_UNDERSTOOD as errors:
            why = f"not understood ({errors.exceptions[0]})"
        self._refused(meeting.name, why)
        return None

    def _refused(self, name: str, why: str) -> None:
        world = self._replica.world
        world.record(ContributionRefused(at=world.now, node=world.name, name=name, why=why))

    async def _wait(self) -> None:
        assert self._pending is not None
        since, pending = self._replica.world.now, self._pending
        expected = self._patience * median(self._durations) if self._durations else self._first_wait_s
        with self._replica.group.waiting():
            await asyncio.wait({pending.task}, timeout=max(LEAST_WAIT_S, expected))
        self._replica.world.record(
            Waited(
                at=self._replica.world.now,
                node=self._replica.world.name,
                since=since,
                why=pending.meeting.name,
            )
        )

    def _look_at_pending(self) -> None:
        """A round that takes absurdly long will not end: members wait for what nobody sends.  Another view ends it."""
        pending, now = self._pending, self._replica.world.now
        if pending is None or pending.task.done() or not self._durations:
            return
        if now - pending.since > max(HOPELESS_S, HOPELESS_ROUNDS * median(self._durations)):
            self._pending = replace(pending, since=now)
            self._replica.group.object()

    def _apply(self) -> bool:
        """Takes the result of the round under way, if it is there."""
        pending = self._pending
        if pending is None or not pending.task.done() or self._replica.group.held or self._is_astray:
            return False
        self._pending = None
        self._done += 1
        replica, world = self._replica, self._replica.world
        outcome = pending.task.result()
        if outcome is None or outcome.is_refused:
            # Somebody sent what is no part of a round: who holds something else now finds that out.  Or all members
            # have refused the sum, since they hold the same bytes.
            if outcome is not None and self._reduction.vias != ("gather",):
                self._judge.distrust_sums()
            pending.fragment.abandon(pending.snapshot)
            return False
        tail, told = outcome.tail, outcome.digest
        if tail.alarms > 0 and self._reduction.vias != ("gather",):  # which all members see alike
            self._judge.distrust_sums()
        late = replica.steps + (self._quantity is Quantity.GRADIENT) > pending.step
        if self._quantity is Quantity.PARAMETERS:
            self._take(pending, outcome)
        elif outcome.mean is not None:
            self._take_gradient(pending, outcome.snapshot, outcome.mean, late=late)
            told = digest(outcome.mean)
        if len(self._buffers) and all_finite(tail.buffers):
            self._buffers = tail.buffers
            replica.write(Quantity.BUFFERS, tail.buffers)
        replica.include(tail.work)
        self._judge.agreed({name: done for name, done in zip(replica.members, tail.work.tolist(), strict=True) if done})
        self._loss = replica.loss
        self._durations.append(world.now - pending.since)
        replica.group.grace_s = max(GRACE_S, GRACE_ROUNDS * median(self._durations))
        if self._quantity is Quantity.PARAMETERS:
            held = [_held(fragment) for fragment in self._fragments]
            self._lineage.agreed(replica.group.view.name, pending.meeting.key + 1, held)
        if self._is_of_all:
            self._results[pending.meeting.name] = told
            for old in list(self._results)[:-REMEMBERED]:
                del self._results[old]
        self._choice.learn(pending.via, world.now - pending.since, tail.reports)
        self._when.agreed()
        world.record(
            Exchanged(
                at=world.now,
                node=world.name,
                name=pending.meeting.name,
                via=outcome.via,
                since=pending.since,
                members=pending.meeting.size,
                late=late,
                digest=told,
            )
        )
        return True

    def _take(self, pending: "_Pending", outcome: "_Outcome") -> None:
        """The model follows what was agreed on."""
        replica, fragment = self._replica, pending.fragment
        fragment.is_handed = False
        assert outcome.agreed is not None
        if outcome.mean is not None:
            fragment.agree(outcome.agreed)
        elif outcome.snapshot is not None:
            return
        steps = Steps(pending.step, replica.steps - pending.step)
        if outcome.change is not None and steps.since > 0:
            replica.add(Quantity.PARAMETERS, outcome.change)
            return
        values = replica.read(Quantity.PARAMETERS)
        if outcome.snapshot is None:
            values[fragment.span] = outcome.agreed
        else:
            values[fragment.span] = fragment.on_top(values[fragment.span], outcome.snapshot, steps)
        replica.write(Quantity.PARAMETERS, values)

    def _take_gradient(self, pending: "_Pending", snapshot: Vector | None, mean: Vector, *, late: bool) -> None:
        span = pending.fragment.span
        values = self._replica.read(Quantity.GRADIENT)
        if snapshot is None or late or pending.alone > 1:
            values[span] += mean if snapshot is None else mean - snapshot
        else:
            values[span] = mean
        self._replica.write(Quantity.GRADIENT, values)

    # Who is here ---

    def summary(self) -> Summary:
        return self._standing.summary()

    @property
    def _standing(self) -> Standing:
        work = tuple(self._replica.work.tolist())
        distrusts = frozenset(self._handover.distrusted)
        return Standing(self._lineage.agreements, work, self._lineage.is_new, distrusts, self._handover.taking)

    def stands(self, summary: Summary) -> bool:
        return self._read(summary).agreements == self._lineage.agreements

    def check(self, summary: Summary) -> None:
        self._read(summary)

    def are_together(self, summaries: Iterable[Summary]) -> bool:
        return bool(set.intersection(*(set(self._read(summary).agreements) for summary in summaries)))

    def _read(self, summary: Summary) -> Standing:
        return Standing.read(summary, len(self._replica.members))

    def results(self) -> Summary:
        return [list(result) for result in self._results.items()]

    def compared(self, sender: str, results: Summary) -> bool:
        """Who holds something else than the leader after one and the same round has made a mistake, whoever it was: it
        forgets what it has in common with others, and is handed what they hold.
        """
        for name, theirs in results:
            if self._results.get(name, theirs) != theirs:
                self._refused(str(name), f"{sender} holds {theirs}, and this node {self._results[name]}")
                self._lineage.forget(self._own_start())
                self._is_astray = True
                return False
        return True

    def _own_start(self) -> tuple[str, int]:
        return f"{self._replica.world.name} at {self._replica.world.now}", 0

    def installed(self, view: View, summaries: dict[str, Summary]) -> None:
        """Rounds are among others from now on."""
        assert self._spawn is not None
        self._begin_anew()
        self._lineage.ends()
        for fragment in self._fragments:
            fragment.correction.here(everybody=len(view.members) == len(self._replica.members))
        common = common_agreement({name: self._read(summaries[name]) for name in view.members}, view.name)
        self._common, self._is_sole_holder = None, False
        if self._replica.world.name not in common.holders:
            self._handover.ask(self._nearest(list(common.holders)), view, common)
        elif common.is_now:
            self._is_sole_holder = True
        else:
            self._common = self._lineage.back_to(common.agreement)
            self._begin_from(self._common)
        if self._replica.world.name in common.holders and len(view.members) > 1:
            self._lineage.is_new = False
        self._handover.changed()
        if self._on_view:
            self._on_view()

    def _to_hand_out(self) -> list[Vector] | None:
        return None if self._common is None else [*self._common, self._buffers]

    def _hand_out_own(self) -> None:
        """The model as it is now is what all members of the view go on from."""
        values = self._replica.read(Quantity.PARAMETERS)
        self._buffers = self._replica.read(Quantity.BUFFERS)
        self._is_sole_holder = False
        if not all_finite(values):  # what was agreed on last is better
            self._common = self._lineage.held
        else:
            self._common = [values[fragment.span] for fragment in self._fragments]
            self._begin_from(self._common)
        self._lineage.agreed(self._replica.group.view.name, 0, self._common)
        self._handover.changed()

    def _nearest(self, hosts: list[str]) -> str:
        """Of those who are equally near, to the millisecond, not everybody asks the same one."""
        first = self._replica.rank % len(hosts)
        peer = self._replica.world.peer
        return min(hosts[first:] + hosts[:first], key=lambda name: min(peer(name).round_trip_s, 1e6) // 1e-3)

    def _begin_from(self, held: list[Vector], *, handed: bool = False) -> None:
        for fragment, values in zip(self._fragments, held, strict=True):
            fragment.begin_from(values, handed=handed)

    def _begin_anew(self) -> None:
        """Gives up what is under way, and forgets what was learned of others."""
        if self._steady:
            self._replica.scale_batch(len(self._replica.members) / len(self._replica.group.view.members))
        self._number = 0
        self._results.clear()
        self._is_astray = False
        self._begun_at_step = -LONG_AGO  # what was learned apart is merged at once, and nobody waits for steps first
        self._choice = Choice(self._via, self._reduction.vias)
        self._reduction.restart()
        self._judge.restart()
        pending, self._pending = self._pending, None
        if pending:
            pending.task.cancel()
            pending.fragment.abandon(pending.snapshot)
        for fragment in self._fragments:
            fragment.restart()
        self._handover.end()

    def _join(self) -> bool:
        """Takes over what the others go on from, once it is here."""
        handed = self._handover.handed
        if handed is None:
            return False
        *held, self._buffers = handed.held
        if self._lineage.is_new:  # else its own model is as good until the first round
            self._replica.write(Quantity.PARAMETERS, np.concatenate(held))
            self._replica.write(Quantity.BUFFERS, self._buffers)
        try:
            self._replica.take_over(handed.work, handed.memory, handed.steps)
        except NOT_UNDERSTOOD as error:
            self._refused("state", f"what the host's optimiser remembers does not fit ({error})")
            self._replica.take_over(handed.work, {}, handed.steps)
        self._begin_from(held, handed=True)
        self._lineage.adopt(handed.agreement, held)
        self._common = held
        self._when.agreed()
        self._handover.end()
        world = self._replica.world
        world.record(Joined(at=world.now, node=world.name, view=self._replica.group.view.name))
        return True


@dataclass(frozen=True, slots=True)
class _Pending:
    """The round that a node is in."""

    meeting: Round
    via: str
    fragment: Fragment
    snapshot: Vector | None
    """What the member's model was; `None` if it was of no use."""
    step: int
    alone: int
    """How many steps' gradients the snapshot holds."""
    since: float
    task: "asyncio.Task[_Outcome | None]"


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What a round came to."""

    via: str
    tail: Tail
    snapshot: Vector | None
    """What the member's model was; `None`: of no use to the others, so that it goes on with what they agree on."""
    mean: Vector | None
    """`None`: nothing of use."""
    agreed: Vector | None = None
    """What all members hold from now on; `None` where that is no model."""
    change: Vector | None = None
    """What to add to a model that has made steps since; `None`: what lies on top of what is agreed on must be seen."""
    digest: str = ""
    is_refused: bool = False
    """Whether its sum makes no sense."""

    @classmethod
    def refused(cls, via: str, members: int) -> "_Outcome":
        nothing: Vector = np.zeros(0, dtype=np.float32)
        return cls(via, Tail(0.0, np.zeros(members, dtype=np.int64), nothing, nothing), None, None, is_refused=True)


def _held(fragment: Fragment) -> Vector:
    assert fragment.agreed is not None, "started"
    return fragment.agreed

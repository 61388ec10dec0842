"""Runs rounds of models or gradients: begins them when they are due, waits for them, and applies their results.

A round's number is its id: a node's n-th round is every other node's n-th, whatever their speeds.  A node is in one
round at a time.

A node waits for a blocking round max(2 s, `patience` × the expected time from the last rounds).  Then the round becomes
an overlapped one: training continues, transfers resume when they can, and the result is applied as a correction when it
arrives.  Changes that were learned meanwhile are kept.

Where a codec does not send every value, members send their changes since the last agreed model, which all of them hold;
values that the codec leaves out go into the next round.  A contribution that is not finite is not sent: the member
takes part with weight 0.
"""

import asyncio
import math
from collections import deque
from dataclasses import replace
from functools import partial
from statistics import median
from typing import NamedTuple

import numpy as np

from atoll.collectives import Judge, Round
from atoll.collectives.judge import FAR_OUT_APART
from atoll.collectives.reduce import fitting
from atoll.membership import GRACE_S, Summary
from atoll.state import Saved, section, under
from atoll.strategies.parts.correction import Uncorrected
from atoll.strategies.replica import Quantity, Replica
from atoll.strategies.rounds.choice import Choice
from atoll.strategies.rounds.composition import RoundParts
from atoll.strategies.rounds.exchange import Exchange, ExchangedBlock
from atoll.strategies.rounds.fragment import Fragment, cut
from atoll.strategies.rounds.outcome import Averaged, BlockOutcome, Outcome, Pending
from atoll.strategies.rounds.trailer import Trailer
from atoll.strategies.talk import Spawn
from atoll.trace import ContributionRefused, Exchanged, Waited
from atoll.vectors import Numbers, Vector, all_finite, as_array, of_array, zeros

__all__ = ["FIRST_WAIT_S", "LEAST_WAIT_S", "Driver"]

LEAST_WAIT_S = 2.0
FIRST_WAIT_S = 30.0
"""How long a node waits for a round before round times are known."""
REMEMBERED = 8
"""How many rounds' results are compared with others'."""
LONG_AGO = 1 << 30
WORSE = 1.5
"""If a node's own loss grows by more than this factor while it trains apart, its changes count less."""
HOPELESS_S, HOPELESS_ROUNDS = 60.0, 20.0
"""The time limit of a round, in seconds and in times of the last rounds."""
GRACE_ROUNDS = 4
"""For how many rounds a node may be unreachable before the others continue without it."""


class _Brought(NamedTuple):
    """A member's part in a round."""

    snapshots: list[Vector | None]
    """Its own values, one vector per block; `None` where they are unusable."""
    tail: Numbers
    buffers: Vector


class Driver:
    """One node's part in rounds of one quantity.

    Args:
        replica: its model.
        parts: what rounds are.
        averaged: what they average.
        first_wait_s: how long the first round of a run is waited for.
    """

    def __init__(
        self, replica: Replica, parts: RoundParts, averaged: Averaged, *, first_wait_s: float = FIRST_WAIT_S
    ) -> None:
        self._replica = replica
        self._parts = parts
        self._averaged = averaged
        self.when = parts.when()
        self._reduction = parts.reduction()
        self._via = fitting(parts.via, self._reduction)
        self._choice = Choice(self._via, self._reduction.vias)
        is_model = parts.quantity is not Quantity.GRADIENT
        absolute = self._reduction.exact or not is_model
        self.fragments = cut(replica, parts, absolute=absolute, is_model=is_model)
        self.blocks = [block for fragment in self.fragments for block in fragment.blocks]
        self.number = 0
        """The number of the next round among these members."""
        self._done = 0
        self._begun_at_step = 0
        self._pending: Pending | None = None
        self.is_astray = False
        """Whether the node's state differs from the others': it then trains alone until the members change."""
        self._durations: deque[float] = deque(maxlen=5)
        self._results: dict[str, str] = {}
        """Digests of the last rounds' results."""
        self._loss = math.nan
        """The node's own loss when it last agreed with others."""
        self.buffers = as_array(replica.read(Quantity.BUFFERS))
        """The mean over all members after the last round."""
        self._first_wait_s = first_wait_s
        self._exchange = Exchange(replica, self._reduction, len(self.buffers), self.refused)
        self._judge = Judge(Trailer.trailer(replica, len(self.buffers)), self.refused)
        self._spawn: Spawn | None = None

    def prepare(self) -> None:
        """All members begin with this model."""
        # Each block in memory of its own, which is free as soon as all have agreed on the next.
        initial = [self._replica.read(Quantity.PARAMETERS, block.span) for block in self.blocks]
        for block, values in zip(self.blocks, initial, strict=True):
            block.start(values)
        if self._replica.device.type == "cuda":  # compiled kernels, and the memory of the next snapshot
            self._replica.read_blocks([block.span for block in self.blocks])
            for values in {len(values): values for values in initial}.values():
                self._reduction.prepare(values, len(self._replica.members))

    def start(self, spawn: Spawn) -> None:
        self._spawn = spawn
        self.when.start(self._replica, spawn)
        self._reduction.start(self._replica.world, self._replica.members, spawn)
        if self._replica.world.is_late:
            # A node that begins later has seen no run without rounds, and waits no longer than for other rounds.
            self._first_wait_s = LEAST_WAIT_S

    @property
    def held(self) -> list[Vector]:
        """The values that all members agreed on in their last round, one vector per block."""
        held = [block.agreed for block in self.blocks if block.agreed is not None]
        assert len(held) == len(self.blocks), "started"
        return held

    @property
    def is_under_way(self) -> bool:
        """Whether a round is under way whose result is not there yet."""
        return self._pending is not None and not self._pending.task.done()

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do at a step boundary."""
        if not isinstance(self.blocks[0].correction, Uncorrected):
            return False
        if self._replica.group.is_alone:
            return True
        if self._pending is not None:
            return not (self._pending.task.done() or self._is_hopeless(self._pending))
        return not self.when.may_be_due(self._replica.steps - self._begun_at_step)

    async def turn(self) -> bool:
        """Called at a step boundary while not alone.  Returns whether the result of a round was applied."""
        if self.is_astray:
            return False
        self._look_at_pending()
        merged = await self._apply()
        step = self._averaged.steps
        if await self._is_due(step) and await self._begin(step, corrected=merged) and not self._overlaps:
            await self._wait()
            merged = await self._apply() or merged
        return merged

    @property
    def _overlaps(self) -> bool:
        return self._parts.meeting.overlap and self._done >= self._parts.warmup

    async def _is_due(self, step: int) -> bool:
        if self._pending is not None or self._replica.group.held or self.is_astray:
            return False
        return await self.when(self._replica, step - self._begun_at_step, self.number)

    def restart(self) -> None:
        """Called when the members have changed: abandons the current round and forgets measurements of the old ones."""
        self.number = 0
        self.is_astray = False
        self._results.clear()
        self._begun_at_step = -LONG_AGO  # the next round is due at once, to merge changes learned apart
        self._choice = Choice(self._via, self._reduction.vias)
        self._reduction.restart()
        self._judge.restart()
        pending, self._pending = self._pending, None
        if pending:
            pending.abandon()
        self._averaged.forget()
        for fragment in self.fragments:
            fragment.restart()

    def begin_from(self, held: list[Vector], *, handed: bool = False) -> None:
        """All members continue from `held` (see `Block.begin_from`)."""
        for block, values in zip(self.blocks, held, strict=True):
            block.begin_from(values, handed=handed)

    def save(self) -> Saved:
        saved: Saved = {}
        pending = self._pending
        under_way = dict(zip(map(id, pending.fragment.blocks), pending.snapshots, strict=True)) if pending else {}
        for place, block in enumerate(self.blocks):
            saved |= under(f"block {place}", block.save(under_way.get(id(block))))
        return saved

    def load(self, saved: Saved) -> None:
        for place, block in enumerate(self.blocks):
            block.load(section(f"block {place}", saved))

    def results(self) -> Summary:
        """Digests of the results of the last rounds of all."""
        return [list(result) for result in self._results.items()]

    def differing(self, results: Summary) -> tuple[str, str, str] | None:
        """The first round with another result on another node, and the digests of both results: theirs, own."""
        for name, theirs in results:
            if self._results.get(name, theirs) != theirs:
                return str(name), str(theirs), self._results[name]
        return None

    def refused(self, name: str, why: str) -> None:
        """Something was refused."""
        world = self._replica.world
        world.record(ContributionRefused(at=world.now, node=world.name, name=name, why=why))

    async def _begin(self, step: int, *, corrected: bool) -> bool:
        """Begins a round; returns whether that was possible.

        Args:
            step: the node's step.
            corrected: an earlier round's correction is in the gradient, and must stay there.
        """
        assert self._spawn is not None
        replica, world = self._replica, self._replica.world
        fragment, view = self.fragments[self.number % len(self.fragments)], replica.group.view
        snapshots, alone = await self._averaged.snapshots(fragment, step, corrected=corrected)
        buffers = zeros(0)
        if len(self.buffers):
            buffers = await replica.touch(lambda: replica.read(Quantity.BUFFERS))
        sound = [True] * len(snapshots)
        if not fragment.sees_soundness_later:
            sound = await world.offload(lambda: [each is None or all_finite(each) for each in snapshots])
        if replica.group.view is not view or replica.group.held or self.is_astray:  # while the model was copied
            return False
        weight = self._parts.weight(step - fragment.step)
        if fragment.is_anew:
            weight *= self._soundness()
        begun = [
            snapshot if block.begin(None if block.is_handed else snapshot, is_sound=is_sound) else None
            for block, snapshot, is_sound in zip(fragment.blocks, snapshots, sound, strict=True)
        ]
        if all(snapshot is None for snapshot in begun):
            weight = 0.0
        self._begun_at_step = fragment.step = step
        tail = Trailer.own(replica, weight, len(buffers), self._choice.report(), alarm=self._judge.is_alarmed)
        via = "gather" if self._judge.distrusts_sums and "gather" in self._reduction.vias else self._choice.now()
        name = self._name
        self._judge.begin(name, far_out=FAR_OUT_APART if fragment.is_anew else self._averaged.far_out)
        who = self._parts.who(world.name, self.number, view.members) if self._parts.who else view.members
        meeting = Round(world, name, who, key=self.number, judge=self._judge)
        task = self._spawn(self._outcome(meeting, _Brought(begun, tail, buffers), via, fragment))
        self._pending = Pending(meeting, via, fragment, begun, step, alone, world.now, task)
        self.number += 1
        return True

    @property
    def _name(self) -> str:
        view = self._replica.group.view
        first = view.number == 0 and len(view.members) == len(self._replica.members)
        name = f"round {self.number}" if first else f"round {view.name}/{self.number}"
        return name + self._averaged.suffix if view.number > 0 else name

    def _soundness(self) -> float:
        """The factor for changes that the node learned apart: less than 1 if its own loss has grown since."""
        if self._loss <= 0 or not math.isfinite(self._loss):
            return 1.0
        worse = self._replica.loss / self._loss
        return 1.0 if worse <= WORSE else (WORSE / worse if math.isfinite(worse) else 0.0)

    async def _outcome(self, meeting: Round, brought: "_Brought", via: str, fragment: Fragment) -> Outcome | None:
        """The result of a round.  All work that can run in parallel with training is done here, block by block.

        Returns `None` if it ended early: a member sent a malformed message, and members whose state now differs find
        that out; or all members have refused the sum, since they hold the same bytes.
        """
        snapshots, tail, buffers = brought
        replica, offload = self._replica, self._replica.world.offload
        step, check, digest, via_taken = fragment.step, fragment.check(), "", via
        read: Trailer | None = None
        is_refused, view = False, replica.group.view

        def is_over() -> bool:
            """Whether the round was abandoned, which this task has not heard yet."""
            return replica.group.view is not view or self.is_astray

        if len(buffers):
            Trailer.put(tail, len(replica.members), await offload(lambda: as_array(buffers), values=len(buffers)))

        async def take(place: int, found: ExchangedBlock) -> None:
            nonlocal read, digest, is_refused, via_taken
            if is_over():
                return
            if place == 0:
                read, via_taken = Trailer.read(found.tail, len(replica.members), len(self.buffers)), found.via or via
            if not is_refused and (read is None or not check.accepts(found.received.examined)):
                self.refused(meeting.name, "a sum that makes no sense")
                self._distrust_sums()
                is_refused = True
            if is_refused:
                return
            block, (_, mean, unsent, missed) = fragment.blocks[place], found.received
            outcome = BlockOutcome(block, place, step, found.snapshot, unsent, missed, mean is not None, mean)
            finish = partial(self._averaged.finish, outcome, digest)
            outcome, digest = await offload(finish, values=block.size)
            await replica.group.until_free()  # what this node has said of itself must stay true as long
            if not is_over():
                if self._parts.who is None:
                    self._averaged.all_took_part(meeting.key, place)
                self._averaged.accept(outcome, meeting.key)
                snapshots[place] = None

        understood = await self._exchange(meeting, tail, via, fragment, snapshots, take=take)
        if not understood or is_refused or read is None:
            return None
        check.end()
        return Outcome(via_taken, read, digest)

    async def _wait(self) -> None:
        assert self._pending is not None
        world, pending = self._replica.world, self._pending
        since = world.now
        expected = self._parts.meeting.patience * median(self._durations) if self._durations else self._first_wait_s
        with self._replica.group.waiting():
            await asyncio.wait({pending.task}, timeout=max(LEAST_WAIT_S, expected))
        world.record(Waited(at=world.now, node=world.name, since=since, why=pending.meeting.name))

    def _look_at_pending(self) -> None:
        """A round that takes far too long will not end: members wait for a message that nobody sends.  So this node
        asks for a new view, which ends it.
        """
        pending = self._pending
        if pending is not None and not pending.task.done() and self._is_hopeless(pending):
            self._pending = replace(pending, since=self._replica.world.now)
            self._replica.group.object()

    def _is_hopeless(self, pending: Pending) -> bool:
        """Whether a round takes so long that it will not end."""
        if not self._durations:
            return False
        limit_s = max(HOPELESS_S, HOPELESS_ROUNDS * median(self._durations))
        return self._replica.world.now - pending.since > limit_s

    async def _apply(self) -> bool:
        """Applies the results of the current round that are ready."""
        pending = self._pending
        if pending is None or self._replica.group.held or self.is_astray:
            return False
        late = self._averaged.steps > pending.step
        if not pending.task.done():
            return False
        self._pending = None
        self._done += 1
        replica, world = self._replica, self._replica.world
        outcome = pending.task.result()
        if outcome is None:
            pending.abandon()
            self._averaged.forget()
            return False
        tail = outcome.tail
        if tail.alarms > 0:  # which all members see alike
            self._distrust_sums()
        if are_buffers_sound := len(self.buffers) > 0 and bool(np.isfinite(tail.buffers).all()):
            self.buffers = tail.buffers
        replica.include(tail.work)
        self._judge.agreed({name: done for name, done in zip(replica.members, tail.work.tolist(), strict=True) if done})
        self._loss = replica.loss
        self._durations.append(world.now - pending.since)
        replica.group.grace_s = max(GRACE_S, GRACE_ROUNDS * median(self._durations))
        if self._parts.who is None:
            self._results[pending.meeting.name] = outcome.digest
            for old in list(self._results)[:-REMEMBERED]:
                del self._results[old]
        self._choice.learn(pending.via, world.now - pending.since, tail.reports)
        world.record(
            Exchanged(
                at=world.now,
                node=world.name,
                name=pending.meeting.name,
                via=outcome.via,
                since=pending.since,
                members=pending.meeting.size,
                late=late,
                digest=outcome.digest,
            )
        )
        await self._averaged.apply(pending, late=late)
        if are_buffers_sound:
            await replica.touch(lambda: replica.write(Quantity.BUFFERS, of_array(tail.buffers, replica.device)))
        await self.when.agreed()
        return True

    def _distrust_sums(self) -> None:
        if self._reduction.vias != ("gather",):
            self._judge.distrust_sums()

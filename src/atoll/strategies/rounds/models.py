"""Rounds that average models among the reachable nodes.

When nodes join or leave (`atoll.membership`), the current round is abandoned, and all members return to the last model
that they all agreed on: the next round, like any other, then averages the changes of each since then, made together or
alone.  A node that was cut off and a side of a partition are the same case.  A node that does not have that model,
because it is new or was unreachable for very long, receives it first, and contributes nothing to its first round.  If
only one member has a model to continue from, the others receive its current model.

A node that is alone holds no rounds.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace

import torch

from atoll.collectives.judge import FAR_OUT
from atoll.membership import Summary, View
from atoll.state import Saved, section, under
from atoll.strategies.parts.ahead import Steps
from atoll.strategies.parts.correction import Uncorrected
from atoll.strategies.replica import Quantity, Replica
from atoll.strategies.rounds.block import Agreed
from atoll.strategies.rounds.composition import RoundParts
from atoll.strategies.rounds.driver import FIRST_WAIT_S, Driver
from atoll.strategies.rounds.exchange import blocks_under_way, memory_bytes
from atoll.strategies.rounds.fragment import Fragment
from atoll.strategies.rounds.handover import Handed, Handover
from atoll.strategies.rounds.lineage import START, Lineage, Standing, common_agreement
from atoll.strategies.rounds.outcome import BlockOutcome, Pending
from atoll.strategies.talk import Spawn, Talk
from atoll.trace import Joined
from atoll.vectors import Vector, all_finite, as_array, of_array, used_here
from atoll.vectors import digest as digest_of
from atoll.world.hearing import NOT_UNDERSTOOD

__all__ = ["ModelRounds"]


class ModelRounds(Talk):
    """One node's part in rounds of models, and its place among the members.

    Args:
        replica: its model.
        parts: what rounds are.
        on_view: called when rounds are among others.
        first_wait_s: how long the first round of a run is waited for.
    """

    suffix = ""
    far_out = FAR_OUT

    def __init__(
        self,
        replica: Replica,
        parts: RoundParts,
        *,
        on_view: Callable[[], None] | None = None,
        first_wait_s: float = FIRST_WAIT_S,
    ) -> None:
        self._replica = replica
        self._driver = Driver(replica, parts, self, first_wait_s=first_wait_s)
        self._steady = parts.meeting.steady
        self._on_view = on_view
        self._lineage = Lineage([])
        self._was_alone = replica.group.is_alone
        """Whether the node was alone in the current or last view: nobody else holds its agreements from then."""
        self._accepted: deque[BlockOutcome] = deque()
        """Results that are agreed on, and not in the model yet."""
        self._before_round = START
        """The agreement that the current round began from."""
        self._common: list[Vector] | None = None
        """The agreement that the view continues from, if this node holds it."""
        self._is_sole_holder = False
        """Whether the others will receive this node's model from its next step boundary."""
        spans = [block.span for block in self._driver.blocks]
        sizes = [span.stop - span.start for span in spans]
        optimizer = parts.meeting.handover == "optimizer"
        self._handover = Handover(
            replica,
            sizes,
            parts.dtype,
            len(self._driver.buffers),
            self._to_hand_out,
            home=parts.home(replica.device),
            optimizer=optimizer,
        )

    def prepare(self) -> None:
        self._driver.prepare()

    def start(self, spawn: Spawn) -> None:
        self._replica.group.start(spawn, self, progress=lambda: self._replica.steps)
        self._handover.start(spawn)
        self._driver.start(spawn)
        world = self._replica.world
        start = self._own_start() if world.is_late else START
        self._lineage = Lineage(self._driver.held, start, behind=self._behind, is_new=not world.is_founder)

    async def after_gradient(self) -> None:
        if self._driver.blocks[0].pulls:
            await self._replica.touch(self._pull)

    def _pull(self) -> None:
        values, gradient = self._replica.read(Quantity.PARAMETERS), self._replica.read(Quantity.GRADIENT)
        for block in self._driver.blocks:
            pull = block.pull(values[block.span])
            if pull is not None:
                gradient[block.span] += pull
        self._replica.write(Quantity.GRADIENT, gradient)

    @property
    def _behind(self) -> int:
        """By how many blocks other members may be behind."""
        most = max(len(fragment.blocks) for fragment in self._driver.fragments)
        return min(blocks_under_way(self._replica.block_values), most)

    async def after_step(self) -> bool:
        if not isinstance(self._driver.blocks[0].correction, Uncorrected):
            await self._replica.touch(self._correct)
        group = self._replica.group
        await self._settle_if_whole()
        if group.held or self._driver.is_astray:
            return False
        if self._handover.is_under_way:
            return await self._join()
        if self._is_sole_holder:
            await self._hand_out_own()
        merged = not group.is_alone and await self._driver.turn()
        await self._settle_if_whole()
        return merged

    @property
    def memory_bytes(self) -> int:
        return memory_bytes(self._driver.fragments)

    @property
    def is_idle(self) -> bool:
        if self._handover.is_under_way or self._is_sole_holder or (self._accepted and not self._driver.is_under_way):
            return False
        return self._driver.is_idle

    def save(self) -> Saved:
        """The last agreed model, and the values that this node has not sent yet.

        The others treat a node that continues from it as one that was unreachable, also if all nodes do so.
        """
        return under("lineage", self._lineage.save()) | self._driver.save()

    def load(self, saved: Saved) -> None:
        self._lineage.load(section("lineage", saved))
        self._driver.begin_from(self._lineage.held)
        self._driver.load(saved)

    @property
    def settled(self) -> bool:
        """Whether this node has begun a round since nodes last joined or left, and no handover is in progress."""
        return not self._handover.is_under_way and (self._replica.group.view.number == 0 or self._driver.number > 0)

    def _correct(self) -> None:
        steps = [(block.span, block.correction.step()) for block in self._driver.blocks]
        self._replica.add_blocks([(span, used_here(each)) for span, each in steps if each is not None])

    # What the driver averages ---

    @property
    def steps(self) -> int:
        return self._replica.steps

    async def snapshots(self, fragment: Fragment, step: int, *, corrected: bool) -> tuple[list[Vector | None], int]:  # noqa: ARG002
        replica = self._replica
        self._before_round = self._lineage.current
        spans = [block.span for block in fragment.blocks]
        return [*await replica.touch(lambda: replica.read_blocks(spans))], 1

    def all_took_part(self, key: int, place: int) -> None:
        """Members that contribute to a block hold all but the last few before it (`Exchange`)."""
        replica, before = self._replica, self._before_round
        if place >= self._behind:
            before = replica.group.view.name, self._number(key, place - self._behind)
        self._common = None  # nobody needs to be handed what the view began from
        self._lineage.everybody_holds(before, all_are_here=len(replica.group.view.members) == len(replica.members))

    def _number(self, key: int, place: int) -> int:
        """The number of an agreement in its view."""
        return key * max(len(fragment.blocks) for fragment in self._driver.fragments) + place + 1

    def finish(self, found: BlockOutcome, digest: str) -> tuple[BlockOutcome, str]:
        agreed = found.block.follows(found.mean)
        change = found.block.change(agreed.values, found.snapshot) if found.mean is not None else None
        digest = digest_of(agreed.values, digest)
        if change is not None and self._replica.steps > found.step:  # the change is enough
            agreed = Agreed(agreed.kept, agreed.kept)
        return replace(found, mean=None, agreed=agreed, change=change), digest

    def accept(self, found: BlockOutcome, key: int) -> None:
        assert found.agreed is not None
        found.block.commit(found.unsent)
        found.block.is_handed = False
        if found.counts:
            found.block.agree(found.agreed, found.missed)
        self._lineage.agreed(self._replica.group.view.name, self._number(key, found.place), self._driver.held)
        self._accepted.append(found)

    def forget(self) -> None:
        """Blocks of models were agreed on one by one, and stay."""

    async def apply(self, pending: Pending, *, late: bool) -> None:  # noqa: ARG002
        await self.settle()

    async def _settle_if_whole(self) -> None:
        """A round's results get into the model together: so training is held up once."""
        if not self._driver.is_under_way:
            await self.settle()

    async def settle(self) -> None:
        while self._accepted:
            await self._replica.touch(self._change_model)

    def _change_model(self) -> None:
        """Brings results into the model; until then they wait, also if whoever began this is cancelled.  More may be
        accepted meanwhile, on the event loop.
        """
        model, replica = Quantity.PARAMETERS, self._replica
        changes: list[tuple[slice, Vector]] = []
        for found in iter(self._next_accepted, None):
            span = found.block.span
            assert found.agreed is not None
            agreed = used_here(found.agreed.values)
            steps = Steps(found.step, replica.steps - found.step, len(replica.members))
            if found.snapshot is None:
                replica.write(model, agreed, span)
            elif not found.counts:
                continue
            elif found.change is not None and steps.since > 0:
                changes.append((span, used_here(found.change)))
            else:
                replica.write(model, found.block.on_top(agreed, replica.read(model, span), found.snapshot, steps), span)
        replica.add_blocks(changes)

    def _next_accepted(self) -> BlockOutcome | None:
        with contextlib.suppress(IndexError):
            return self._accepted.popleft()
        return None

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
        return self._driver.results()

    def compared(self, sender: str, results: Summary) -> bool:
        """If this node's result differs from the leader's after the same round, this node yields, whichever was wrong:
        it drops its agreements, and receives the others' state.
        """
        differing = self._driver.differing(results)
        if differing is None:
            return True
        name, theirs, own = differing
        self._driver.refused(name, f"{sender} holds {theirs}, and this node {own}")
        self._lineage.forget(self._own_start())
        self._driver.is_astray = True
        return False

    def _own_start(self) -> tuple[str, int]:
        return f"{self._replica.world.name} at {self._replica.world.now}", 0

    def installed(self, view: View, summaries: dict[str, Summary]) -> None:
        """Called when a view is installed: its members hold the rounds from now on."""
        self._begin_anew()
        if not self._was_alone:
            self._lineage.ends()
        self._was_alone = len(view.members) == 1
        for block in self._driver.blocks:
            block.correction.here(everybody=len(view.members) == len(self._replica.members))
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

    def _begin_from(self, held: list[Vector], *, handed: bool = False) -> None:
        """All members continue from `held`.

        Results after `held` that are not in the model yet are dropped where nothing else depends on them.  Where a
        node remembers what it has not sent, that counts from them, so they still get into the model, as those of
        finished rounds have.
        """
        self._driver.begin_from(held, handed=handed)
        for _ in range(len(self._accepted)):  # some may get into the model meanwhile, on training's thread
            found = self._next_accepted()
            if found is None or handed or found.agreed is None:
                continue
            if found.block.agreed is found.agreed.kept or found.block.remembers:
                self._accepted.append(found)

    def _begin_anew(self) -> None:
        if self._steady:
            self._replica.scale_batch(len(self._replica.members) / len(self._replica.group.view.members))
        self._driver.restart()
        self._handover.end()

    def _to_hand_out(self) -> list[Vector] | None:
        return None if self._common is None else [*self._common, torch.from_numpy(self._driver.buffers)]

    async def _hand_out_own(self) -> None:
        """Makes the current model the one that all members of the view continue from."""
        view, offload = self._replica.group.view, self._replica.world.offload
        model, buffers = Quantity.PARAMETERS, Quantity.BUFFERS
        spans = [block.span for block in self._driver.blocks]
        values, more = await self._replica.touch(
            lambda: ([self._replica.read(model, span) for span in spans], self._replica.read(buffers))
        )
        kept, is_sound = await offload(
            lambda: (
                [block.kept(each) for block, each in zip(self._driver.blocks, values, strict=True)],
                all(map(all_finite, values)),
            )
        )
        await self._replica.group.until_free()
        if self._replica.group.view is not view:  # nodes joined or left meanwhile
            return
        self._driver.buffers = as_array(more)
        self._is_sole_holder = False
        if not is_sound:  # the last agreed model is better
            self._common = self._lineage.held
        else:
            self._common = kept
            self._begin_from(self._common)
        self._lineage.agreed(self._replica.group.view.name, 0, self._common)
        self._handover.changed()

    def _nearest(self, hosts: list[str]) -> str:
        """The host with the least latency; among equals, to the millisecond, nodes choose different ones."""
        first = self._replica.rank % len(hosts)
        peer = self._replica.world.peer
        return min(hosts[first:] + hosts[:first], key=lambda name: min(peer(name).round_trip_s, 1e6) // 1e-3)

    async def _join(self) -> bool:
        """Takes over the state that the others continue from, once it has arrived."""
        handed = self._handover.handed
        if handed is None:
            return False
        held, self._driver.buffers = handed.held, handed.buffers
        was_new = self._lineage.is_new  # else its own model is as good until the first round
        self._begin_from(held, handed=True)
        self._lineage.adopt(handed.agreement, held)
        self._common = held
        self._handover.end()
        world = self._replica.world
        await self._replica.touch(lambda: self._take_over(handed, write=was_new))
        await self._driver.when.agreed()
        world.record(Joined(at=world.now, node=world.name, view=self._replica.group.view.name))
        return True

    def _take_over(self, handed: Handed, *, write: bool) -> None:
        if write:
            for block, values in zip(self._driver.blocks, handed.held, strict=True):
                self._replica.write(Quantity.PARAMETERS, values, block.span)
            self._replica.write(Quantity.BUFFERS, of_array(handed.buffers, self._replica.device))
        try:
            self._replica.take_over(handed.work, handed.memory, handed.steps)
        except NOT_UNDERSTOOD as error:
            self._driver.refused("state", f"what the host's optimiser remembers does not fit ({error})")
            self._replica.take_over(handed.work, {}, handed.steps)

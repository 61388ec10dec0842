"""Rounds that average gradients.  After nodes have joined or left, separate rounds average models a few times."""

from dataclasses import replace

from atoll.collectives.judge import FAR_OUT_GRADIENT
from atoll.state import Saved, section, under
from atoll.strategies.parts.part import part as made
from atoll.strategies.parts.when import AfterAView
from atoll.strategies.replica import Quantity, Replica
from atoll.strategies.rounds.composition import Meeting, RoundParts
from atoll.strategies.rounds.driver import LEAST_WAIT_S, Driver
from atoll.strategies.rounds.exchange import memory_bytes
from atoll.strategies.rounds.fragment import Fragment
from atoll.strategies.rounds.models import ModelRounds
from atoll.strategies.rounds.outcome import BlockOutcome, Pending
from atoll.strategies.talk import Spawn, Talk
from atoll.vectors import Vector, all_finite
from atoll.vectors import digest as digest_of

__all__ = ["GradientRounds"]


class GradientRounds(Talk):
    """One node's part in rounds of gradients.

    Args:
        replica: its model.
        parts: what rounds are.
    """

    suffix = " of gradients"
    far_out = FAR_OUT_GRADIENT

    def __init__(self, replica: Replica, parts: RoundParts) -> None:
        self._replica = replica
        self._post = parts.post
        self._driver = Driver(replica, parts, self)
        self._merged = False
        self._accepted: list[BlockOutcome] = []
        """The current round's results so far."""
        meeting = replace(
            parts.meeting,
            overlap=False,
            patience=Meeting().patience,
            handover="model" if parts.meeting.handover == "model" else "optimizer",
        )
        self._models = ModelRounds(
            replica,
            RoundParts(when=made(AfterAView), meeting=meeting),
            on_view=self._driver.restart,
            first_wait_s=LEAST_WAIT_S,
        )

    def prepare(self) -> None:
        self._models.prepare()
        self._driver.prepare()

    def start(self, spawn: Spawn) -> None:
        self._models.start(spawn)
        self._driver.start(spawn)

    async def after_gradient(self) -> None:
        group = self._replica.group
        self._merged = False
        if not (group.held or group.is_alone) and self._models.settled:
            await self._replica.touch(self._collect)
            self._merged = await self._driver.turn()

    async def after_step(self) -> bool:
        return await self._models.after_step() or self._merged

    @property
    def memory_bytes(self) -> int:
        return self._models.memory_bytes + memory_bytes(self._driver.fragments)

    async def settle(self) -> None:
        await self._models.settle()

    def save(self) -> Saved:
        return under("models", self._models.save()) | self._driver.save()

    def load(self, saved: Saved) -> None:
        self._models.load(section("models", saved))
        self._driver.load(saved)

    def _collect(self) -> None:
        """Adds the gradient of this step to those to share.  A gradient that is not finite is not used either."""
        own = self._replica.read(Quantity.GRADIENT)
        if not all_finite(own):
            self._replica.write(Quantity.GRADIENT, own.zero_())
            return
        for block in self._driver.blocks:
            block.collect(own[block.span])

    # What the driver averages ---

    @property
    def steps(self) -> int:
        """A gradient is exchanged before its step is counted."""
        return self._replica.steps + 1

    async def snapshots(self, fragment: Fragment, step: int, *, corrected: bool) -> tuple[list[Vector | None], int]:
        return [block.collected() for block in fragment.blocks], step - fragment.step + corrected

    def all_took_part(self, key: int, place: int) -> None:
        """Gradients are kept for no one."""

    def finish(self, found: BlockOutcome, digest: str) -> tuple[BlockOutcome, str]:
        if found.mean is None:
            return found, digest
        mean = self._post(found.mean) if self._post else found.mean
        return replace(found, mean=mean), digest_of(mean, digest)

    def accept(self, found: BlockOutcome, key: int) -> None:  # noqa: ARG002 - the shape
        self._accepted.append(found)

    def forget(self) -> None:
        """A gradient is of use as a whole."""
        self._accepted.clear()

    async def apply(self, pending: Pending, *, late: bool) -> None:
        accepted, self._accepted = self._accepted, []
        for found in accepted:
            found.block.commit(found.unsent)
        await self._replica.touch(lambda: self._change_gradient(accepted, adds=late or pending.alone > 1))

    def _change_gradient(self, blocks: list[BlockOutcome], *, adds: bool) -> None:
        taken = [(found, found.mean) for found in blocks if found.mean is not None]
        if not taken:
            return
        values = self._replica.read(Quantity.GRADIENT)
        for found, mean in taken:
            span, snapshot = found.block.span, found.snapshot
            if snapshot is None or adds:
                values[span] += mean if snapshot is None else mean - snapshot
            else:
                values[span] = mean
        self._replica.write(Quantity.GRADIENT, values)

"""A node's part in its island: batches come from the stage before and go to the next, gradients the other way.

A stage is a trainer for the driver (`atoll.training.drive`): its next gradient is ready when all batches of an update
have come back.

No stage waits for another one.  Each does the work at hand: a backward pass if a gradient has arrived, else a forward
pass if a batch has arrived and it holds fewer than it may; and after every backward pass it updates its weights.  After
a backward pass a forward pass has priority if one can be done: otherwise batches would come in bursts, with idle time
between two bursts.

A batch has a number and carries its targets, so that nothing is mixed up whatever the network does: a duplicate, or a
gradient of a batch that was given up, is dropped; a batch that does not come back in time is given up, and nothing else
is lost.

With `flush` the same stages train synchronously, as GPipe and 1F1B do: a batch is cut into that many pieces, each stage
updates when all have come back, and the next batch begins after that.
"""

import asyncio
import math
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import safetensors.torch
import torch
from torch import Tensor

from atoll.codecs import Codec, Dense
from atoll.islands.cut import BACKWARD, FORWARD, RECOMPUTE
from atoll.islands.stage import StageModel
from atoll.islands.wire import pack_tensors, read_tensors, unpack_tensors
from atoll.trace import StageReported
from atoll.world.base import Lane, Message, Spawn, World
from atoll.world.hearing import NOT_UNDERSTOOD, hear

__all__ = ["Given", "Pipeline", "Source", "StageSeat"]

PATIENCE_S = 5.0
PATIENCE = 10.0
"""A batch is given up after this many times the usual time."""
REMEMBERED = 1000
"""The duplicate window: this many batches are remembered as seen."""
REPORT_EVERY = 20
FAILURES = 3
"""After this many failed batches in a row, the failure is not the sender's fault."""
T = TypeVar("T")
_FORWARD = struct.Struct("<QI")
"""The number, and the samples of the whole batch."""
_BACKWARD = struct.Struct("<Qf")
"""The number, and the loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSeat:
    """A node's place in an island."""

    island: str
    stage: int
    before: str | None
    """The node whose outputs it takes; `None`: it is first."""
    after: str | None
    """The node that takes its outputs; `None`: it is last."""
    holds: int
    share: float
    """The cost of a pass through its layers, as a share of the whole model."""
    flush: int = 0
    """The number of pieces of a batch, to train synchronously; 0: stages do not wait for each other."""
    pieces: int = 1
    """The number of pieces of a batch, without waiting; an update comes when all have come back.  With at least as many
    pieces as stages, gradients are at most one update late (as in PipeDream-2BW).
    """
    accumulate: int = 1
    """The number of batches for an update, without waiting: gradients are then fewer updates late."""
    wire: Codec = field(default_factory=Dense)
    """The codec of activations and gradients."""


@dataclass(frozen=True, slots=True)
class Given:
    """A batch at the first stage."""

    inputs: Tensor
    targets: Tensor


Source = Callable[[], Given | None]
"""Returns the next batch, or `None`; the source then calls `Pipeline.wake` when there is one."""


@dataclass(slots=True, eq=False)
class _Waiting:
    """A batch, or a piece of one, that has arrived and was not processed yet."""

    number: int
    inputs: Tensor
    targets: Tensor
    whole: int
    """Samples of the whole batch."""


class Pipeline:
    """One stage at work.

    Args:
        world: the stage's world.
        seat: its place in the island.
        model: its layers.
        source: the source of batches; for the first stage.
        loss: the mean loss of a batch, from outputs and targets; for the last stage.
        recompute: whether the model does its forward passes twice.
    """

    def __init__(
        self,
        world: World,
        seat: StageSeat,
        model: StageModel,
        *,
        source: Source | None = None,
        loss: Callable[[Tensor, Tensor], Tensor] | None = None,
        recompute: bool = False,
    ) -> None:
        self._world = world
        self._seat = seat
        self._model = model
        self._source = source
        self._loss = loss
        self._recompute = recompute
        self._inputs: deque[_Waiting] = deque()
        self._gradients: deque[tuple[int, Tensor]] = deque()
        self._seen: dict[int, None] = {}
        self._samples: dict[int, tuple[int, int]] = {}
        """For each batch that it holds: its samples, and those of the whole batch."""
        self._since: dict[int, float] = {}
        self._pieces: deque[_Waiting] = deque()
        """The remaining pieces of the current batch, at the first stage."""
        self._next = 0
        self._sending: dict[int, asyncio.Task[None]] = {}
        self._usual_s = 0.0
        self._learned = 0, 0
        """Pieces and samples since the last update."""
        self._turn = False
        """Whether a forward pass has priority."""
        self._is_due = False
        """Whether all gradients of an update are here."""
        self._is_to_report = False
        self.samples = 0
        """The samples of the last update."""
        self._failures = 0
        """Batches of another stage that failed, in a row."""
        self._wake = asyncio.Event()
        self._spawn: Spawn | None = None
        self.losses: deque[float] = deque(maxlen=10)
        self.given_up = 0
        self._stale: list[int] = []

    @property
    def loss(self) -> float:
        """The island's mean loss on its last batches, as far as it is known here."""
        return sum(self.losses) / len(self.losses) if self.losses else math.nan

    def start(self, spawn: Spawn) -> None:
        """Begins to listen to the neighbouring stages."""
        self._spawn = spawn
        if self._seat.before:
            spawn(hear(self._world, "forward", self._hear_forward))
        if self._seat.after:
            spawn(hear(self._world, "backward", self._hear_backward))

    async def gradient(self) -> None:
        """Works until the gradient of an update is ready."""
        self._report()
        while not self._is_due:
            batch = None
            may_begin = len(self._model.held) < self._seat.holds and self._model.has_room
            if (self._turn or not self._gradients) and may_begin:
                batch = self._take()
            if batch:
                await self._forward(batch)
            elif self._gradients:
                await self._backward(*self._gradients.popleft())
            else:
                await self._rest()
            self._turn = not batch

    async def update(self) -> None:
        """Updates the weights of the stage."""
        self._is_due = False
        await self._world.aside(self._model.update)
        self._is_to_report = self._model.updates % REPORT_EVERY == 0

    def wake(self) -> None:
        """Says that there may be work."""
        self._wake.set()

    # Receiving ---

    def _hear_forward(self, message: Message) -> None:
        number, whole = _FORWARD.unpack(message.head)
        found = read_tensors(message.body)
        if message.sender != self._seat.before or number in self._seen:
            return
        inputs, device = unpack_tensors(found, self._seat.wire, number), self._model.device
        if inputs.is_floating_point() and not torch.isfinite(inputs).all():
            raise ValueError(f"batch {number} is not finite")
        if not 0 < len(inputs) == len(found["t"]) <= whole:
            raise ValueError(f"{len(inputs)} samples, {len(found['t'])} targets, of {whole}")
        self._remember(number)
        self._inputs.append(_Waiting(number, inputs.to(device), found["t"].to(device), whole))
        self._wake.set()

    def _remember(self, number: int) -> None:
        self._seen[number] = None
        if len(self._seen) > REMEMBERED:
            self._seen.pop(next(iter(self._seen)))

    def _hear_backward(self, message: Message) -> None:
        number, loss = _BACKWARD.unpack(message.head)
        gradient = unpack_tensors(read_tensors(message.body), self._seat.wire, number).to(self._model.device)
        if message.sender != self._seat.after or number not in self._samples:
            return  # given up, or a duplicate
        if number in (each for each, _ in self._gradients):
            return
        if gradient.shape != self._model.shape_of(number) or not gradient.is_floating_point():
            raise ValueError(f"a gradient of {tuple(gradient.shape)} for batch {number}")
        if not torch.isfinite(gradient).all():
            self._give_up(number)
            raise ValueError(f"a gradient for batch {number} that is not finite")
        self.losses.append(loss)
        self._gradients.append((number, gradient))
        self._wake.set()

    def _take(self) -> _Waiting | None:
        """The next batch for a forward pass, if there is one."""
        if self._source is None:
            return self._inputs.popleft() if self._inputs else None
        if not self._pieces and not (self._seat.flush and (self._model.held or self._learned[0])):
            given = self._source()
            if given is not None:
                self._begin(given)
        return self._pieces.popleft() if self._pieces else None

    def _begin(self, given: Given) -> None:
        whole = len(given.inputs)
        pieces = min(self._seat.flush or self._seat.pieces, whole)
        for inputs, targets in zip(given.inputs.tensor_split(pieces), given.targets.tensor_split(pieces), strict=True):
            if inputs.untyped_storage().nbytes() > inputs.nbytes:
                inputs = inputs.clone()  # noqa: PLW2901 - a view would keep the whole batch in memory
            self._pieces.append(_Waiting(self._next, inputs, targets, whole))
            self._next += 1

    async def _rest(self) -> None:
        """Waits for work; gives up batches that have been out for too long."""
        self._wake.clear()
        oldest = min(self._since.values(), default=None)
        if oldest is None:
            await self._wake.wait()
            return
        patience = max(PATIENCE_S, PATIENCE * self._usual_s)
        try:
            async with asyncio.timeout(max(0.0, oldest + patience - self._world.now)):
                await self._wake.wait()
        except TimeoutError:
            for number in [each for each, since in self._since.items() if since + patience <= self._world.now]:
                self._give_up(number)
            if self._seat.flush and not self._model.held:  # the other pieces of the batch are of no use
                self._model.forget()
                self._learned = 0, 0

    def _give_up(self, number: int) -> None:
        self._model.give_up(number)
        del self._since[number], self._samples[number]
        self.given_up += 1
        if sending := self._sending.pop(number, None):
            sending.cancel()  # unsent data is not needed

    # Working ---

    async def _forward(self, batch: _Waiting) -> None:
        seat, model, samples = self._seat, self._model, len(batch.inputs)
        steps = seat.share / (FORWARD + BACKWARD) * samples / batch.whole
        if seat.after is None:
            assert self._loss is not None
            loss, targets = self._loss, batch.targets
            share = samples / batch.whole / seat.accumulate  # of the samples of an update

            def learn() -> tuple[float, Tensor | None]:
                return model.learn(batch.inputs, lambda outputs: loss(outputs, targets) * share)

            learned = await self._attempt(learn, steps * (FORWARD + BACKWARD))
            value, gradient = learned or (math.nan, None)
            value /= share
            if not math.isfinite(value):
                model.forget()  # it would damage the weights; earlier stages give the batch up
                self._learned = 0, 0
                return
            self.losses.append(value)
            if seat.before and gradient is not None:
                self._send(seat.before, "backward", _BACKWARD.pack(batch.number, value), batch.number, gradient)
            self._learned_from(samples, batch.whole)
            return
        self._samples[batch.number], self._since[batch.number] = (samples, batch.whole), self._world.now
        outputs = await self._attempt(lambda: model.forward(batch.number, batch.inputs), steps * FORWARD)
        if outputs is None:
            self._give_up(batch.number)
            return
        head = _FORWARD.pack(batch.number, batch.whole)
        sending = self._send(seat.after, "forward", head, batch.number, outputs, targets=batch.targets)
        self._sending[batch.number] = sending
        sending.add_done_callback(lambda _: self._sending.pop(batch.number, None))

    async def _attempt(self, work: Callable[[], T], steps: float) -> T | None:
        """Works on a batch; a batch of another stage that fails is dropped, but several in a row are this stage's own
        fault.
        """
        try:
            found = await self._world.compute(work, steps=steps)
        except NOT_UNDERSTOOD:
            self._failures += 1
            if self._seat.before is None or self._failures >= FAILURES:
                raise
            return None
        self._failures = 0
        return found

    async def _backward(self, number: int, gradient: Tensor) -> None:
        seat, model = self._seat, self._model
        if number not in self._samples:
            return  # given up meanwhile
        samples, whole = self._samples.pop(number)
        took = self._world.now - self._since.pop(number)
        self._usual_s = took if not self._usual_s else 0.9 * self._usual_s + 0.1 * took
        passes = BACKWARD + RECOMPUTE * self._recompute
        steps = passes * seat.share / (FORWARD + BACKWARD) * samples / whole
        back = await self._world.compute(lambda: model.backward(number, gradient), steps=steps)
        if seat.before and back is not None:
            loss = self.losses[-1] if self.losses else math.nan
            self._send(seat.before, "backward", _BACKWARD.pack(number, loss), number, back)
        self._learned_from(samples, whole)

    def _learned_from(self, samples: int, whole: int) -> None:
        """Counts a finished backward pass: an update is due once all its samples are here."""
        pieces, before = self._learned
        self._learned = pieces + 1, before + samples
        self._stale.append(self._model.staleness)
        if before + samples >= whole * self._seat.accumulate:
            self._is_due, self.samples, self._learned = True, before + samples, (0, 0)

    def _report(self) -> None:
        """Reports the work of the stage now and then."""
        if not self._is_to_report:
            return
        model, world = self._model, self._world
        world.record(
            StageReported(
                at=world.now,
                node=world.name,
                island=self._seat.island,
                stage=self._seat.stage,
                updates=model.updates,
                stale_mean=sum(self._stale) / len(self._stale),
                stale_most=max(self._stale),
                holds=self._seat.holds,
                versions=model.versions,
                most_bytes=model.most_bytes,
                given_up=self.given_up,
            )
        )
        self._stale.clear()
        self._is_to_report = False

    def _send(
        self, name: str, channel: str, head: bytes, number: int, values: Tensor, *, targets: Tensor | None = None
    ) -> asyncio.Task[None]:
        """Sends in the background, while the stage continues with the next pass."""
        assert self._spawn is not None
        tensors = pack_tensors(values, self._seat.wire, number)
        if targets is not None:
            tensors["t"] = targets.detach().cpu().contiguous()
        body = safetensors.torch.save(tensors)
        return self._spawn(self._world.peer(name).send(channel, head, body, lane=Lane.BULK))

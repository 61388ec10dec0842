"""A script's model, held by several nodes together: `run.wrap_stages()`, and the object that it returns.

The pipeline runs in the world's thread and does not wait for the script; the script provides batches if its node is the
first of an island, and gets the loss of every update.
"""

import asyncio
import copy
import math
import queue
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from atoll.errors import AtollError, TaskError
from atoll.islands import Given, Source, chain
from atoll.islands.curriculum import Exam
from atoll.islands.live import at_work, open_node
from atoll.islands.node import IslandNode
from atoll.islands.settings import parse_islands
from atoll.settings import parse_size
from atoll.state import Saved, note, read_note
from atoll.strategies import parse_strategy
from atoll.trace import TrainingStarted
from atoll.training.task import Examples
from atoll.world.base import Lane, Message
from atoll.world.hearing import hear
from atoll.world.live.thread import WorldThread
from atoll.world.scope import Scoped

__all__ = ["Batch", "Loss", "ScriptCurriculum", "Stages"]

Batch = tuple[Tensor, Tensor]
"""Inputs and targets."""
Loss = Callable[[Tensor, Tensor], Tensor]
AHEAD = 2
"""How many batches a script is asked for in advance."""
TOLD = 1000
"""How many updates are kept for a script that is busy."""
LOOK_EVERY_S = 1.0
TEST_EVERY = 50
GOODBYE_S, LONGEST_S = 2.0, 60.0

_WANTED = "wanted"
_News = str | float | int
"""A request for a batch; the loss of an update; or the number of updates after which the island has ended."""


class ScriptCurriculum:
    """The curriculum of a script's islands.

    Args:
        model: the script's model.
        optimizer: the script's optimiser; each layer gets one like it.
        example: an example batch.
        loss: the mean loss of a batch.
        names: the names of all seats.
        exam: the test of the model.
    """

    alike = False

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        example: Examples,
        loss: Loss,
        *,
        names: Sequence[str],
        exam: Exam | None = None,
    ) -> None:
        self._model = model
        self._chain = chain(model, example.inputs)
        self._own = {id(each) for each in model.parameters()}
        self._optimizer = optimizer
        self._groups = {id(each): group for group in optimizer.param_groups for each in group["params"]}
        self._made: list[tuple[dict[str, Any], dict[str, Any]]] = []
        """The groups of optimisers like the script's, each with the script's own group."""
        self._loss = loss
        self._device = example.inputs.device
        self._exam = exam
        self.shards = len(names)
        self.news: queue.SimpleQueue[_News] = queue.SimpleQueue()
        """News for the script."""
        self.may_begin: Callable[[], bool] = lambda: True
        """Whether another batch is needed at all."""
        self._ready: deque[Given] = deque()
        self._asked = 0

    @property
    def exam(self) -> Exam | None:
        return self._exam

    def build(self) -> nn.Sequential:
        """The script's own layers, which are trained in place."""
        return self._chain

    def copied(self) -> tuple[nn.Module, nn.Sequential]:
        """A copy of the script's model, and of its chain."""
        return copy.deepcopy((self._model, self._chain))

    def optimizer(self, parameters: Sequence[nn.Parameter]) -> Optimizer | None:
        """An optimiser like the script's, with the same settings for the same parameters; `None` if none is trained."""
        groups: dict[int, tuple[dict[str, Any], list[nn.Parameter]]] = {}
        for each in parameters:
            own = self._groups.get(id(each))
            if own is None and id(each) in self._own:
                continue  # it is not trained
            own = own or self._optimizer.param_groups[0]
            groups.setdefault(id(own), (own, []))[1].append(each)
        if not groups:
            return None
        given = [
            {**{key: value for key, value in own.items() if key != "params"}, "params": some}
            for own, some in groups.values()
        ]
        kind: Callable[..., Optimizer] = type(self._optimizer)
        try:
            made = kind(given)
        except TypeError as error:
            what = type(self._optimizer).__name__
            raise TaskError(
                f"run.wrap_stages: a {what} cannot be made for a layer ({error}): expected an optimiser that takes "
                "groups of parameters and nothing else, as torch's do"
            ) from None
        again = {id(each) for each in parameters}
        self._made = [(mine, own) for mine, own in self._made if id(mine["params"][0]) not in again]
        self._made += [(mine, own) for mine, (own, _) in zip(made.param_groups, groups.values(), strict=True)]
        return made

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self._loss(outputs, targets)

    def source(self, shard: int, scope: str) -> Source:  # noqa: ARG002 - the script shares its data out itself
        for _ in range(AHEAD - self._asked - len(self._ready)):
            self._want()

        def take() -> Given | None:
            if not self._ready or not self.may_begin():
                return None
            self._want()
            return self._ready.popleft()

        return take

    def _want(self) -> None:
        self._asked += 1
        self.news.put(_WANTED)

    def give(self, inputs: Tensor, targets: Tensor) -> None:
        """Takes a batch of the script; called in the world's thread."""
        self._asked -= 1
        self._ready.append(Given(inputs.to(self._device), targets.to(self._device)))

    def learned(self, updates: int, loss: float) -> None:  # noqa: ARG002 - the script counts for itself
        for mine, own in self._made:
            mine["lr"] = own["lr"]  # a schedule changes the script's own
        if self.news.qsize() < TOLD:
            self.news.put(float(loss))

    def save(self) -> Saved:
        return {}

    def load(self, saved: Saved) -> None:
        """Does nothing: the script keeps the position of its data."""


class Stages:
    """A script's part in an island.  Made by `run.wrap_stages()`."""

    def __init__(
        self,
        thread: WorldThread,
        strategy: str,
        model: nn.Module,
        optimizer: Optimizer,
        example_batch: Batch,
        *,
        loss: Loss,
        islands: str,
        memory: str | None,
        test: Batch | None,
        measure: Loss | None,
        started: Callable[[int], TrainingStarted],
    ) -> None:
        settings = parse_islands(islands)
        if settings.islands:
            raise TaskError(f"run.wrap_stages: islands {islands!r}: nodes form them themselves: expected auto")
        inputs, targets = _pair(example_batch, "example_batch")
        known = {id(each) for each in model.parameters()}
        if not known >= {id(each) for group in optimizer.param_groups for each in group["params"]}:
            raise TaskError("run.wrap_stages: the optimiser has parameters that are not the model's")
        example, world = Examples(inputs, targets), thread.world
        exam = _exam(test, measure or loss, rising=started(0).rising) if test else None
        self._thread = thread
        self._optimizer = optimizer
        self._curriculum = curriculum = ScriptCurriculum(model, optimizer, example, loss, names=world.names, exam=exam)
        room, how = parse_size(memory) if memory else None, parse_strategy(strategy)
        self._node: IslandNode = thread.call(open_node(world, curriculum, example, settings, how, memory=room))
        self._started = started(sum(each.numel() for each in model.parameters()))
        self._pieces = settings.pieces
        self._most: int | None = None
        curriculum.may_begin = self._may_begin
        self._is_at_work = False
        self._has_ended = False
        self.loss = float("nan")
        """The island's loss on its last batches, as far as it is known here."""

    @property
    def steps(self) -> int:
        """How many updates this node's layers have had."""
        return self._node.updates

    @property
    def layers(self) -> range:
        """The layers of the model that this node holds now."""
        held = self._node.store.used
        return range(min(held), max(held) + 1) if held else range(0)

    @property
    def place(self) -> tuple[int, int]:
        """The index of this node's island, and the number of islands, by which data is divided."""
        return self._node.place

    def train(self, data: Iterable[Batch], *, updates: int | None = None) -> Iterator[float]:
        """Trains, and yields the island's loss after every update of this node's layers.

        Args:
            data: batches of inputs and targets, repeated; used only if this node is the first of its island.
            updates: the total number of updates of this node after which it returns; an island ends when one of its
                nodes has reached it.  By default it continues until the loop is left.
        """
        self._most, self._has_ended = updates, False
        self._begin()
        batches = _again_and_again(data)
        began, told = self.steps, 0
        while not self._has_ended and (updates is None or self.steps < updates):
            try:
                news = self._curriculum.news.get(timeout=LOOK_EVERY_S)
            except queue.Empty:
                self._thread.check()
                continue
            if news == _WANTED:
                inputs, targets = _pair(next(batches), "train: a batch")
                self._thread.soon(partial(self._give, inputs, targets))
            elif isinstance(news, int):
                self._has_ended = updates is None or news >= updates
            else:
                self.loss = float(news)
                self._optimizer._opt_called = True  # type: ignore[attr-defined]  # noqa: SLF001 - for schedules
                told += 1
                yield self.loss
        while told < self.steps - began:  # an update is counted before its loss arrives
            try:
                news = self._curriculum.news.get(timeout=LOOK_EVERY_S)
            except queue.Empty:
                break
            if isinstance(news, float):
                self.loss, told = news, told + 1
                yield self.loss
        if updates is not None and not self._has_ended:
            self._has_ended = True
            self._thread.call(self._say_goodbye(updates))

    def collect(self) -> nn.Module:
        """A copy of the model with the current state of all layers, also of those that others hold, to test or save it;
        it takes the memory of the whole model.
        """
        self._begin()
        model, links = self._curriculum.copied()
        self._thread.call(self._node.collect(links))
        return model

    def close(self) -> None:
        """Stays while other nodes of the island still ask for this node's layers."""
        if self._is_at_work and self._has_ended:
            self._thread.call(self._linger())

    # For checkpoints ---

    def save(self) -> Saved:
        packed = self._thread.call(self._pack())
        return {"layers": np.frombuffer(packed, dtype=np.uint8), "steps": note(self.steps)}

    def load(self, saved: Saved) -> None:
        if self._is_at_work:
            raise AtollError("run.resume: call it before training begins")
        self._node.store.shelve(saved["layers"].tobytes())
        self._node.updates = int(read_note(saved["steps"]))

    async def _pack(self) -> bytes:
        return await self._node.world.aside(self._node.store.pack)

    # In the world's thread ---

    def _begin(self) -> None:
        if not self._is_at_work:
            self._is_at_work = True
            self._thread.soon(lambda: self._thread.spawn(self._work()))
        self._thread.soon(self._wake)

    def _may_begin(self) -> bool:
        """Whether another batch is needed for the requested updates."""
        stage = self._node.stage
        under_way = math.ceil(len(stage.held) / self._pieces) if stage else 0
        return self._most is None or self.steps + under_way < self._most

    def _wake(self) -> None:
        if self._node.pipeline:
            self._node.pipeline.wake()

    async def _work(self) -> None:
        world = self._node.world
        if world.name == self._thread.world.names[0] or world.is_late:
            world.record(self._started)
        async with at_work(self._node) as working, asyncio.TaskGroup() as group:
            listening = group.create_task(hear(self._hall, "finished", self._hear_goodbye))
            await working.until(None)
            listening.cancel()

    def _give(self, inputs: Tensor, targets: Tensor) -> None:
        self._curriculum.give(inputs, targets)
        self._wake()

    @property
    def _hall(self) -> Scoped:
        return Scoped(self._node.world, "stages")

    def _hear_goodbye(self, message: Message) -> None:
        updates = int.from_bytes(message.head, "little")
        if message.sender in self._node.standing.order:
            self._curriculum.news.put(updates)

    async def _linger(self) -> None:
        node = self._node
        since, others = node.world.now, [each for each in node.standing.order if each != node.world.name]
        while any(node.world.peer(each).reachable for each in others) and node.world.now < since + LONGEST_S:
            if not node.store.giving and node.world.now > max(since, node.store.asked_s) + GOODBYE_S:
                return
            await node.world.sleep(0.1)

    async def _say_goodbye(self, updates: int) -> None:
        """Tells the other nodes of the island that this one is done: an island ends together."""
        name = self._node.world.name
        others = [each for each in self._node.standing.order if each != name]
        sending = [
            asyncio.ensure_future(
                self._hall.peer(each).send("finished", updates.to_bytes(8, "little"), lane=Lane.CONTROL)
            )
            for each in others
        ]
        if sending:
            await asyncio.wait(sending, timeout=GOODBYE_S)


def _pair(batch: Any, what: str) -> Batch:
    if isinstance(batch, tuple | list) and len(batch) == 2 and all(isinstance(each, Tensor) for each in batch):
        return batch[0], batch[1]
    kind = f"{type(batch).__name__} of {len(batch)}" if isinstance(batch, tuple | list) else type(batch).__name__
    raise TaskError(f"run.wrap_stages: {what}: expected two tensors, inputs and targets, not a {kind}")


def _again_and_again(data: Iterable[Batch]) -> Iterator[Batch]:
    while True:
        empty = True
        for batch in data:
            empty = False
            yield batch
        if empty:
            raise TaskError("run.wrap_stages: train: there is no data")


def _exam(test: Batch, measure: Loss, *, rising: bool) -> Exam:
    inputs, targets = _pair(test, "test")

    def measured(outputs: Tensor, rows: slice) -> float:
        with torch.inference_mode():
            return float(measure(outputs, targets[rows]).double().mean()) * len(outputs)

    return Exam(inputs=inputs, measured=measured, every=TEST_EVERY, rising=rising)

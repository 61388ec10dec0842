"""The data, model and loss that islands train with, from a task or from a user's own script."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from atoll.islands import Given, Source, chain
from atoll.seeds import derive
from atoll.state import Saved
from atoll.training.batches import Batches
from atoll.training.shares import Parts
from atoll.training.task import Task

__all__ = ["Curriculum", "Exam", "TaskCurriculum"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Exam:
    """A test of the model."""

    inputs: Tensor
    """Inputs of the test examples."""
    measured: Callable[[Tensor, slice], float]
    """The sum of the measure over some outputs, given their rows among the test examples."""
    every: int
    """Updates between two tests."""
    rising: bool


class Curriculum(Protocol):
    """What an island trains: its model, examples, loss and optimiser."""

    @property
    def shards(self) -> int:
        """How many parts the examples are divided into."""

    @property
    def alike(self) -> bool:
        """Whether all nodes build the same model; otherwise all begin with the first node's."""

    @property
    def exam(self) -> Exam | None: ...

    def build(self) -> nn.Sequential:
        """The initial model."""

    def optimizer(self, parameters: Sequence[nn.Parameter]) -> Optimizer | None:
        """The optimiser of a layer; `None` if the layer has nothing to train."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of a batch."""

    def source(self, shard: int, scope: str) -> Source:
        """The source of batches for an island that trains on one part of the examples."""

    def learned(self, updates: int, loss: float) -> None:
        """Called after every update."""

    def save(self) -> Saved:
        """The position of the source."""

    def load(self, saved: Saved) -> None: ...


class TaskCurriculum:
    """The curriculum of a task.

    Args:
        task: the task.
        parts: the parts of its examples.
        seed: the seed of the run; all islands begin with the same model.
    """

    alike = True

    def __init__(self, task: Task, parts: Parts, *, seed: int) -> None:
        self._task = task
        self._parts = parts
        self._seed = seed
        self._batches: Batches | None = None

    @property
    def shards(self) -> int:
        return self._parts.count

    @property
    def exam(self) -> Exam:
        task = self._task
        return Exam(inputs=task.test.inputs, measured=task.measured, every=task.test_every, rising=task.rising)

    def build(self) -> nn.Sequential:
        task = self._task
        example = task.train.inputs[: task.batch]
        with torch.random.fork_rng(devices=[]):
            torch.random.manual_seed(derive(self._seed, "model") % 2**63)
            return chain((task.chain or task.model)().to(example.device), example)

    @property
    def size(self) -> int:
        """How many parameters the model has."""
        return sum(each.numel() for each in self.build().parameters())

    def optimizer(self, parameters: Sequence[nn.Parameter]) -> Optimizer:
        return self._task.optimizer(parameters)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self._task.loss(outputs, targets)

    def source(self, shard: int, scope: str) -> Source:
        self._batches = batches = self._parts.batches(shard, derive(self._seed, "batches", scope))
        examples, used = self._task.train, self._parts.used

        def take() -> Given:
            batch = batches.take()
            np.add.at(used, batch.numpy(), 1)
            return Given(examples.inputs[batch], examples.targets[batch])

        return take

    def learned(self, updates: int, loss: float) -> None:
        """Does nothing: the trace has it all."""

    def save(self) -> Saved:
        return self._batches.save() if self._batches else {}

    def load(self, saved: Saved) -> None:
        if self._batches and saved:
            self._batches.load(saved)

"""A node's own model: it is trained and tested, and strategies read and change it at step boundaries."""

import math
from collections import deque
from collections.abc import Callable, Iterable

import numpy as np
import safetensors
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import nn
from torch.optim import Optimizer

from atoll.errors import ExamplesRefused
from atoll.seeds import derive
from atoll.state import Saved, section, under
from atoll.strategies import Work
from atoll.trace import EpochEnded, finite_measure
from atoll.training.batches import Batches, Epoch
from atoll.training.damage import Damage
from atoll.training.own import OwnReplica
from atoll.training.parameters import Parameters
from atoll.training.shards import Indices
from atoll.training.task import Examples, Task
from atoll.vectors import Vector
from atoll.world.base import World

__all__ = ["TrainedReplica"]

LOSSES = 10
"""The number of batches that a node's own loss is averaged over."""


class TrainedReplica(OwnReplica):
    """One node's model, optimiser and data.

    Args:
        world: the node's world.
        members: all nodes of the run.
        task: the task.
        shard: this node's examples.
        pieces: into how many pieces, one after the other, they are divided.
        seed: the seed of the run; all nodes begin with the same model.
        optimizer: makes the inner optimiser.
        tester: tests a model.
        damage: the faults of the machine.
        used: counts how often each example of the task was used.
    """

    def __init__(
        self,
        world: World,
        members: tuple[str, ...],
        task: Task,
        shard: Indices,
        *,
        seed: int,
        optimizer: Callable[[Iterable[nn.Parameter]], Optimizer],
        tester: Callable[[nn.Module, Vector], float],
        pieces: int = 1,
        damage: Damage | None = None,
        used: NDArray[np.int64] | None = None,
    ) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.random.manual_seed(derive(seed, "model") % 2**63)
            model = task.model().to(task.train.inputs.device)
        self.optimizer = optimizer(model.parameters())
        super().__init__(world, members, model, [self.optimizer])
        self._index = Parameters(model)
        self._task = task
        self._tester = tester
        self._damage = damage
        self._used = used
        self._batches = Batches(
            shard, task.batch, derive(seed, "batches", world.name), pieces=pieces, on_epoch=self._epoch_is_done
        )
        self._batch = torch.zeros(0, dtype=torch.int64)
        self._borrowed: list[Examples] = []
        self._losses: deque[torch.Tensor] = deque(maxlen=LOSSES)

    @property
    def _parameters(self) -> Parameters:
        return self._index

    # For training ---

    def compute_gradient(self) -> None:
        """Forward and backward on the next batch."""
        self._batch = self._batches.take(self.batch_factor)
        if self._used is not None:
            np.add.at(self._used, self._batch.numpy(), 1)
        inputs, targets = self._task.train.inputs[self._batch], self._task.train.targets[self._batch]
        if self._borrowed:
            inputs = torch.cat([inputs, *(each.inputs for each in self._borrowed)])
            targets = torch.cat([targets, *(each.targets for each in self._borrowed)])
            self._borrowed.clear()
        self.optimizer.zero_grad()
        loss = self._task.loss(self.model(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        self._losses.append(loss.detach())
        self.work[self.rank] += len(self._batch)

    def update(self) -> None:
        """The optimiser's step."""
        wrong = self._damage.now(self.world.now) if self._damage else []
        before = self._parameters.read() if wrong else None
        self.optimizer.step()
        if self._damage and before is not None:
            self._parameters.write(self._damage(wrong, before, self._parameters.read()))
        self.steps += 1

    def test(self) -> float:
        """The measure of the current model; `nan` becomes the worst value."""
        measure = self._tester(self.model, torch.cat([self._parameters.read(), self._parameters.read_buffers()]))
        return finite_measure(measure, rising=self._task.rising)

    # For strategies ---

    def lend(self, share: float) -> bytes:
        rows = self._batch[: math.ceil(share * len(self._batch))]
        train = self._task.train
        inputs, targets = train.inputs[rows].cpu(), train.targets[rows].cpu()
        if inputs.is_floating_point():
            inputs = inputs.half()
        return safetensors.torch.save({"inputs": inputs.contiguous(), "targets": targets.contiguous()})

    def borrow(self, examples: bytes) -> None:
        train = self._task.train
        try:
            found = safetensors.torch.load(examples)  # safetensors: no code can come with it
            inputs, targets = found["inputs"].to(train.inputs), found["targets"].to(train.targets)
        except (safetensors.SafetensorError, KeyError, ValueError) as error:
            raise ExamplesRefused(f"cannot be read ({error})") from None
        if (inputs.shape[1:], targets.shape[1:]) != (train.inputs.shape[1:], train.targets.shape[1:]):
            raise ExamplesRefused(f"inputs of {tuple(inputs.shape[1:])}, targets of {tuple(targets.shape[1:])}")
        if len(inputs) != len(targets) or not torch.isfinite(inputs).all():
            raise ExamplesRefused("inputs and targets that do not go together, or are not finite")
        if len(targets) and not train.targets.min() <= targets.min() <= targets.max() <= train.targets.max():
            raise ExamplesRefused("targets beyond those that this node knows")
        self._borrowed.append(Examples(inputs, targets))

    @property
    def cost(self) -> float:
        """The cost of the next gradient, in steps."""
        return max(1.0, self.batch_factor)

    @property
    def loss(self) -> float:
        return float(torch.stack(list(self._losses)).mean()) if self._losses else math.nan

    def take_over(self, work: Work, memory: Saved, steps: int) -> None:
        done = int(work[self.rank] - self.work[self.rank])
        if done > 0:  # it was in the run before, and resumes at its position in the data
            self._batches.skip(done)
        super().take_over(work, memory, steps)

    # Checkpoints ---

    def save(self) -> Saved:
        losses = np.array([float(each) for each in self._losses], dtype=np.float32)
        return {**super().save(), "losses": losses, **under("batches", self._batches.save())}

    def load(self, saved: Saved) -> None:
        super().load(saved)
        self._losses.extend(torch.from_numpy(saved["losses"]))
        self._batches.load(section("batches", saved))

    def _epoch_is_done(self, epoch: Epoch) -> None:
        world = self.world
        world.record(
            EpochEnded(at=world.now, node=world.name, epoch=epoch.number, examples=epoch.examples, of=epoch.of)
        )

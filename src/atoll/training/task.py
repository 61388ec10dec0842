"""A task: model, data, loss, measure and target.

Built-in ones are in `atoll.training.tasks`; a user's own is any `Task`, or a function without arguments that returns
one, named as `module:object` (docs/tasks.md).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

__all__ = ["Examples", "Task", "accuracy"]


@dataclass(frozen=True, eq=False, slots=True)
class Examples:
    """Inputs and targets, one row an example."""

    inputs: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.inputs)

    def to(self, device: str) -> "Examples":
        return Examples(self.inputs.to(device), self.targets.to(device))


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """For each example, whether the likeliest class is the right one."""
    return (outputs.argmax(-1) == targets).float()


@dataclass(frozen=True, eq=False, kw_only=True)
class Task:
    """What a run trains: model, data, loss, measure and target.

    Attributes:
        name: its name.
        model: makes the model; called once for each node, with the same random state, so that all begin alike.
        chain: makes the model for islands, if the one of `model` cannot be cut into stages.
        optimizer: makes the inner optimiser for some parameters.
        ideal_optimizer: the same with the learning rate that is best for the ideal (gradients averaged every step).
        loss: the mean loss of a batch.
        measure: one number for each example, whose mean is compared with the target.
        rising: whether the measure rises towards the target (accuracy) or falls (loss).
        target: the measure to reach.
        batch: examples in a step.
        train: the training examples, divided among the nodes.
        test: the test examples.
        quick: how many of the test examples are enough while the target is far away.
        final: the examples of a final test at the end of a run, if that is larger than `test`.
        labels: the labels by which shards divide examples; default: the targets.
        test_every: steps after which a node tests its model, merged or not.
    """

    name: str
    model: Callable[[], nn.Module]
    chain: Callable[[], nn.Module] | None = None
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer]
    ideal_optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] | None = None
    loss: Callable[[Tensor, Tensor], Tensor] = field(default=nn.functional.cross_entropy)
    measure: Callable[[Tensor, Tensor], Tensor] = accuracy
    rising: bool = True
    target: float
    batch: int
    train: Examples
    test: Examples
    quick: int | None = None
    final: Examples | None = None
    labels: Tensor | None = None
    test_every: int = 10

    def to(self, device: str) -> "Task":
        """The same with its examples on a device; labels stay on theirs."""
        labels = self.train.targets if self.labels is None else self.labels
        final = self.final and self.final.to(device)
        return replace(self, train=self.train.to(device), test=self.test.to(device), final=final, labels=labels)

    def reached(self, measure: float) -> bool:
        return measure >= self.target if self.rising else measure <= self.target

    def measured(self, outputs: Tensor, rows: slice) -> float:
        """The sum of the measure over outputs for some of the test examples."""
        return float(self.measure(outputs, self.test.targets[rows]).double().sum())

    def test_model(self, model: nn.Module) -> float:
        """The mean measure on the test examples, or only on the quick ones if the target is far away."""
        count = len(self.test)
        if self.quick is not None and self.quick < count:
            quick = self._measure(model, self.test, 0, self.quick)
            if abs(quick / self.quick - self.target) > _FAR and not self.reached(quick / self.quick):
                return quick / self.quick
            return (quick + self._measure(model, self.test, self.quick, count)) / count
        return self._measure(model, self.test, 0, count) / count

    def test_finally(self, model: nn.Module) -> float | None:
        """The mean measure on the examples kept for the end, if there are any."""
        return self._measure(model, self.final, 0, len(self.final)) / len(self.final) if self.final else None

    def _measure(self, model: nn.Module, examples: Examples, start: int, stop: int) -> float:
        was_training = model.training
        model.eval()
        total = 0.0
        with torch.inference_mode():
            size = _TEST_BATCH if examples.inputs.device.type == "cpu" else stop - start
            for first in range(start, stop, size):
                piece = slice(first, min(first + size, stop))
                measured = self.measure(model(examples.inputs[piece]), examples.targets[piece])
                total += float(measured.double().sum())
        model.train(was_training)
        return total


_TEST_BATCH = 100  # larger ones do not fit the caches
_FAR = 0.05

"""Whether a task can be trained: checked once when it is loaded, before any node or process begins.

Otherwise a mistake in a task would show as a run that never reaches its target, or as the same traceback from many
processes.
"""

import math
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

from atoll.errors import TaskError
from atoll.training.task import Examples, Task, accuracy

__all__ = ["check_task"]

T = TypeVar("T")
TRIED = 8
"""The size of the batch that shows whether model, loss and measure fit the data."""
IGNORED = -100
"""The target that cross-entropy leaves out."""


def check_task(task: Task) -> None:
    """Raises if a task cannot be trained; the error says what is wrong and what to do.

    Raises:
        TaskError: the first problem found.
    """
    _check_numbers(task)
    _check_examples(task, "train", task.train)
    _check_examples(task, "test", task.test)
    if task.final is not None:
        _check_examples(task, "final", task.final)
    _check_labels(task)
    _try(task)


def _refuse(task: Task, what: str) -> TaskError:
    return TaskError(f"task {task.name!r}: {what}")


def _check_numbers(task: Task) -> None:
    if not math.isfinite(task.target):
        raise _refuse(task, f"target: expected a finite number, not {task.target}")
    if task.measure is accuracy:
        if not task.rising:
            raise _refuse(task, "rising=False, but its measure is accuracy, which rises: give measure= as well")
        if not 0 < task.target <= 1:
            share = f": write {task.target / 100:g}" if 1 < task.target <= 100 else ""
            raise _refuse(task, f"target: expected an accuracy above 0 and at most 1, not {task.target:g}{share}")
    for name, value in {"batch": task.batch, "test_every": task.test_every, "quick": task.quick}.items():
        if value is not None and (not isinstance(value, int) or value < 1):
            raise _refuse(task, f"{name}: expected a whole number of at least 1, not {value!r}")


def _check_examples(task: Task, which: str, examples: Examples) -> None:
    for name, values in (("inputs", examples.inputs), ("targets", examples.targets)):
        if not isinstance(values, Tensor):
            raise _refuse(task, f"{which} {name}: expected a torch tensor, not {type(values).__name__}")
        if values.ndim == 0:
            raise _refuse(task, f"{which} {name}: expected one row for each example, not a single number")
    inputs, targets = len(examples.inputs), len(examples.targets)
    if inputs != targets:
        raise _refuse(task, f"{which} has {inputs} inputs and {targets} targets: expected one target for each input")
    if inputs == 0:
        raise _refuse(task, f"{which} has no examples: expected at least one")
    for name, values in (("inputs", examples.inputs), ("targets", examples.targets)):
        wrong = ~torch.isfinite(values)
        if wrong.any():
            row = int(wrong.nonzero()[0, 0])
            told = f"{which} {name}: {int(wrong.sum())} values are NaN or infinite, the first in row {row}"
            raise _refuse(task, f"{told}: remove those examples, or replace the values")


def _check_labels(task: Task) -> None:
    """Checks the labels by which examples are divided."""
    labels = task.labels
    if labels is None:
        if task.train.targets.ndim != 1:
            shape = tuple(task.train.targets.shape)
            raise _refuse(task, f"targets of shape {shape} are no classes: give labels=, one for each train example")
        return
    if labels.ndim != 1 or len(labels) != len(task.train):
        shape = tuple(labels.shape)
        raise _refuse(
            task, f"labels: expected one for each of {len(task.train)} train examples, not a shape of {shape}"
        )


def _try(task: Task) -> None:
    """Tries model, optimiser, loss and measure with a few examples."""
    with torch.random.fork_rng(devices=[]):
        model = _do(task, "model()", task.model)
        if not isinstance(model, nn.Module):
            raise _refuse(task, f"model: expected a function that returns a torch module, not {type(model).__name__}")
        model = model.to(task.train.inputs.device)
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise _refuse(task, "model: it has no parameters to train")
        _do(task, "optimizer()", lambda: task.optimizer(model.parameters()))
        _try_loss(task, model)
        for which, examples in (("test", task.test), ("final", task.final)):
            if examples is not None:
                _try_measure(task, model, which, examples)


def _try_loss(task: Task, model: nn.Module) -> None:
    count = min(TRIED, task.batch, len(task.train))
    inputs, targets = task.train.inputs[:count], task.train.targets[:count]
    model.train()
    outputs = _do(task, f"the model, given train inputs of shape {tuple(inputs.shape)},", lambda: model(inputs))
    shapes = f"outputs of {_shape(outputs)} and targets of {_shape(targets)}"
    if isinstance(outputs, Tensor):
        _check_classes(task, outputs)
    loss = _do(task, f"loss, given {shapes},", lambda: task.loss(outputs, targets))
    if not isinstance(loss, Tensor) or loss.ndim != 0:
        raise _refuse(task, f"loss: expected one number, the mean over a batch, not {_shape(loss)}")
    if not loss.requires_grad:
        raise _refuse(task, "loss: it has no gradient: expected a function of the model's outputs")
    if not torch.isfinite(loss):
        raise _refuse(task, f"loss: it is {float(loss.detach())} before training: check the data and the initial model")


def _check_classes(task: Task, outputs: Tensor) -> None:
    """Checks that there is an output for every class, if the task is classification."""
    if task.loss is not nn.functional.cross_entropy or outputs.ndim < 2:
        return
    classes = outputs.shape[1]
    for which, examples in (("train", task.train), ("test", task.test), ("final", task.final)):
        if examples is None or examples.targets.is_floating_point():
            continue
        known = examples.targets[examples.targets != IGNORED]
        if len(known) and not 0 <= int(known.min()) <= int(known.max()) < classes:
            told = f"{which} targets are from {int(known.min())} to {int(known.max())}"
            raise _refuse(task, f"{told}, but the model has {classes} outputs: expected classes 0 to {classes - 1}")


def _try_measure(task: Task, model: nn.Module, which: str, examples: Examples) -> None:
    count = min(TRIED, len(examples))
    inputs, targets = examples.inputs[:count], examples.targets[:count]
    model.eval()
    with torch.inference_mode():
        outputs = _do(task, f"the model, given {which} inputs of shape {tuple(inputs.shape)},", lambda: model(inputs))
        shapes = f"outputs of {_shape(outputs)} and targets of {_shape(targets)}"
        measured = _do(task, f"measure, given {shapes},", lambda: task.measure(outputs, targets))
    if not isinstance(measured, Tensor) or measured.shape != (count,):
        raise _refuse(
            task, f"measure: expected one number for each of {count} {which} examples, not {_shape(measured)}"
        )


def _do(task: Task, what: str, do: Callable[[], T]) -> T:
    """Calls the user's code; whatever it raises is an error of the task."""
    try:
        return do()
    except Exception as error:
        raise _refuse(task, f"{what} fails: {type(error).__name__}: {error}") from error


def _shape(value: object) -> str:
    return f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__

"""`mnist`: the handwritten digits, from IDX files that the user has, with the network of odticn (693,962 parameters).

`mnist-plain` is the same as in odticn: pixels from 0 to 1, SGD 0.1 without momentum, 90 %.
"""

import gzip
import math
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.optim import SGD

from atoll.errors import TaskError
from atoll.training.task import Examples, Task
from atoll.training.tasks.registry import built_in

__all__ = ["mnist", "mnist_plain", "read_idx"]

_Make = Callable[[Iterable[nn.Parameter]], SGD]
FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
ON_THE_WAY = 2000
"""Test examples that are used during training."""


def _model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(32 * 13 * 13, 128),
        nn.Dropout(0.5),
        nn.Linear(128, 10),
    )


def _sgd(parameters: Iterable[nn.Parameter], *, lr: float, momentum: float) -> SGD:
    return SGD(parameters, lr=lr, momentum=momentum)


def read_idx(path: Path) -> NDArray[np.uint8]:
    """An IDX file of bytes, plain or gzipped (with or without .gz in its name)."""
    found = next((each for each in (path, path.with_name(path.name + ".gz")) if each.is_file()), None)
    if found is None:
        raise TaskError(f"{path.parent}: expected {path.name} or {path.name}.gz in it")
    try:
        raw = found.read_bytes()
        raw = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    except (OSError, EOFError) as error:
        raise TaskError(f"{found}: {error}") from None
    if len(raw) < 4 or raw[:3] != b"\x00\x00\x08":
        raise TaskError(f"{found}: expected an IDX file of unsigned bytes")
    shape = tuple(int.from_bytes(raw[4 + 4 * n : 8 + 4 * n]) for n in range(raw[3]))
    values = np.frombuffer(raw, dtype=np.uint8, offset=4 + 4 * len(shape))
    if len(values) != math.prod(shape):
        raise TaskError(f"{found}: expected {math.prod(shape)} values, found {len(values)}")
    return values.reshape(shape)


def _examples(images: NDArray[np.uint8], labels: NDArray[np.uint8], *, normalised: bool) -> Examples:
    inputs = torch.tensor(images, dtype=torch.float32)[:, None] / 255
    if normalised:
        inputs = (inputs - 0.1307) / 0.3081
    return Examples(inputs, torch.tensor(labels, dtype=torch.int64))


def _task(data: Path, *, name: str, target: float, optimizer: _Make, ideal_optimizer: _Make, normalised: bool) -> Task:
    if not data.is_dir():
        raise TaskError(f"task 'mnist': {data} is not a folder; expected one with {FILES[0]} and the like")
    images, labels, test_images, test_labels = (read_idx(data / each) for each in FILES)
    if images.shape[1:] != (28, 28) or len(images) != len(labels) or len(test_images) != len(test_labels):
        raise TaskError(f"task 'mnist': {data}: expected images of 28 × 28 and a label for each")
    count = min(ON_THE_WAY, len(test_labels))
    chosen = np.sort(np.random.default_rng(0).permutation(len(test_labels))[:count])
    return Task(
        name=name,
        model=_model,
        optimizer=optimizer,
        ideal_optimizer=ideal_optimizer,
        target=target,
        batch=64,
        train=_examples(images, labels, normalised=normalised),
        test=_examples(test_images[chosen], test_labels[chosen], normalised=normalised),
        quick=500,
        final=_examples(test_images, test_labels, normalised=normalised),
    )


@built_in("mnist", needs_data=True)
def mnist(data: Path) -> Task:
    """The task `mnist`."""
    make = partial(_sgd, momentum=0.9)
    return _task(
        data,
        name="mnist",
        target=0.975,
        optimizer=partial(make, lr=0.05),
        ideal_optimizer=partial(make, lr=0.08),
        normalised=True,
    )


@built_in("mnist-plain", needs_data=True)
def mnist_plain(data: Path) -> Task:
    """The task as in odticn."""
    make = partial(_sgd, momentum=0.0)
    return _task(
        data,
        name="mnist-plain",
        target=0.9,
        optimizer=partial(make, lr=0.1),
        ideal_optimizer=partial(make, lr=0.2),
        normalised=False,
    )

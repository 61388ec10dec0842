"""`digits`: 1,797 small digits that come with scikit-learn, an MLP of 4,810 parameters.  Needs no data and trains
fast.
"""

from collections.abc import Iterable
from functools import partial

import numpy as np
import torch
from torch import nn
from torch.optim import SGD

from atoll.errors import needs_extra
from atoll.training.task import Examples, Task
from atoll.training.tasks.registry import built_in

__all__ = ["digits"]

HELD_OUT = 360


def _model() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def _sgd(parameters: Iterable[nn.Parameter], *, lr: float) -> SGD:
    return SGD(parameters, lr=lr, momentum=0.9)


@built_in("digits")
def digits() -> Task:
    """The task `digits`."""
    with needs_extra("tasks", "the task 'digits'"):
        from sklearn.datasets import load_digits  # noqa: PLC0415 - a second to load, and scripts do not need it

    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    inputs = torch.tensor(data.data[order] / 16, dtype=torch.float32)
    targets = torch.tensor(data.target[order])
    return Task(
        name="digits",
        model=_model,
        optimizer=partial(_sgd, lr=0.05),
        ideal_optimizer=partial(_sgd, lr=0.4),  # benchmarks/tune.py digits
        target=0.95,
        batch=32,
        train=Examples(inputs[HELD_OUT:], targets[HELD_OUT:]),
        test=Examples(inputs[:HELD_OUT], targets[:HELD_OUT]),
    )

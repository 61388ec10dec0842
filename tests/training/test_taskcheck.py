"""A task that cannot be learned is refused when it is loaded."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from atoll.compare import simulate
from atoll.errors import TaskError
from atoll.training import Examples, Task, load_task
from atoll.training.taskcheck import check_task

INPUTS = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
TARGETS = torch.arange(20) % 2
AN_ARRAY: Any = INPUTS.numpy()
WITH_NAN = INPUTS.clone()
WITH_NAN[7, 1] = torch.nan


def made(**changes: Any) -> Task:
    whole = Task(
        name="mine",
        model=lambda: nn.Linear(3, 2),
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
        target=0.9,
        batch=4,
        train=Examples(INPUTS, TARGETS),
        test=Examples(INPUTS, TARGETS),
    )
    return replace(whole, **changes)


def test_good_tasks_are_taken() -> None:
    check_task(load_task("digits"))
    check_task(made())
    check_task(made(final=Examples(INPUTS, TARGETS), quick=5, labels=TARGETS))
    regression = {"loss": nn.functional.mse_loss, "measure": lambda o, t: (o - t).square().mean(1), "rising": False}
    values = Examples(INPUTS, INPUTS[:, :2])
    check_task(made(**regression, train=values, test=values, labels=TARGETS, target=0.1))


def test_looking_changes_no_random_numbers() -> None:
    state = torch.random.get_rng_state()
    check_task(made())
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"train": Examples(INPUTS, TARGETS[:19])}, "train has 20 inputs and 19 targets: expected one target for each"),
        ({"test": Examples(INPUTS[:5], TARGETS)}, "test has 5 inputs and 20 targets"),
        ({"final": Examples(INPUTS[:5], TARGETS)}, "final has 5 inputs and 20 targets"),
        ({"test": Examples(INPUTS[:0], TARGETS[:0])}, "test has no examples: expected at least one"),
        ({"train": Examples(INPUTS[:0], TARGETS[:0])}, "train has no examples"),
        ({"train": Examples(WITH_NAN, TARGETS)}, "train inputs: 1 values are NaN or infinite, the first in row 7"),
        ({"test": Examples(INPUTS, TARGETS.float() / 0)}, "test targets: 20 values are NaN or infinite"),
        ({"train": Examples(AN_ARRAY, TARGETS)}, "train inputs: expected a torch tensor, not ndarray"),
        ({"target": 95}, "target: expected an accuracy above 0 and at most 1, not 95: write 0.95"),
        ({"target": 0.0}, "expected an accuracy above 0 and at most 1, not 0"),
        ({"target": float("nan")}, "target: expected a finite number, not nan"),
        ({"rising": False}, "its measure is accuracy, which rises"),
        ({"batch": 0}, "batch: expected a whole number of at least 1, not 0"),
        ({"labels": TARGETS[:3]}, "labels: expected one for each of 20 train examples"),
        ({"train": Examples(INPUTS, INPUTS)}, "are no classes: give labels="),
        ({"model": lambda: nn.Linear(4, 2)}, "the model, given train inputs of shape (4, 3), fails: RuntimeError"),
        ({"test": Examples(INPUTS[:, :2], TARGETS)}, "the model, given test inputs of shape (8, 2), fails"),
        ({"model": lambda: nn.Linear(3, 1)}, "train targets are from 0 to 1, but the model has 1 outputs"),
        ({"test": Examples(INPUTS, TARGETS + 5)}, "test targets are from 5 to 6, but the model has 2 outputs"),
        ({"train": Examples(INPUTS, TARGETS - 1)}, "train targets are from -1 to 0"),
        ({"model": lambda: 1 / 0}, "model() fails: ZeroDivisionError"),
        ({"model": nn.ReLU}, "it has no parameters to train"),
        ({"model": lambda: 3}, "model: expected a function that returns a torch module, not int"),
        ({"optimizer": lambda p: torch.optim.SGD(p, lr=-1.0)}, "optimizer() fails: ValueError"),
        ({"loss": lambda o, t: nn.functional.cross_entropy(o, t, reduction="none")}, "loss: expected one number"),
        ({"loss": lambda o, t: (o.sum() + t.sum()) * torch.nan}, "loss: it is nan before training"),
        ({"loss": lambda _, t: t.float().mean()}, "loss: it has no gradient"),
        ({"loss": lambda o, t: nn.functional.mse_loss(o, t[:, 9])}, "loss, given outputs of shape (4, 2)"),
        ({"measure": lambda o, t: (o.argmax(-1) == t).float().mean()}, "measure: expected one number for each of 8"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(TaskError) as refused:
        check_task(made(**changes))
    assert str(refused.value).startswith("task 'mine': ")
    assert told in str(refused.value)


def test_it_is_refused_when_it_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_bad_task.py").write_text(
        "from tests.training.test_taskcheck import made\nbad = made(target=95)\ndef broken():\n    return 1 / 0\n"
    )
    (tmp_path / "a_worse_task.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, told in {
        "a_bad_task:bad": "expected an accuracy",
        "a_bad_task:broken": r"broken\(\) fails: ZeroDivisionError",
        "a_worse_task:task": "a_worse_task fails: ZeroDivisionError",
    }.items():
        with pytest.raises(TaskError, match=told):
            load_task(name)
    sys.modules.pop("a_bad_task", None)


def test_it_is_refused_before_it_is_simulated() -> None:
    with pytest.raises(TaskError, match="expected an accuracy"):
        simulate(made(target=95))

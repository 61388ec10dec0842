import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from atoll.errors import TaskError
from atoll.training import Examples, Task, load_task


def constant(answer: float) -> nn.Module:
    model = nn.Linear(1, 2)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.copy_(torch.tensor([0.0, answer]))
    return model


def task(targets: list[int], quick: int | None = None, target: float = 0.9) -> Task:
    examples = Examples(torch.zeros(len(targets), 1), torch.tensor(targets))
    return Task(
        name="t",
        model=lambda: constant(1),
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
        target=target,
        batch=2,
        train=examples,
        test=examples,
        quick=quick,
    )


def test_measures_all_examples() -> None:
    assert task([1] * 150 + [0] * 50).test_model(constant(1)) == 0.75


def test_far_from_the_target_a_few_are_enough() -> None:
    made = task([0] * 90 + [1] * 10 + [1] * 300, quick=100)
    assert made.test_model(constant(1)) == 0.1
    near = task([0] * 10 + [1] * 90 + [1] * 300, quick=100)
    assert near.test_model(constant(1)) == 390 / 400


def test_testing_leaves_the_model_in_training() -> None:
    model = constant(1)
    model.train()
    task([1, 1]).test_model(model)
    assert model.training


def test_falling_measures() -> None:
    made = Task(**{**task([1, 1]).__dict__, "rising": False, "target": 0.5})
    assert made.reached(0.4)
    assert not made.reached(0.6)


def test_a_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_own_task.py").write_text(
        "from tests.training.test_task import task as make\n"
        "task = make([1, 0])\ndef build():\n    return task\nnothing = 3\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert load_task("my_own_task:task").name == "t"
    assert load_task("my_own_task:build").name == "t"
    for name, message in {
        "my_own_task:tsk": "has no 'tsk'; did you mean 'task'?",
        "my_own_tsk:task": "cannot import 'my_own_tsk'",
        "my_own_task:nothing": "expected an atoll Task or a function that returns one, not int",
        "digist": "there is no task 'digist'; did you mean 'digits'?",
    }.items():
        with pytest.raises(TaskError) as refused:
            load_task(name)
        assert message in str(refused.value)
    sys.modules.pop("my_own_task", None)


def test_on_a_device_labels_stay_and_the_rest_moves() -> None:
    made = task([1, 0, 1])
    moved = Task(**{**made.__dict__, "final": made.test}).to("meta")
    assert moved.train.inputs.device.type == moved.test.targets.device.type == "meta"
    assert moved.final is not None
    assert moved.final.inputs.device.type == "meta"
    assert moved.labels is not None
    assert moved.labels.tolist() == [1, 0, 1]


def test_at_the_end_all_examples_count() -> None:
    made = task([1, 1, 1, 1])
    assert made.test_finally(constant(1)) is None
    final = Examples(torch.zeros(4, 1), torch.tensor([1, 1, 1, 0]))
    assert Task(**{**made.__dict__, "final": final}).test_finally(constant(1)) == 0.75

import numpy as np
import pytest
import torch
from torch import nn

from atoll.training import Task, load_task
from atoll.training.shares import Parts, Tester, data_used, examples_used, read_used

TASK = load_task("digits").to("cpu")


def test_what_was_used_travels_in_an_event() -> None:
    used = np.array([0, 3, 1, 0], dtype=np.int64)
    event = examples_used(used, 5.0, "n1")
    assert (event.at, event.node) == (5.0, "n1")
    assert read_used(event).tolist() == used.tolist()
    told = data_used(used, 5.0)
    assert (told.examples, told.used, told.least, told.mean, told.most) == (4, 2, 0, 1.0, 3)


@pytest.mark.parametrize("shards", ["iid", "dirichlet:0.3", "label"])
def test_every_example_is_dealt_once(shards: str) -> None:
    parts = Parts(TASK, ("a", "b", "c"), shards=shards, seed=1)
    assert parts.count == 3
    assert len(parts.used) == len(TASK.train.targets)
    taken: list[int] = []
    for place in range(3):
        shard = parts._shards[place]
        taken += shard.tolist()
    assert sorted(taken) == list(range(len(parts.used)))


def test_models_that_are_alike_are_tested_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tests: list[nn.Module] = []

    def count(_: Task, model: nn.Module) -> float:
        tests.append(model)
        return 0.5

    monkeypatch.setattr(Task, "test_model", count)
    tester, model = Tester(TASK), nn.Linear(2, 2)
    values = torch.cat([each.flatten() for each in model.parameters()]).detach()
    assert tester(model, values) == tester(model, values.clone()) == 0.5
    assert len(tests) == 1
    tester(model, values + 1)
    assert len(tests) == 2

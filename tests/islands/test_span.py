"""Ranges of layers: on their way, and as strategies see them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW

from atoll.errors import TaskError
from atoll.islands.span import Held, fill, layers_in, tensors_of
from atoll.training.optimizer_state import what_is_remembered
from tests.islands.test_layout import run


def test_layers_on_their_way() -> None:
    for make in (lambda values: SGD(values, lr=0.1, momentum=0.9), AdamW):
        modules = {3: nn.Linear(3, 2), 4: nn.BatchNorm1d(2)}
        one = {layer: Held(module, make(list(module.parameters())), 7) for layer, module in modules.items()}
        for _ in range(2):
            modules[4](modules[3](torch.randn(5, 3))).sum().backward()
            for held in one.values():
                assert held.optimizer is not None
                held.optimizer.step()
        others = {3: nn.Linear(3, 2), 4: nn.BatchNorm1d(2)}
        other = {layer: Held(module, make(list(module.parameters()))) for layer, module in others.items()}
        body = tensors_of(one)
        assert layers_in(body) == [3, 4]
        assert fill(other, body)
        for layer, held in one.items():
            assert other[layer].updates == 7
            for name, value in held.module.state_dict().items():
                assert torch.equal(value, other[layer].module.state_dict()[name])
            mine, yours = (what_is_remembered(each.optimizer) for each in (held, other[layer]) if each.optimizer)
            assert sorted(mine) == sorted(yours)
            assert all(np.array_equal(mine[key], yours[key]) for key in mine)
        assert not fill(other, {})
        assert not fill({5: Held(nn.Linear(3, 2), None)}, body), "another layer"
        assert not fill({3: Held(nn.Linear(2, 3), None)}, body), "another shape"


def test_what_makes_no_sense_is_not_taken() -> None:
    module = nn.Linear(3, 2)
    optimizer = SGD(module.parameters(), lr=0.1, momentum=0.9)
    module(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    right = tensors_of({0: Held(module, optimizer)})
    before = module.weight.detach().clone()
    for name, wrong in {
        "0/updates": torch.zeros(2),
        "0/model/weight": torch.full((2, 3), float("nan")),
        "0/optimizer/0/momentum_buffer": torch.zeros(7, 7),
        "0/optimizer/1/momentum_buffer": torch.full((2,), float("inf")),
        "0/optimizer/9/momentum_buffer": torch.zeros(2),
        "0/optimizer/x/momentum_buffer": torch.zeros(2),
    }.items():
        assert not fill({0: Held(module, optimizer)}, {**right, name: wrong}), name
    assert torch.equal(module.weight, before)


def test_examples_stay_at_home(tmp_path: Path) -> None:
    with pytest.raises((TaskError, BaseExceptionGroup)):
        run(tmp_path, "a+b/c+d", strategy="selsync:lenders=1,lend=0.5", limit_s=20.0)

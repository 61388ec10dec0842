"""Ranges of layers: on their way, and as strategies see them."""

from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn
from torch.optim import SGD, AdamW

from atoll.errors import TaskError
from atoll.train.memory import what_is_remembered
from atoll.train.span import fill, packed
from tests.train.test_islands import run


def test_layers_on_their_way() -> None:
    for make in (lambda values: SGD(values, lr=0.1, momentum=0.9), AdamW):
        modules = {3: nn.Linear(3, 2), 4: nn.BatchNorm1d(2)}
        one = {layer: (module, make(list(module.parameters()))) for layer, module in modules.items()}
        for _ in range(2):
            modules[4](modules[3](torch.randn(5, 3))).sum().backward()
            for _, optimizer in one.values():
                optimizer.step()
        others = {3: nn.Linear(3, 2), 4: nn.BatchNorm1d(2)}
        other = {layer: (module, make(list(module.parameters()))) for layer, module in others.items()}
        body = packed(one)
        assert fill(other, body)
        for layer, (module, optimizer) in one.items():
            for name, value in module.state_dict().items():
                assert torch.equal(value, other[layer][0].state_dict()[name])
            mine, yours = (what_is_remembered(each) for each in (optimizer, other[layer][1]))
            assert sorted(mine) == sorted(yours)
            assert all(np.array_equal(mine[key], yours[key]) for key in mine)
        assert not fill(other, b"nonsense")
        assert not fill({5: (nn.Linear(3, 2), None)}, body), "another layer"
        assert not fill({3: (nn.Linear(2, 3), None)}, body), "another shape"


def test_what_makes_no_sense_is_not_taken() -> None:
    module = nn.Linear(3, 2)
    optimizer = SGD(module.parameters(), lr=0.1, momentum=0.9)
    module(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    right = safetensors.torch.load(packed({0: (module, optimizer)}))
    before = module.weight.detach().clone()
    for name, wrong in {
        "0/model/weight": torch.full((2, 3), float("nan")),
        "0/optimizer/0/momentum_buffer": torch.zeros(7, 7),
        "0/optimizer/1/momentum_buffer": torch.full((2,), float("inf")),
        "0/optimizer/9/momentum_buffer": torch.zeros(2),
        "0/optimizer/x/momentum_buffer": torch.zeros(2),
    }.items():
        assert not fill({0: (module, optimizer)}, safetensors.torch.save({**right, name: wrong})), name
    assert torch.equal(module.weight, before)


def test_examples_stay_at_home(tmp_path: Path) -> None:
    with pytest.raises((TaskError, BaseExceptionGroup)):
        run(tmp_path, "a+b/c+d", strategy="selsync:lenders=1,lend=0.5", limit_s=20.0)

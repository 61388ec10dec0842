"""An island's model as a whole."""

import math

import pytest
import torch
from torch import nn

from atoll.islands.assembly import Assembly
from atoll.network import parse_network
from atoll.strategies import Quantity
from atoll.vectors import Vector
from atoll.world import Simulation


def test_stages_come_to_one_model() -> None:
    network = parse_network('[[node]]\ncount = 2\nstep_s = 1\n[[link]]\namong = "*"', name="two")
    worlds = Simulation(network, seed=0).worlds
    measures = iter([0.5, math.nan])

    def tester(model: nn.Module, values: Vector) -> float:
        assert len(values) == 6 * 4 + 4 + 4 * 3 + 3
        model.eval()
        return next(measures)

    whole = Assembly(("1", "0"), tester, rising=True)
    one, other = nn.Sequential(nn.Linear(6, 4)), nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 3))
    wholeness = []
    for name, layers in (("1", one), ("0", other)):
        whole.put(worlds[name], layers)
        wholeness.append(whole.is_whole)
    assert wholeness == [False, True]
    assert whole.sent_bytes == 0
    whole.model.eval()
    inputs = torch.randn(2, 6)
    assert torch.equal(whole.model(inputs), other(one(inputs)))
    one.train()
    other.train()
    assert whole.test() == pytest.approx(0.5)
    assert other.training
    assert other[0].training, "testing leaves it as it was"
    assert whole.test() == 0.0, "what is no number is the worst there is"
    whole.write(Quantity.PARAMETERS, torch.ones(43))
    assert (whole.read(Quantity.PARAMETERS) == 1).all()
    assert float(next(iter(one.parameters())).detach().mean()) == 1.0

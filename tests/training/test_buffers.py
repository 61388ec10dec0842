"""Models with batch norm learn with every recipe: statistics are means, and variances are never negative."""

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import nn

from atoll.config import RunConfig
from atoll.network import load_network
from atoll.runs.simulated import simulate_run
from atoll.strategies import RECIPES
from atoll.trace import Tested, read_trace
from atoll.training import load_task

LEAST: list[float] = []


class Watched(nn.BatchNorm1d):
    """Remembers the least variance that any test has met."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        if not self.training and self.running_var is not None:
            LEAST.append(float(self.running_var.min()))
        return super().forward(values)


def normed() -> nn.Module:
    return nn.Sequential(Watched(64), nn.Linear(64, 24), Watched(24), nn.ReLU(), nn.Linear(24, 10))


@pytest.mark.parametrize("recipe", sorted(RECIPES))
def test_batch_norm(recipe: str, tmp_path: Path) -> None:
    """Often enough, and with outer momentum, a Nesterov step on variances made them negative, and tests NaN."""
    every = {"diloco": ":every=2", "noloco": ":every=2", "sparseloco": ":every=2", "vrl": ":momentum=0.6"}
    spec = RunConfig(
        network=load_network("perfect:3"),
        task="digits",
        strategy=recipe + every.get(recipe, ""),
        shards="iid",
        limit_s=20,
        stops=False,
    )
    LEAST.clear()
    simulate_run(spec, tmp_path / "trace", task=dataclasses.replace(load_task("digits"), model=normed))
    measures = [event.measure for event in read_trace(tmp_path / "trace") if isinstance(event, Tested)]
    assert min(LEAST) >= 0
    assert measures[-1] > (0.5 if recipe == "none" else 0.75), measures

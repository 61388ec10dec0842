"""Tests through stages: what one process would have measured."""

import asyncio
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from atoll.islands import Prober, StageModel
from atoll.trace import Trace
from atoll.training.drive import Background
from atoll.world import Simulation
from atoll.world.sim.world import SimWorld
from tests.islands.test_pipeline import ENDS, NAMES, network, seats


def test_a_test_through_stages_is_what_one_process_measures(tmp_path: Path) -> None:
    torch.random.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    inputs, targets = torch.randn(250, 6), torch.randint(3, (250,))
    found: list[float] = []
    computed: list[float] = []

    def measure(outputs: Tensor, rows: slice) -> float:
        return float((outputs.argmax(1) == targets[rows]).sum())

    async def program(world: SimWorld) -> None:
        place = NAMES.index(world.name)
        stage = StageModel(model[ENDS[place] : ENDS[place + 1]], [])
        prober = Prober(world, seats((1, 1, 1))[place], stage, inputs=inputs, measure=measure, tested=found.append)
        async with asyncio.TaskGroup() as group:
            background = Background(group)
            prober.start(background)
            if place == 0:
                for _ in range(2):
                    await prober.begin()
                computed.append(world.now)
            await world.sleep(5.0)
            background.cancel()

    with Trace(tmp_path / "t.jsonl") as trace:
        Simulation(network(), seed=0, trace=trace).run(program, limit_s=100.0)
    assert model.training
    model.eval()
    with torch.inference_mode():
        expected = float((model(inputs).argmax(1) == targets).double().mean())
    assert found == [pytest.approx(expected)] * 2
    assert computed[0] < 0.1, "testing costs no declared time"

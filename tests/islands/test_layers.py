"""Layers: of a checkpoint if nobody has them, of the first node if models differ at first."""

import asyncio
from pathlib import Path

import pytest
import torch
from torch import nn

from atoll.errors import AtollError
from atoll.islands.curriculum import TaskCurriculum
from atoll.islands.layers import LayerStore
from atoll.islands.span import Held
from atoll.network import parse_network
from atoll.trace import Trace
from atoll.training.shares import Parts
from atoll.world import Simulation
from atoll.world.faults import parse_faults
from atoll.world.scope import Scoped
from atoll.world.sim.world import SimWorld
from tests.islands.test_layout import SIX, task


class Unlike(TaskCurriculum):
    """Every node's model begins as it likes."""

    alike = False

    def __init__(self, value: float) -> None:
        toy = task()
        super().__init__(toy, Parts(toy, ("a", "b"), shards="iid", seed=0), seed=0)
        self.value = value

    def build(self) -> nn.Sequential:
        built = super().build()
        with torch.no_grad():
            for each in built.parameters():
                each.fill_(self.value)
        return built


def test_layers_come_from_whoever_has_them(tmp_path: Path) -> None:
    found: dict[str, list[float]] = {}
    network = parse_network(SIX, name="six")
    values = {"a": 1.0, "b": 2.0}

    async def program(world: SimWorld) -> None:
        if world.name not in values:
            await world.sleep(50)
            return
        store = LayerStore(Scoped(world, "islands"), Unlike(values[world.name]))
        async with asyncio.TaskGroup() as group:
            store.start(group.create_task)  # type: ignore[arg-type]
            if world.name == "a":
                layers = store.build(range(2))  # 0 is in use, 2 is in a checkpoint, the rest is as it was at first
                with torch.no_grad():
                    for each in layers[0].module.parameters():
                        each.fill_(5.0)
                layers[0].updates = 9
                store.use(layers)
                kept = store.build([2])
                with torch.no_grad():
                    for each in kept[2].module.parameters():
                        each.fill_(7.0)
                other = LayerStore(Scoped(world, "islands"), Unlike(0.0))
                other.use(kept)
                store.shelve(other.pack())
                assert store.held == [0, 1]
                assert store.spare == {2: 0}
                await world.sleep(50)
            else:
                old = store.build([0])
                store.use(old)
                store.use({})
                assert store.spare == {0: 0}, "what it once had is no more what is used"
                got = await store.fetch([0, 2, 5], lambda _: ["c", "a"])
                assert got[0].updates == 9
                found["b"] = [float(next(iter(each.module.parameters())).detach().mean()) for each in got.values()]
                nobody = await store.fetch([0], lambda _: [])
                found["alone"] = [float(next(iter(nobody[0].module.parameters())).detach().mean())]
                like = {layer: Held(held.module, None) for layer, held in store.build([0, 2, 5]).items()}
                with pytest.raises(AtollError, match="5: no reachable node"):
                    await store.copy(like, lambda _: ["a"])
                await world.sleep(50)

    crash = """[[fault]]\nkind = "crash"\nnodes = ["c"]\nat = 0.0\n"""
    with Trace(tmp_path / "t.jsonl") as trace:
        Simulation(network, seed=0, trace=trace, faults=parse_faults(crash, network.node_names)).run(
            program, limit_s=40.0
        )
    assert found == {"b": [5.0, 7.0, 1.0], "alone": [2.0]}, "c cannot be reached, a has all of it"


def test_a_checkpoint_is_what_was_in_use() -> None:
    curriculum = Unlike(3.0)
    store = LayerStore(None, curriculum)  # type: ignore[arg-type]
    layers = store.build([0, 2])
    for held in layers.values():
        held.updates = 4
    store.use(layers)
    store.use(store.build([5]))
    assert store.held == [5]
    assert store.spare == {0: 4, 2: 4}, "what it had before it can still give"
    again = LayerStore(None, Unlike(0.0))  # type: ignore[arg-type]
    again.shelve(store.pack())
    assert again.spare == {5: 0}
    again.take_from_shelf()
    assert again.spare == {}
    assert again.held == [5]
    assert float(next(iter(again.used[5].module.parameters())).detach().mean()) == 3.0

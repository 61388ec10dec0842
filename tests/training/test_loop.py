import numpy as np
import pytest

from atoll.state import Save, Saved
from atoll.strategies import parse_strategy
from atoll.strategies.rounds.models import ModelRounds
from atoll.strategies.talk import Spawn
from atoll.training import load_task
from atoll.training.loop import train
from atoll.training.replica import TrainedReplica
from atoll.training.shares import Tester
from atoll.world import Simulation
from atoll.world.sim.world import SimWorld
from tests.world.networks import network

TASK = load_task("digits")


def test_ends_after_its_steps_with_nothing_left_running() -> None:
    net = network('[[node]]\ncount = 2\n[[link]]\namong = "*"\nlatency_ms = 10\nrate_mbps = 10')

    async def program(world: SimWorld) -> int:
        shard = np.arange(200) + 200 * int(world.name)
        replica = TrainedReplica(
            world, net.node_names, TASK, shard, seed=0, optimizer=TASK.optimizer, tester=Tester(TASK)
        )
        await train(replica, TASK, parse_strategy("gossip"), steps=25)
        return replica.steps

    simulation = Simulation(net)
    assert simulation.run(program) == {"0": 25, "1": 25}
    assert simulation.now < 14


def test_a_state_is_saved_with_what_is_agreed_on_in_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two steps, some blocks of a round are agreed on and not in the model yet."""
    net = network('[[node]]\ncount = 2\n[[link]]\namong = "*"\nlatency_ms = 10\nrate_mbps = 0.2')
    monkeypatch.setattr(TrainedReplica, "block_values", 400)
    start, save = ModelRounds.start, ModelRounds.save
    nodes: list[ModelRounds] = []
    left: list[int] = []
    waiting: list[int] = []

    def started(rounds: ModelRounds, spawn: Spawn) -> None:
        nodes.append(rounds)
        start(rounds, spawn)

    def saved(rounds: ModelRounds) -> Saved:
        left.append(len(rounds._accepted))
        return save(rounds)

    async def at_boundary(save: Save) -> None:
        waiting.extend(len(each._accepted) for each in nodes)
        await save()

    async def program(world: SimWorld) -> None:
        shard = np.arange(200) + 200 * int(world.name)
        replica = TrainedReplica(
            world, net.node_names, TASK, shard, seed=0, optimizer=TASK.optimizer, tester=Tester(TASK)
        )
        strategy = parse_strategy("allreduce:every=2,overlap,codec=int8")
        await train(replica, TASK, strategy, steps=20, at_boundary=at_boundary)

    monkeypatch.setattr(ModelRounds, "start", started)
    monkeypatch.setattr(ModelRounds, "save", saved)
    Simulation(net).run(program)
    assert max(waiting) > 0
    assert max(left) == 0

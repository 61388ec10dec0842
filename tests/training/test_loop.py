import numpy as np

from atoll.strategies import parse_strategy
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

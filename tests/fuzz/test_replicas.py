import numpy as np

from atoll.fuzz.replicas import Drawn, Joining, Witness
from atoll.world import Simulation
from atoll.world.sim.world import SimWorld
from tests.world.networks import network

NET = network('[[node]]\ncount = 2\n[[link]]\namong = "*"')


def test_a_model_that_includes_less_is_a_loss() -> None:
    witness = Witness()

    async def program(world: SimWorld) -> None:
        machine = Joining(world, founds=world.name == "0")
        assert machine.is_late
        replica = Drawn(machine, NET.node_names, 0, 10, apart=True, witness=witness)
        replica.at_view = 100
        replica.take_over(np.array([30, 40]), {}, 0)  # the second has not held the run's model
        replica.at_view = 70
        replica.take_over(np.array([30, 40]), {}, 0)

    Simulation(NET).run(program)
    assert witness.complaints == ["0 held a model of 100 samples, and was handed one of 70"]


def test_an_exchange_that_makes_a_model_worse_is_a_loss() -> None:
    witness = Witness()

    async def program(world: SimWorld) -> None:
        replica = witness.replicas[world.name] = Drawn(world, NET.node_names, 0, 10, apart=False, witness=witness)
        replica.update()
        witness.merged(replica)
        replica.values = replica.values + 100
        witness.merged(replica)

    Simulation(NET).run(program)
    (what,) = witness.complaints
    assert what.startswith("0: an exchange at 0.0 s made the model worse: 100"), "the second is no worse than that"

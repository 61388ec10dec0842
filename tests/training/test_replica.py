import numpy as np
import pytest
import safetensors.torch
import torch

from atoll.errors import ExamplesRefused
from atoll.strategies import Quantity
from atoll.training import load_task
from atoll.training.replica import TrainedReplica
from atoll.training.shares import Tester
from atoll.world import Simulation
from tests.world.networks import network

WORLDS = Simulation(network("[[node]]\ncount = 2")).worlds
TASK = load_task("digits")


def replica(name: str = "0", seed: int = 0, shard: int = 100) -> TrainedReplica:
    return TrainedReplica(
        WORLDS[name], ("0", "1"), TASK, np.arange(shard), seed=seed, optimizer=TASK.optimizer, tester=Tester(TASK)
    )


def test_all_begin_alike_and_by_the_seed() -> None:
    start = replica().read(Quantity.PARAMETERS)
    assert torch.equal(start, replica("1").read(Quantity.PARAMETERS))
    assert not torch.equal(start, replica(seed=1).read(Quantity.PARAMETERS))


def test_a_step_is_a_gradient_and_an_update() -> None:
    made = replica()
    before = made.read(Quantity.PARAMETERS)
    made.compute_gradient()
    assert torch.equal(made.read(Quantity.PARAMETERS), before)
    gradient = made.read(Quantity.GRADIENT)
    made.update()
    np.testing.assert_allclose(made.read(Quantity.PARAMETERS), before - 0.05 * gradient, rtol=1e-4, atol=1e-6)
    assert (made.steps, made.work.tolist()) == (1, [32, 0])


def test_work_is_what_is_included_at_most_once() -> None:
    made = replica()
    made.compute_gradient()
    made.include(np.array([5, 64]))
    made.include(np.array([5, 32]))
    assert made.work.tolist() == [32, 64]


def test_a_broken_model_tests_badly() -> None:
    made = replica()
    assert made.test() == made.test()
    made.write(Quantity.PARAMETERS, torch.full((made.size,), np.nan))
    assert 0 <= made.test() <= 1


def test_examples_can_be_lent() -> None:
    lender, borrower = replica("0"), replica("1")
    borrower.scale_batch(0.5)
    lender.compute_gradient()
    borrower.compute_gradient()
    assert borrower.work.tolist() == [0, 16]
    borrower.borrow(lender.lend(0.25))
    seen: list[int] = []
    borrower.model.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    borrower.compute_gradient()
    borrower.compute_gradient()
    assert seen == [16 + 8, 16], "once"
    assert borrower.work.tolist() == [0, 48], "what others lend is their work"


@pytest.mark.parametrize(
    "examples",
    [
        b"",
        b"nonsense" * 9,
        safetensors.torch.save({"inputs": torch.zeros(2, 64)}),
        safetensors.torch.save({"inputs": torch.zeros(2, 63), "targets": torch.zeros(2, dtype=torch.int64)}),
        safetensors.torch.save({"inputs": torch.zeros(2, 64), "targets": torch.zeros(3, dtype=torch.int64)}),
        safetensors.torch.save({"inputs": torch.zeros(2, 64), "targets": torch.full((2,), 10)}),
        safetensors.torch.save({"inputs": torch.full((2, 64), torch.nan), "targets": torch.zeros(2).long()}),
    ],
)
def test_examples_that_are_of_no_use_are_refused(examples: bytes) -> None:
    borrower = replica("1")
    with pytest.raises(ExamplesRefused):
        borrower.borrow(examples)
    borrower.compute_gradient()
    assert borrower.work.tolist() == [0, 32]

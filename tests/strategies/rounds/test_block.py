import numpy as np
import pytest
import torch

from atoll.collectives.reduce import Reduced
from atoll.strategies.parts.ahead import OwnSteps, SharedSteps, Steps
from atoll.strategies.parts.correction import Uncorrected
from atoll.strategies.parts.outer import Nesterov, TakeMean
from atoll.strategies.rounds.block import Block
from atoll.strategies.rounds.fragment import Fragment
from atoll.vectors import CPU, Numbers, Vector


def vector(*values: float) -> Vector:
    return torch.tensor(values, dtype=torch.float32)


def tail(weight: float) -> Numbers:
    return np.array([weight], dtype=np.float32)


def test_a_round_that_is_given_up_costs_nothing() -> None:
    """What a codec had not sent, and what a node had kept of its own steps, goes with the next one."""
    ahead = SharedSteps(reach=0.0)
    block = Block(slice(0, 2), TakeMean(), ahead, Uncorrected(), 1.0, absolute=False, device=CPU)
    block.start(vector(0, 0))
    ahead(vector(0, 0), vector(1, 1), vector(1, 1), Steps(1, 1))
    ahead(vector(0, 0), vector(1, 1), vector(1, 1), Steps(2, 1))  # keeps one step of 1
    block.feedback.keep(vector(10, 20))
    assert block.begin(vector(3, 3))
    first = block.payload(vector(3, 3), 1.0)
    block.abandon(vector(3, 3))
    assert block.begin(vector(3, 3))
    again = block.payload(vector(3, 3), 1.0)
    assert first is not None
    assert again is not None
    assert first.values.tolist() == again.values.tolist() == [14, 24]


def test_who_has_nothing_left_to_learn_takes_what_others_have_learned() -> None:
    """Its own change is next to nothing, so a sound mean is many times as long; one that is absurd is not taken."""
    for mean, sound in ((1.0, True), (1e4, False)):
        block = Block(slice(0, 2), TakeMean(), OwnSteps(), Uncorrected(), 1.0, absolute=False, device=CPU)
        block.start(vector(10, 10))
        assert block.begin(vector(10, 10.000001))
        own = block.payload(vector(10, 10.000001), 1.0)
        assert own is not None
        found = block.receive(Reduced(vector(mean, mean), tail(1.0)), own)
        assert Fragment([block]).check().accepts(found.examined) is sound


def test_whatever_was_before_all_who_begin_from_the_same_go_on_alike() -> None:
    def block() -> Block:
        made = Block(
            slice(0, 2), Nesterov(rate=0.7, momentum=0.9), OwnSteps(), Uncorrected(), 1.0, absolute=True, device=CPU
        )
        made.start(vector(0, 0))
        return made

    one, other = block(), block()
    for value in (1.0, 2.0, 4.0):
        one.agree(one.follows(vector(value, -value)), None)
    for each in (one, other, other):  # one of them twice: nobody had met in between
        each.begin_from(vector(3, 3))
    for value in (5, 6):
        for each in (one, other):
            each.agree(each.follows(vector(value, value)), None)
        assert one.agreed is not None
        assert other.agreed is not None
        assert torch.equal(one.agreed, other.agreed)
    assert one.agreed is not None
    assert one.agreed.tolist() != [6, 6], "the second mean goes through the optimiser again"


def test_what_still_runs_when_a_round_is_abandoned_changes_nothing() -> None:
    """Its thread cannot be stopped.  Residuals were lost, or counted twice."""
    block = Block(slice(0, 2), TakeMean(), OwnSteps(), Uncorrected(), 1.0, absolute=False, device=CPU)
    block.start(vector(0, 0))
    block.feedback.keep(vector(10, 20))
    assert block.begin(vector(3, 3))
    block.abandon(vector(3, 3))
    own = block.payload(vector(3, 3), 1.0)
    assert own is not None
    late = block.receive(Reduced(vector(1, 1), tail(1.0), unsent=vector(5, 5)), own)
    assert block.begin(vector(3, 3))
    again = block.payload(vector(3, 3), 1.0)
    assert again is not None
    assert again.values.tolist() == [13, 23]
    block.commit(late.unsent)
    assert block.feedback.kept is not None
    assert block.feedback.kept.tolist() == [5, 5]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("absolute", [False, True])
def test_what_is_kept_on_the_host_is_the_same(dtype: torch.dtype, absolute: bool) -> None:  # noqa: FBT001
    gpu, drawn = torch.device("cuda:0"), torch.Generator().manual_seed(3)
    snapshots = [torch.randn(1000, generator=drawn) for _ in range(4)]
    found = []
    for home in (gpu, CPU):
        outer = Nesterov(rate=0.7, momentum=0.9)
        span = slice(0, 1000)
        block = Block(
            span, outer, OwnSteps(), Uncorrected(), 1.0, absolute=absolute, device=gpu, home=home, dtype=dtype
        )
        block.start(snapshots[0].to(gpu))
        for snapshot in snapshots[1:]:
            here = snapshot.to(gpu)
            assert block.begin(here)
            own = block.payload(here, 1.0)
            assert own is not None
            sent = torch.where(own.values.abs() > 0.5, own.values, 0.0)
            received = block.receive(Reduced(sent, tail(1.0), own.values - sent), own)
            agreed = block.follows(received.mean)
            assert agreed.values.is_cuda
            assert agreed.kept.device == home
            block.commit(received.unsent)
            block.agree(agreed, received.missed)
        assert block.feedback.kept is not None
        assert block.feedback.kept.device == home
        assert block.feedback.kept.dtype == dtype
        found.append([agreed.values.cpu(), agreed.kept.cpu(), block.feedback.kept.cpu()])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)

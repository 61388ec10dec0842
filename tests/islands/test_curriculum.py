"""What islands learn: a task's model is the same for all, and its batches are gone through as ever."""

import torch

from atoll.islands.curriculum import TaskCurriculum
from atoll.training.shares import Parts
from tests.islands.test_layout import task


def curriculum() -> TaskCurriculum:
    toy = task()
    return TaskCurriculum(toy, Parts(toy, ("a", "d"), shards="iid", seed=3), seed=3)


def test_all_nodes_build_the_same_model() -> None:
    one, other = curriculum(), curriculum()
    state = torch.random.get_rng_state()
    built = one.build()
    assert torch.equal(state, torch.random.get_rng_state()), "nobody else's random numbers are used up"
    for mine, yours in zip(built.parameters(), other.build().parameters(), strict=True):
        assert torch.equal(mine, yours)
    assert one.size == sum(each.numel() for each in built.parameters())
    assert one.shards == 2


def test_batches_go_on_where_they_were() -> None:
    one, other = curriculum(), curriculum()
    assert one.save() == {}, "who is not first has none"
    take = one.source(0, "island a")
    for _ in range(30):
        take()
    again = other.source(0, "island a")
    other.load(one.save())
    for _ in range(30):
        mine, yours = take(), again()
        assert mine is not None
        assert yours is not None
        assert torch.equal(mine.inputs, yours.inputs)
        assert torch.equal(mine.targets, yours.targets)

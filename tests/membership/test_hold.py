"""A promise holds until it is kept, or its time is over."""

import asyncio

from atoll.membership.hold import Hold
from atoll.world.sim.world import SimWorld
from tests.world.networks import network, run

ONE = network("[[node]]\ncount = 1")


def test_who_waits_goes_on_when_the_promise_ends_or_runs_out() -> None:
    async def program(world: SimWorld) -> list[float]:
        hold, ends = Hold(world), []
        await hold.wait()
        ends.append(world.now)
        hold.begin(3.0)
        seen = [hold.is_on]
        await hold.wait()
        ends.append(world.now)
        hold.begin(60.0)
        hold.begin(2.0)  # the last promise counts
        await hold.wait()
        ends.append(world.now)
        hold.end()
        assert [*seen, hold.is_on] == [True, False]
        return ends

    assert run(ONE, program) == {"0": [0.0, 3.0, 5.0]}


def test_a_promise_that_is_kept_early_lets_go_at_once() -> None:
    async def program(world: SimWorld) -> float:
        hold = Hold(world)
        hold.begin(60.0)

        async def keep() -> None:
            await world.sleep(1.0)
            hold.end()

        async with asyncio.TaskGroup() as group:
            group.create_task(keep())
            await hold.wait()
            return world.now

    assert run(ONE, program) == {"0": 1.0}

import asyncio
import time

import pytest

from atoll.world.sim.loop import VirtualLoop


def test_time_is_virtual_and_exact() -> None:
    loop = VirtualLoop()

    async def program() -> list[float]:
        times = []
        for seconds in (0.1, 0.2, 3600.0):
            await asyncio.sleep(seconds)
            times.append(loop.time())
        return times

    began = time.perf_counter()
    assert loop.run_until_complete(program()) == [0.1, 0.1 + 0.2, 0.1 + 0.2 + 3600]
    assert time.perf_counter() - began < 1
    loop.close()


def test_timers_of_one_time_run_in_the_order_they_were_set() -> None:
    loop = VirtualLoop()
    ran: list[int] = []
    for n in range(100):
        loop.call_at(1.0, ran.append, n)
    loop.call_at(0.5, ran.append, -1)
    loop.call_at(2.0, loop.stop)
    loop.run_forever()
    assert ran == [-1, *range(100)]
    loop.close()


def test_timeouts_and_task_groups_work_unchanged() -> None:
    loop = VirtualLoop()

    async def program() -> float:
        async def two() -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(1))
                group.create_task(asyncio.sleep(100))

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(two(), 5)
        return loop.time()

    assert loop.run_until_complete(program()) == 5
    loop.close()


def test_instants_end_comes_after_all_else_of_an_instant() -> None:
    loop = VirtualLoop()
    ran: list[str] = []

    def first() -> None:
        loop.at_instants_end(lambda: ran.append("end"))
        loop.call_soon(lambda: loop.call_soon(ran.append, "soon"))
        loop.call_later(0.1, ran.append, "later")

    loop.call_at(1.0, first)
    loop.call_at(1.0, ran.append, "second")
    loop.call_at(2.0, loop.stop)
    loop.run_forever()
    assert ran == ["second", "soon", "end", "later"]
    loop.close()


def test_background_timers_run_but_keep_nothing_alive() -> None:
    loop = VirtualLoop()
    ran: list[float] = []

    def weather() -> None:
        ran.append(loop.time())
        loop.at(loop.time() + 1, weather, background=True)

    loop.at(1.0, weather, background=True)

    async def program() -> None:
        await asyncio.sleep(3.5)
        await loop.create_future()

    with pytest.raises(RuntimeError, match="nothing can happen"):
        loop.run_until_complete(program())
    assert ran == [1, 2, 3]
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.call_later(0, loop.stop)
    loop.run_forever()
    loop.close()


def test_a_cancelled_timer_keeps_nothing_alive() -> None:
    loop = VirtualLoop()
    stalls: list[float] = []

    def stall() -> None:
        stalls.append(loop.time())
        loop.stop()

    loop.on_stall = stall
    loop.call_at(100.0, stalls.append, -1.0).cancel()
    loop.call_at(1.0, lambda: None)
    loop.run_forever()
    assert stalls == [1.0]
    loop.close()

import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from atoll.errors import AtollError
from atoll.world.live.thread import WorldThread
from atoll.world.live.world import LiveWorld
from tests.world.live.loopback import make_node


@asynccontextmanager
async def _alone() -> AsyncIterator[LiveWorld]:
    world = make_node("a", ["a"], step_s=0.0)
    try:
        yield world
    finally:
        await world.close(flush_s=0.0)


def test_the_step_of_a_script_is_timed() -> None:
    """Others plan with it, and a probe writes it down; a long test between two steps does not count as one."""
    thread = WorldThread(_alone)
    try:
        assert thread.world.host.step_s == 0
        for seconds in (0.05, 0.05, 0.4, 0.05, 0.05):
            thread.step_begins()
            time.sleep(seconds)
            since, at = thread.rest_of_step()
            assert at - since >= seconds
            time.sleep(0.02)  # what comes after a step is not computing
        assert 0.05 <= thread.world.host.step_s < 0.2
    finally:
        thread.close()


def test_a_program_learns_that_its_run_is_closed() -> None:
    thread = WorldThread(_alone)
    thread.close()
    with pytest.raises(AtollError, match="this run is closed"):
        thread.check()


def test_work_for_the_program_runs_in_its_thread() -> None:
    thread = WorldThread(_alone)

    async def ask() -> int:
        return await thread.in_caller(threading.get_ident)

    async def fail() -> None:
        await thread.in_caller(lambda: int("x"))

    assert thread.call(ask()) == threading.get_ident()
    with pytest.raises(ValueError, match="invalid literal"):
        thread.call(fail())
    assert thread.call(ask()) == threading.get_ident()  # as before
    thread.close()

"""Settings for all tests."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import torch

hypothesis.settings.register_profile("atoll", deadline=None)  # the machine may be busy
hypothesis.settings.load_profile("atoll")
torch.set_num_threads(1)  # the tests run in parallel already; more threads on busy cores are many times slower

REAL_TIME = (
    "world/live/",
    "world/emulate/",
    "runs/test_live.py",
    "runs/test_emulated.py",
    "runs/test_batch.py",
    "islands/test_live.py",
    "script/",
    "test_nodes.py",
    "test_examples.py",
    "test_docs.py",
)
"""Tests of real processes and sockets: `make quick` leaves them out.  All others are as fast as the machine."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here) and str(item.path.relative_to(here)).startswith(REAL_TIME):
            item.add_marker(pytest.mark.realtime)


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    """A thread that goes on training takes random numbers from whatever test comes next."""
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + 5.0
    while left := [thread for thread in threading.enumerate() if thread not in before]:
        if time.monotonic() > deadline:
            pytest.fail(f"the test left threads behind: {', '.join(thread.name for thread in left)}")
        time.sleep(0.01)

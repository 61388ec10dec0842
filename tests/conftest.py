"""Settings for all tests."""

import threading
import time
from collections.abc import Iterator

import pytest
import torch

torch.set_num_threads(1)  # the tests run in parallel already; more threads on busy cores are many times slower


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

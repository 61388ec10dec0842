"""The streams of a GPU: exchanges compute on a stream of their own, beside training.

At a step boundary, training's own stream copies the model or changes it: its thread only enqueues that.  So training
waits for results that exchanges have computed, and exchanges wait for a copy of the model, but never for a step.

Memory belongs to the stream that it was allocated on.  What one stream uses of the other's is kept until it is done.
"""

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TypeVar

import torch

from atoll.vectors import Vector

__all__ = ["Streams"]

T = TypeVar("T")
FIRST = -1
"""The priority of exchanges: their kernels are short, and few; training's fill the device."""


class Streams:
    """The streams of one device; on a CPU there are none, and everything is done at once.

    Args:
        device: where the model is.
    """

    def __init__(self, device: torch.device) -> None:
        self._beside: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._beside = torch.cuda.Stream(device, priority=FIRST)  # type: ignore[no-untyped-call]
            self._beside.wait_stream(torch.cuda.current_stream(device))
        self._is_read = False
        """Whether exchanges get a copy of the model at this boundary."""
        self._in_use: deque[tuple[torch.cuda.Event, object]] = deque()
        """What training's stream still uses, and the event after which it does not."""

    def at_boundary(self, work: Callable[[], T]) -> T:
        """Does `work` on the model, between two steps; called on the thread of training.

        What `work` refers to is kept until the device is done with it.
        """
        beside = self._beside
        if beside is None:
            return work()
        self._let_go()
        training = torch.cuda.current_stream(beside.device)
        with torch.cuda.device(beside.device):  # kernels are started on the current device, whatever they work on
            training.wait_stream(beside)
            result = work()
            done = training.record_event()
        if self._is_read:
            beside.wait_event(done)
            self._is_read = False
        self._in_use.append((done, work))
        return result

    def shared(self, values: Vector) -> Vector:
        """A copy of the model, for exchanges: its memory is not used again before they are done with it."""
        if self._beside is not None:
            self._is_read = True
            values.record_stream(self._beside)
        return values

    def beside(self) -> AbstractContextManager[None]:
        """For work of exchanges, on any thread."""
        if self._beside is None:
            return nullcontext()
        self._let_go()
        return torch.cuda.stream(self._beside)

    def enter(self) -> None:
        """From now on, all work of this thread is work of exchanges."""
        if self._beside is not None:
            torch.cuda.set_stream(self._beside)

    def _let_go(self) -> None:
        """Called by several threads at a time."""
        with suppress(IndexError):
            while self._in_use:
                done, work = self._in_use.popleft()
                if not done.query():  # type: ignore[no-untyped-call]
                    self._in_use.appendleft((done, work))
                    return

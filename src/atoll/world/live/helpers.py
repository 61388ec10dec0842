"""Threads that compute beside the event loop.

A round offloads several pieces of work for each block, and training needs the interpreter meanwhile.  The standard
library's executor spends more Python on a piece of work than most of them take to tell a GPU what to do; here it is a
future of the loop and an entry of a queue.
"""

import asyncio
import contextlib
import os
import queue
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

__all__ = ["Helpers", "helper_count"]

T = TypeVar("T")
END_S = 5.0
Errand = tuple[Callable[[], Any], "asyncio.Future[Any]"]


def helper_count() -> int:
    """Returns how many threads encode and add vectors: a quarter of the cores, to leave the rest to training."""
    return max(1, min(4, (os.cpu_count() or 1) // 4))


class Helpers:
    """A few threads, started when there is work.

    Args:
        count: how many.
    """

    def __init__(self, count: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._count = count
        self._queue: queue.SimpleQueue[Errand | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._ended = asyncio.Semaphore(0)
        self.around: Callable[[], AbstractContextManager[None]] = nullcontext
        """A context for all work: the stream of a GPU."""

    async def run(self, work: Callable[[], T]) -> T:
        """Does `work` on one of the threads.  If the caller is cancelled, the work still ends, and its result is
        dropped.
        """
        if not self._threads:
            self._threads = [
                threading.Thread(target=self._run, name=f"exchange {number}", daemon=True)
                for number in range(self._count)
            ]
            for thread in self._threads:
                thread.start()
        done: asyncio.Future[T] = self._loop.create_future()
        self._queue.put((work, done))
        return await done

    async def close(self) -> None:
        """Drops what nobody has begun, and waits for what is under way."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._queue.get_nowait()
        for _ in self._threads:
            self._queue.put(None)
        threads, self._threads = self._threads, []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                for _ in threads:
                    await self._ended.acquire()
        for thread in threads:
            thread.join(0.1)

    def _run(self) -> None:
        while (given := self._queue.get()) is not None:
            work, done = given
            del given  # what the work refers to is large, and the next work may come much later
            if not done.cancelled():
                finish = self._finish(work, done)
                try:
                    self._loop.call_soon_threadsafe(finish)
                except RuntimeError:  # the loop was closed meanwhile
                    return
                del finish
            del work, done
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._ended.release)

    def _finish(self, work: Callable[[], Any], done: "asyncio.Future[Any]") -> Callable[[], None]:
        """Does the work, and returns what the loop should do then."""
        try:
            with self.around():
                result = work()
        except BaseException as error:  # noqa: BLE001 - raised where it is awaited
            failure = error
            return lambda: None if done.done() else done.set_exception(failure)
        return lambda: None if done.done() else done.set_result(result)

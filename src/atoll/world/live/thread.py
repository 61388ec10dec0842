"""A live world in its own thread, for programs that do not use asyncio."""

import asyncio
import concurrent.futures
import queue
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from atoll.errors import AtollError
from atoll.world.live.world import LiveWorld

__all__ = ["WorldThread"]

T = TypeVar("T")
LOOK_EVERY_S = 1.0
LEAVE_S = 10.0
MEASURED = 15
"""The time of a step is the median of this many steps."""


class WorldThread:
    """Runs an event loop with a world in it until it is closed.

    Args:
        opening: opens the world, in that loop.
    """

    def __init__(self, opening: Callable[[], AbstractAsyncContextManager[LiveWorld]]) -> None:
        self._opening = opening
        self._opened: concurrent.futures.Future[LiveWorld] = concurrent.futures.Future()
        self._failure: BaseException | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._errands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        """Work for the program's thread, while it waits in `call`."""
        self._thread = threading.Thread(target=self._run, name="atoll", daemon=True)
        self._thread.start()
        self.world = self._opened.result()
        self._loop = self._main_loop
        self._since = time.monotonic()
        self._took: deque[float] = deque(maxlen=MEASURED)
        """The durations of the last steps, in seconds."""

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:  # noqa: BLE001 - raised in the program's thread
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            self._failure = error
            if not self._opened.done():
                self._opened.set_exception(self._failure)

    async def _main(self) -> None:
        self._main_loop = asyncio.get_running_loop()
        self._leaving = asyncio.Event()
        async with self._opening() as world, asyncio.TaskGroup() as group:
            self._group = group
            self._opened.set_result(world)
            await self._leaving.wait()
            for task in list(self._tasks):
                task.cancel()

    def spawn(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Runs a coroutine in the background; call it only in the world's own thread."""
        task = self._group.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine in the world's thread, and waits for its result.

        Raises:
            AtollError: the world has failed, now or before, or is closed.
        """
        if not self._thread.is_alive():
            work.close()
            self._complain()
        doing: concurrent.futures.Future[T] = concurrent.futures.Future()
        doing.add_done_callback(lambda _: self._errands.put(_nothing))
        self._loop.call_soon_threadsafe(lambda: self.spawn(_do(work, doing)))
        while not doing.done():
            try:
                self._errands.get(timeout=LOOK_EVERY_S)()
            except queue.Empty:
                if not self._thread.is_alive():
                    self._complain()
        if doing.cancelled():
            self._complain()
        return doing.result()

    async def in_caller(self, work: Callable[[], T]) -> T:
        """Runs `work` in the program's thread, which waits in `call`; await it in the world's thread."""
        loop = self._loop
        done: asyncio.Future[T] = loop.create_future()

        def errand() -> None:
            try:
                result = work()
            except Exception as error:  # noqa: BLE001 - raised where it is awaited
                loop.call_soon_threadsafe(_fail, done, error)
            else:
                loop.call_soon_threadsafe(_finish, done, result)

        self._errands.put(errand)
        return await done

    def soon(self, work: Callable[[], object]) -> None:
        """Calls a function in the world's thread, and does not wait for it."""
        self.check()
        self._loop.call_soon_threadsafe(work)

    def check(self) -> None:
        """Raises `AtollError` if the world has failed or is closed."""
        if not self._thread.is_alive():
            self._complain()

    def _complain(self) -> None:
        if self._failure is None:
            raise AtollError("this run is closed: call atoll.join() again to take part in another")
        raise AtollError(f"taking part in the run has failed: {self._failure}") from self._failure

    def rest_of_step(self, steps: float = 1.0) -> tuple[float, float]:
        """Call it after a step's computation: waits for the rest of the time that a slower machine would need.  Returns
        when the step began and ended.
        """
        world = self.world
        since = self._since - world.begin_at
        left = since + steps * world.step_s * world.slowness(since) - world.now
        if left > 0:
            time.sleep(left)
        at = world.now
        self._took.append((at - since) / steps)
        world.host.step_s = statistics.median(self._took)  # the median: some steps include evaluation or saving
        return since, at

    def step_begins(self) -> None:
        """Starts the clock of a step."""
        self._since = time.monotonic()

    def close(self) -> None:
        """Leaves the run."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._leaving.set)
            self._thread.join(LEAVE_S)


async def _do(work: Coroutine[Any, Any, T], doing: "concurrent.futures.Future[T]") -> None:
    """Sets the result at once, before the loop runs other callbacks."""
    try:
        doing.set_result(await work)
    except asyncio.CancelledError:
        doing.cancel()
        raise
    except Exception as error:  # noqa: BLE001 - raised in the waiting thread
        doing.set_exception(error)


def _finish(done: "asyncio.Future[T]", result: T) -> None:
    if not done.done():  # it may be cancelled meanwhile
        done.set_result(result)


def _fail(done: "asyncio.Future[Any]", error: Exception) -> None:
    if not done.done():
        done.set_exception(error)


def _nothing() -> None:
    """Wakes the program's thread."""

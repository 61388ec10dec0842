"""Virtual time, inside the event loop.

`VirtualLoop` is an asyncio event loop whose clock jumps to the next timer instead of waiting for it.  `asyncio.sleep`,
`timeout`, `TaskGroup`, locks and queues work on it unchanged.  It differs from the ordinary loop in three points that a
simulation needs:

* Timers are ordered totally, by time and then by the order in which they were set, so that one seed gives one run.
* `at_instants_end` runs a callback when nothing else is left to do at this instant, so that several changes at one
  instant are handled together.
* Background events (the weather) do not keep a run alive.  When nothing else is left,
    `is_anyone_waiting` says whether background events still matter; if not, `on_stall` is called, because nothing can
    happen any more.

It has no sockets, no threads, no signals and no subprocesses.
"""

import asyncio
import heapq
import itertools
import math
from asyncio import events
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import Any, TypeVarTuple

__all__ = ["Timer", "VirtualLoop"]

Ts = TypeVarTuple("Ts")


class Timer:
    """A timer of the simulator itself.  It has the parts of an asyncio handle that the loop uses."""

    __slots__ = ("_args", "_callback", "_cancelled", "_loop", "_scheduled")

    def __init__(
        self, loop: "VirtualLoop", callback: Callable[..., object], args: tuple[Any, ...], *, keeps_alive: bool
    ) -> None:
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._scheduled = keeps_alive
        if keeps_alive:
            loop._foreground += 1  # noqa: SLF001 - one mechanism in two classes

    def cancel(self) -> None:
        self._cancelled = True
        self._args = ()  # it may stay in the heap for long, and its arguments may hold megabytes
        if self._scheduled:
            self._scheduled = False
            self._loop._foreground -= 1  # noqa: SLF001
            self._loop._forget_one()  # noqa: SLF001

    def _run(self) -> None:
        self._callback(*self._args)


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop on virtual time, starting at 0."""

    _ready: deque[events.Handle]
    _stopping: bool

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._timers: list[tuple[float, int, Any]] = []
        self._order = itertools.count()
        self._foreground = 0
        self._cancelled = 0
        self._instants_end: list[Callable[[], None]] = []
        self.is_anyone_waiting: Callable[[], bool] = lambda: False
        self.on_stall: Callable[[], None] = _raise_stall

    def time(self) -> float:
        return self._now

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> events.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> events.TimerHandle:
        timer = events.TimerHandle(when, callback, args, self, context)
        if when < math.inf:  # a timer at infinity never fires
            heapq.heappush(self._timers, (when, next(self._order), timer))
            self._foreground += 1
            timer._scheduled = True  # type: ignore[attr-defined]  # noqa: SLF001 - a loop's own part of the handle
        return timer

    def at(self, when: float, callback: Callable[[*Ts], object], *args: *Ts, background: bool = False) -> "Timer":
        """Like `call_at`, for events of the simulator itself.

        It is cheaper; an exception of the callback ends the run instead of being logged; and it may be `background`: an
        event that happens anyway but does not keep the run alive.
        """
        timer = Timer(self, callback, args, keeps_alive=not background)
        heapq.heappush(self._timers, (when, next(self._order), timer))
        return timer

    def at_instants_end(self, callback: Callable[[], None]) -> None:
        """Calls `callback` once, when nothing else is left to do at this instant."""
        self._instants_end.append(callback)

    def _timer_handle_cancelled(self, handle: events.TimerHandle) -> None:
        if handle._scheduled:  # type: ignore[attr-defined]  # noqa: SLF001
            handle._scheduled = False  # type: ignore[attr-defined]  # noqa: SLF001
            self._foreground -= 1
            self._forget_one()

    def _forget_one(self) -> None:
        """Counts a cancelled timer.  When most timers are cancelled, they are removed together."""
        self._cancelled += 1
        if self._cancelled > 1000 and self._cancelled > len(self._timers) // 2:
            self._timers = [entry for entry in self._timers if not entry[2]._cancelled]  # noqa: SLF001
            heapq.heapify(self._timers)
            self._cancelled = 0

    def _run_once(self) -> None:
        ready = self._ready
        if not ready:
            if self._instants_end:
                callbacks, self._instants_end = self._instants_end, []
                for callback in callbacks:
                    callback()
                return
            if self._stopping:
                return
            if self._foreground == 0 and not (self._timers and self.is_anyone_waiting()):
                self.on_stall()
                return
            self._advance()
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:  # noqa: SLF001
                handle._run()  # noqa: SLF001

    def _advance(self) -> None:
        """Goes to the next timer's time and makes all timers of that time ready, in order."""
        timers, ready = self._timers, self._ready
        while timers:
            when = timers[0][0]
            while timers and timers[0][0] == when:
                timer = heapq.heappop(timers)[2]
                if timer._cancelled:  # noqa: SLF001
                    continue
                if timer._scheduled:  # noqa: SLF001
                    timer._scheduled = False  # noqa: SLF001
                    self._foreground -= 1
                ready.append(timer)
            if ready:
                self._now = max(self._now, when)  # a timer set for the past runs now
                return

    def _write_to_self(self) -> None:
        """There is no selector to wake."""

    def __del__(self) -> None:
        """Does nothing: the loop holds no resources of the operating system, so it need not be closed."""

    def _process_events(self, event_list: list[Any]) -> None:
        """There are no sockets to hear from."""


def _raise_stall() -> None:
    raise RuntimeError("nothing can happen any more")

"""Runs many jobs in a pool of processes, a few at a time."""

import contextlib
import signal
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import forkserver, get_context, parent_process
from multiprocessing.context import BaseContext
from typing import Any, TypeVar

__all__ = ["do_all"]

T = TypeVar("T")
R = TypeVar("R")


def do_all(
    do: Callable[[T], R],
    items: Iterable[T],
    *,
    jobs: int,
    every_s: float = 0.2,
    on_failure: Callable[[T, Exception], None] | None = None,
) -> Generator[tuple[T, R] | None, None, None]:
    """Calls a function for every item.

    Yields each item with its result when it is done, and `None` regularly in between, so that progress can be shown.
    Leaving early (an error, Ctrl-C) ends the processes that still run.

    Args:
        do: the function for each item; it must be picklable.
        items: its arguments.
        jobs: how many processes work at a time.
        every_s: how often `None` is yielded.
        on_failure: is called with each item that failed, and the error; the others continue.  By default the first
            failure is raised here.
    """
    left = enumerate(items)
    while suspects := (yield from _do(do, left, jobs, every_s, on_failure)):
        # A process died, and its item is unknown: each suspect is done again, alone.
        for suspect in suspects:
            if (yield from _do(do, iter([suspect]), 1, every_s, on_failure)):
                assert on_failure is not None, "else it was raised"
                on_failure(suspect[1], BrokenProcessPool("its process was killed, perhaps for want of memory"))


def _do(
    do: Callable[[T], R],
    left: Iterator[tuple[int, T]],
    jobs: int,
    every_s: float,
    on_failure: Callable[[T, Exception], None] | None,
) -> Generator[tuple[T, R] | None, None, list[tuple[int, T]]]:
    """Does the remaining items; if a process died, returns the items that were running then."""
    pool = ProcessPoolExecutor(max(1, jobs), mp_context=_context(do), initializer=_begin)
    under_way: dict[Future[R], tuple[int, T]] = {}
    suspects: list[tuple[int, T]] = []
    try:
        while not suspects:
            while len(under_way) < 2 * jobs and (upcoming := next(left, None)) is not None:
                try:
                    under_way[pool.submit(do, upcoming[1])] = upcoming
                except BrokenProcessPool:
                    if on_failure is None:
                        raise
                    suspects.append(upcoming)
                    break
            if suspects or not under_way:
                break
            done, _ = wait(under_way, timeout=every_s, return_when=FIRST_COMPLETED)
            for future in sorted(done, key=lambda each: under_way[each][0]):
                error = future.exception()
                if isinstance(error, BrokenProcessPool) and on_failure:
                    suspects.append(under_way.pop(future))
                elif isinstance(error, Exception) and on_failure:
                    on_failure(under_way.pop(future)[1], error)
                else:
                    result = future.result()
                    yield under_way.pop(future)[1], result
            yield None
        if suspects:
            suspects += under_way.values()
            under_way.clear()
        return sorted(suspects, key=lambda each: each[0])
    finally:
        processes = list(pool._processes.values())  # noqa: SLF001 - there is no public way to end them, and shutdown forgets them
        pool.shutdown(wait=False, cancel_futures=True)
        if under_way:
            for process in processes:
                process.terminate()


def _context(do: Callable[..., Any]) -> BaseContext:
    """Returns how processes start: on Linux, from a fork server that has imported only the needed modules, since
    importing torch takes longer than many runs.
    """
    if not sys.platform.startswith("linux"):
        return get_context("spawn")
    context = get_context("forkserver")
    context.set_forkserver_preload([getattr(do, "func", do).__module__])
    with _uninterrupted():
        forkserver.ensure_running()
    return context


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Processes started here ignore Ctrl-C from the start; otherwise they would print a traceback."""
    try:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _begin() -> None:
    """Ctrl-C reaches the whole process group, and the first process ends the others.  If it was killed, they end by
    themselves: they check every second.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, _end_with_the_first)
    signal.setitimer(signal.ITIMER_REAL, 1.0, 1.0)


def _end_with_the_first(number: int, frame: object) -> None:  # noqa: ARG001 - the arguments of a handler
    first = parent_process()
    if first is None or not first.is_alive():
        signal.raise_signal(signal.SIGKILL)

"""Many pieces of work, a few at a time, each in a process of its own making."""

import signal
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context, parent_process
from typing import TypeVar

__all__ = ["do_all"]

T = TypeVar("T")
R = TypeVar("R")


def do_all(
    do: Callable[[T], R], items: Iterable[T], *, jobs: int, every_s: float = 0.2
) -> Generator[tuple[T, R] | None, None, None]:
    """Does something with everything.

    Yields each item with its result when it is done, and `None` every now and then in between, so that progress can be
    shown.  Leaving early (an error, Ctrl-C) ends what is still running.
    """
    pool = ProcessPoolExecutor(max(1, jobs), mp_context=get_context("spawn"), initializer=_begin)
    left = enumerate(items)
    under_way: dict[Future[R], tuple[int, T]] = {}
    try:
        while True:
            while len(under_way) < 2 * jobs and (upcoming := next(left, None)) is not None:
                under_way[pool.submit(do, upcoming[1])] = upcoming
            if not under_way:
                return
            done, _ = wait(under_way, timeout=every_s, return_when=FIRST_COMPLETED)
            for future in sorted(done, key=lambda each: under_way[each][0]):
                result = future.result()
                yield under_way.pop(future)[1], result
            yield None
    finally:
        processes = list(pool._processes.values())  # noqa: SLF001 - there is no public way to end them, and shutdown forgets them
        pool.shutdown(wait=False, cancel_futures=True)
        if under_way:
            for process in processes:
                process.terminate()


def _begin() -> None:
    """Ctrl-C goes to the whole group of processes; it is the first one's business to end the others.  If it was killed
    and cannot, they end by themselves: they look every second.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, _end_with_the_first)
    signal.setitimer(signal.ITIMER_REAL, 1.0, 1.0)


def _end_with_the_first(number: int, frame: object) -> None:  # noqa: ARG001 - what a handler is called with
    first = parent_process()
    if first is None or not first.is_alive():
        signal.raise_signal(signal.SIGKILL)

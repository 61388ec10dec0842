"""Many runs, a few at a time, each in a process of its own making."""

import signal
from collections.abc import Generator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context, parent_process
from pathlib import Path

from atoll.train.run import RunSpec, simulate

__all__ = ["run_all"]


def run_all(
    specs: list[RunSpec], folder: Path, *, jobs: int, every_s: float = 0.2
) -> Generator[RunSpec | None, None, None]:
    """Runs everything; traces go to `folder`.

    Yields each spec when it is done, and `None` every now and then in between, so that progress can be shown.  Leaving
    early (an error, Ctrl-C) ends what is still running and removes its unfinished traces.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pool = ProcessPoolExecutor(max(1, jobs), mp_context=get_context("spawn"), initializer=_begin)
    waiting: dict[Future[None], RunSpec] = {
        pool.submit(simulate, spec, folder / spec.file_name): spec for spec in specs
    }
    try:
        while waiting:
            done, _ = wait(waiting, timeout=every_s, return_when=FIRST_COMPLETED)
            for future in sorted(done, key=lambda each: waiting[each].file_name):
                future.result()
                yield waiting.pop(future)
            yield None
    finally:
        processes = list(pool._processes.values())  # noqa: SLF001 - there is no public way to end them, and shutdown forgets them
        pool.shutdown(wait=False, cancel_futures=True)
        if waiting:
            for process in processes:
                process.terminate()
            for spec in waiting.values():
                (folder / spec.file_name).unlink(missing_ok=True)


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

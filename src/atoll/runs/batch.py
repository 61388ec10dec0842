"""Many runs, a few at a time."""

from collections.abc import Callable, Generator
from contextlib import closing
from functools import partial
from pathlib import Path

from atoll.config import RunConfig
from atoll.jobs import do_all
from atoll.runs.simulated import simulate_run

__all__ = ["run_all"]


def run_all(
    configs: list[RunConfig],
    folder: Path,
    *,
    jobs: int,
    on_failure: Callable[[RunConfig, Exception], None] | None = None,
) -> Generator[RunConfig | None, None, None]:
    """Runs everything; traces go to `folder`.

    Yields each configuration when its run is done, and `None` every now and then in between, so that progress can be
    shown.  Leaving early (an error, Ctrl-C) ends the runs in progress and removes their unfinished traces.

    Args:
        configs: the runs.
        folder: the folder for traces.
        jobs: how many at a time.
        on_failure: called with each run that failed, and its error; the others continue.  By default, the first failure
            is raised here.
    """
    folder.mkdir(parents=True, exist_ok=True)
    left = {config.file_name for config in configs}
    runs = do_all(partial(simulate_run, trace_path=folder), configs, jobs=jobs, on_failure=on_failure)
    try:
        with closing(runs):
            for done in runs:
                if done is None:
                    yield None
                else:
                    left.discard(done[0].file_name)
                    yield done[0]
    finally:
        for name in left:
            (folder / name).unlink(missing_ok=True)

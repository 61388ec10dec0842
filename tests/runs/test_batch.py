import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from atoll.config import RunConfig
from atoll.errors import TaskError
from atoll.network import load_network
from atoll.runs.batch import run_all

SPEC = RunConfig(network=load_network("perfect:2"), task="digits", strategy="none", limit_s=3.0)
# Who sees a part of the labels only, and never talks, never gets to the target.
ENDLESS = RunConfig(
    network=load_network("perfect:3"), task="digits", strategy="none", shards="label", limit_s=1e6, seed=1
)


def test_leaving_early_keeps_finished_traces_only(tmp_path: Path) -> None:
    runs = run_all([SPEC, ENDLESS], tmp_path, jobs=2)
    for done in runs:
        if done is SPEC:
            break
    runs.close()
    assert [path.name for path in tmp_path.glob("*.jsonl")] == [SPEC.file_name]


def test_what_goes_wrong_in_a_run_is_told_here(tmp_path: Path) -> None:
    wrong = RunConfig(network=load_network("perfect:2"), task="nothing", strategy="none")
    with pytest.raises(TaskError, match="there is no task 'nothing'"):
        list(run_all([wrong], tmp_path, jobs=1))


def test_runs_end_when_who_started_them_is_killed(tmp_path: Path) -> None:
    """Not by Ctrl-C but for good: nothing may go on computing for nobody."""
    program = f"""
from pathlib import Path
from atoll.config import RunConfig
from atoll.network import load_network
from atoll.runs.batch import run_all

if __name__ == "__main__":
    network = load_network("perfect:3")
    spec = RunConfig(network=network, task="digits", strategy="none", shards="label", limit_s=1e6)
    list(run_all([spec], Path({str(tmp_path)!r}), jobs=1))
"""
    script = tmp_path / "program.py"
    script.write_text(program)
    first = subprocess.Popen([sys.executable, str(script)])
    trace = tmp_path / "strategy.none.seed0.jsonl"
    try:
        _wait_until(lambda: trace.exists() and trace.stat().st_size > 0)
    finally:
        first.kill()
        first.wait()

    time.sleep(3.0)  # they look every second
    size = trace.stat().st_size
    time.sleep(1.5)
    assert trace.stat().st_size == size, "it is still computing"


def _wait_until(done: Callable[[], bool], seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < until
        time.sleep(0.1)

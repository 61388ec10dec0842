"""Scripts that are asked to end: real processes, over loopback."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import atoll
from atoll.trace import ReachChanged, RunEnded, read_trace

LEAVING = Path(__file__).with_name("leaving.py")
PYTHON = [sys.executable, str(LEAVING)]
NODE = [sys.executable, "-m", "atoll", "node", "--listen", "127.0.0.1:0"]


@contextmanager
def started(command: list[str], folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    folder.mkdir(exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_for(what: Callable[[], object], log: Path, seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until, log.read_text()
        time.sleep(0.05)


@pytest.mark.parametrize("launched", [False, True])
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, None)])
def test_a_script_that_is_asked_to_end_leaves(
    tmp_path: Path,
    launched: bool,  # noqa: FBT001 - a parameter of the test
    number: signal.Signals,
    status: int | None,
) -> None:
    command = [*PYTHON, str(tmp_path)]
    if launched:
        command = [*NODE, "--out", str(tmp_path), str(LEAVING), str(tmp_path), "--launched"]
    with started(command, tmp_path) as process:
        wait_for((tmp_path / "strategy").exists, tmp_path / "log")
        process.send_signal(number)
        ended = process.wait(20)
        assert ended == status or status is None, (tmp_path / "log").read_text()
    *_, last = read_trace(tmp_path / "n0.jsonl")
    assert isinstance(last, RunEnded)
    assert last.reason == "left"


def test_others_notice_at_once(tmp_path: Path) -> None:
    """And say so, in plain lines."""
    first, second = tmp_path / "first", tmp_path / "second"
    with started([*PYTHON, str(first)], first):
        wait_for((first / "strategy").exists, first / "log")
        (invitation,) = re.findall(r"its invitation is (\S+)", (first / "log").read_text())
        with started([*PYTHON, str(second), "--join", invitation], second) as process:
            wait_for(lambda: "has the run's model now" in (second / "log").read_text(), second / "log")
            process.terminate()
            process.wait(20)
        wait_for(lambda: "n0 has lost n1; it is alone" in (first / "log").read_text(), first / "log", 20)
        assert "atoll: n0 reaches n1; 2 nodes are online" in (first / "log").read_text()
        assert "atoll: n1 reaches n0; 2 nodes are online" in (second / "log").read_text()
        assert "has lost" not in (second / "log").read_text(), "who leaves has lost nobody"
        reach = [event for event in read_trace(first / "n0.jsonl") if isinstance(event, ReachChanged)]
        assert reach[0].reachable
        assert not reach[-1].reachable
        *_, last = read_trace(second / "n1.jsonl")
        assert isinstance(last, RunEnded)
        assert reach[-1].at < last.at + 2  # both count from when the run began


def test_a_handler_of_the_script_stays(tmp_path: Path) -> None:
    """It may save, and end when it likes."""
    with started([*PYTHON, str(tmp_path), "--handler"], tmp_path) as process:
        wait_for((tmp_path / "strategy").exists, tmp_path / "log")
        process.terminate()
        assert process.wait(20) == 0, (tmp_path / "log").read_text()
    assert (tmp_path / "node").exists()


def test_what_was_there_comes_back() -> None:
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    with atoll.join("none"):
        ours = signal.getsignal(signal.SIGTERM)
        assert callable(ours)
        with pytest.raises(SystemExit) as ended:
            ours(signal.SIGTERM, None)
        assert ended.value.code == 143
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL  # the next one ends the process
    with atoll.join("none"):
        assert callable(signal.getsignal(signal.SIGTERM))
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    run = atoll.join("none")
    mine = signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the script puts another one there
    assert callable(mine)
    run.close()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    signal.signal(signal.SIGTERM, signal.SIG_DFL)

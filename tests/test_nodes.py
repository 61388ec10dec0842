"""`atoll node` as users run it: processes that begin a run, join it, and leave with Ctrl-C."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

COMMAND = [sys.executable, "-m", "atoll"]


def start(folder: Path, name: str, *arguments: str) -> "subprocess.Popen[bytes]":
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            [*COMMAND, "node", *arguments, "--out", name],
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )


def wait_for(what: Callable[[], object], seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until, "it takes too long"
        time.sleep(0.1)


def test_two_machines(tmp_path: Path) -> None:
    first = start(tmp_path, "first", "--listen", "127.0.0.1:0", "--save", "model.safetensors")
    started = [first]
    try:
        log = tmp_path / "first.log"
        wait_for(lambda: "--join" in log.read_text())
        (invitation,) = re.findall(r"--join (\S+)", log.read_text())
        second = start(tmp_path, "second", "--join", invitation)
        started.append(second)
        trace = tmp_path / "second" / "n1.jsonl"
        wait_for(lambda: trace.exists() and '"members":2' in trace.read_text())
        probed = subprocess.run(
            [*COMMAND, "probe", invitation, "--save", "net.toml"], cwd=tmp_path, check=True, capture_output=True
        )
        assert b"net.toml" in probed.stdout
        assert 'names = ["n1"]' in (tmp_path / "net.toml").read_text()
        for process in (second, first):
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0
        assert "Left." in (tmp_path / "second.log").read_text()
        assert (tmp_path / "model.safetensors").stat().st_size > 1000
        for name in ("first/n0", "second/n1"):
            assert '"run_ended"' in (tmp_path / f"{name}.jsonl").read_text().splitlines()[-1]
    finally:
        for process in started:
            process.kill()
            process.wait()

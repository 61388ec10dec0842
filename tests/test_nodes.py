"""`atoll node` as users run it: processes that begin a run, join it, and leave with Ctrl-C."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from atoll.report.results import read_folder
from atoll.trace import Joined, RunStarted, Tested, read_trace
from atoll.world.live.keys import Invitation

COMMAND = [sys.executable, "-m", "atoll"]


def start(folder: Path, name: str, *arguments: str, command: Sequence[str] = COMMAND) -> "subprocess.Popen[bytes]":
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            [*command, "node", *arguments, "--out", name],
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
        [result] = read_folder(tmp_path).results  # of both nodes together
        assert (result.nodes, result.reason) == (2, "left")
    finally:
        for process in started:
            process.kill()
            process.wait()


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def test_a_founder_comes_back(tmp_path: Path) -> None:
    """It alone can be dialled.  It is killed, and started again as before: it is in the run again, and late."""
    address = f"127.0.0.1:{free_port()}"
    founding = ("--listen", address, "--key", "key", "-s", "allreduce:every=4")
    started = [start(tmp_path, "first", *founding)]
    try:
        log = tmp_path / "first.log"
        wait_for(lambda: "--join" in log.read_text())
        (invitation,) = re.findall(r"--join (\S+)", log.read_text())
        started.append(start(tmp_path, "second", "--join", invitation))
        old, new = tmp_path / "first" / "n0.jsonl", tmp_path / "first" / "n0.2.jsonl"
        wait_for(lambda: '"members":2' in old.read_text())
        started[0].kill()
        started[0].wait()
        before = old.read_bytes()

        refused = start(tmp_path, "copy", "--join", invitation, "--key", "other")  # nobody can be asked
        started.append(refused)
        assert refused.wait(60) == 2
        assert "nobody whom the invitation names can be reached" in (tmp_path / "copy.log").read_text()

        started.append(start(tmp_path, "first", *founding))
        wait_for(lambda: new.exists() and '"members":2' in new.read_text())
        told = log.read_text()
        assert "resumes as n0 in run" in told
        assert "remove that file" in told
        (again,) = re.findall(r"--join (\S+)", told)
        assert Invitation.parse(again).secret == Invitation.parse(invitation).secret
        assert old.read_bytes() == before, "the old trace is as it was"
        events = list(read_trace(new))
        assert any(isinstance(event, Joined) for event in events), "it was handed what the other holds"
        runs = {event.run for path in (old, new) for event in read_trace(path) if isinstance(event, RunStarted)}
        assert runs == {Invitation.parse(invitation).run_id}
        assert "refused" not in (tmp_path / "second.log").read_text() + told
        assert "certificate" not in (tmp_path / "second.log").read_text().lower()

        joining = start(tmp_path, "third", "--join", invitation, "--listen", address, "--key", "key")
        started.append(joining)
        assert joining.wait(60) == 2
        assert "another node on this machine uses it" in (tmp_path / "third.log").read_text()
    finally:
        for process in started:
            process.kill()
            process.wait()


def test_a_power_cut_does_not_lose_the_run(tmp_path: Path) -> None:
    """A node alone is killed; with its checkpoint and its key it goes on where it was."""
    arguments = ("--listen", "127.0.0.1:0", "--key", "key", "--checkpoint", "kept", "-s", "allreduce:every=4")
    code = "from atoll.training import keeper; keeper.KEEP_EVERY_S = 0.5; from atoll.cli import main; main()"
    started = [start(tmp_path, "first", *arguments, command=[sys.executable, "-c", code])]
    try:
        old, new = tmp_path / "first" / "n0.jsonl", tmp_path / "first" / "n0.2.jsonl"
        wait_for(lambda: old.exists() and (tmp_path / "kept").exists() and best(old) > 0.8)
        kept = (tmp_path / "kept").stat().st_mtime_ns
        wait_for(lambda: (tmp_path / "kept").stat().st_mtime_ns > kept)  # what was good is in the file
        started[0].kill()
        started[0].wait()
        steps = max(event.steps for event in read_trace(old) if isinstance(event, Tested))
        started.append(start(tmp_path, "first", *arguments))
        wait_for(lambda: new.exists() and best(new) > 0)
        first = next(event for event in read_trace(new) if isinstance(event, Tested))
        assert first.steps > steps / 4, "not from the beginning"
        assert first.measure > best(old) - 0.1
        assert "resumes from the checkpoint kept" in (tmp_path / "first.log").read_text()
    finally:
        for process in started:
            process.kill()
            process.wait()


def best(trace: Path) -> float:
    return max((event.measure for event in read_trace(trace) if isinstance(event, Tested)), default=0.0)

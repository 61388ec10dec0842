import dataclasses
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from atoll.cli import app
from atoll.fuzz import Failure, check, draw_case, minimise, run
from tests.interrupt import interrupt


@pytest.mark.parametrize("first", range(0, 48, 6))
def test_what_must_hold_holds(first: int) -> None:
    for seed in range(first, first + 6):
        case = draw_case(seed)
        assert check(case) is None, case


@pytest.mark.parametrize("seed", [163, 437, 1247, 1342, 1636, 1858])
def test_what_once_failed_holds(seed: int) -> None:
    """docs/results/defects.md says what each found."""
    assert check(draw_case(seed)) is None


@pytest.mark.parametrize("seed", [68, 112])
def test_who_joins_late_and_cut_off_spoils_nothing(seed: int) -> None:
    """Changes that were under way to a joiner were counted twice."""
    assert check(draw_case(seed, ("ssp", "ssp:bound=0,codec=chunk/4", "ssp:codec=int8"))) is None


def test_a_failure_is_made_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were crashes what goes wrong, one of them would be left."""
    seed = next(seed for seed in range(100) if {"crash", "cut"} <= {fault.kind for fault in draw_case(seed).faults})
    monkeypatch.setattr(run, "check", lambda case: "gone" if any(f.kind == "crash" for f in case.faults) else None)
    small = minimise(Failure(draw_case(seed), "gone"))
    assert [fault.kind for fault in small.case.faults] == ["crash"]


def test_the_command() -> None:
    done = CliRunner().invoke(app, ["fuzz", "--seeds", "4", "--jobs", "1", "-s", "allreduce:every=2", "-s", "gossip"])
    assert done.exit_code == 0, done.output
    assert "4 seeds, 0 failures." in done.output
    wrong = CliRunner().invoke(app, ["fuzz", "-s", "nonsense"])
    assert wrong.exit_code != 0


def test_nodes_that_say_nothing_break_no_promise() -> None:
    assert check(dataclasses.replace(draw_case(0), strategy="none")) is None


def test_interrupting_says_what_was_found() -> None:
    command = [sys.executable, "-m", "atoll", "fuzz", "--seeds", "100000", "--jobs", "2", "-s", "allreduce:every=2"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    time.sleep(6)
    told, complaints = interrupt(process)
    assert process.returncode == 130
    assert "of 100000 seeds, 0 failures." in " ".join(told.split())
    assert complaints == ""

import dataclasses
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from atoll import fuzz
from atoll.cli import app
from atoll.fuzz import STRATEGIES, Failure, check, draw_case, minimise
from atoll.strategy import parse_strategy
from atoll.world.faults import parse_faults
from tests.interrupt import interrupt


@given(st.integers(0, 10**6))
def test_a_seed_is_a_case_that_can_be_written_down(seed: int) -> None:
    case = draw_case(seed)
    assert case == draw_case(seed)
    parse_strategy(case.strategy)
    assert parse_faults(case.script, case.net.node_names) == case.faults


@pytest.mark.parametrize("first", range(0, 48, 6))
def test_what_must_hold_holds(first: int) -> None:
    for seed in range(first, first + 6):
        case = draw_case(seed)
        assert check(case) is None, case


def test_a_failure_is_made_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were crashes what goes wrong, one of them would be left."""
    seed = next(seed for seed in range(100) if {"crash", "cut"} <= {fault.kind for fault in draw_case(seed).faults})
    monkeypatch.setattr(fuzz, "check", lambda case: "gone" if any(f.kind == "crash" for f in case.faults) else None)
    small = minimise(Failure(draw_case(seed), "gone"))
    assert [fault.kind for fault in small.case.faults] == ["crash"]


def test_counting_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The invariants can fail: somebody who says that it did one step more than it did is noticed."""
    honest = fuzz._Drawn.compute_gradient

    def boast(replica: fuzz._Drawn) -> None:
        honest(replica)
        replica.work[replica.rank] += 1

    monkeypatch.setattr(fuzz._Drawn, "compute_gradient", boast)
    case = dataclasses.replace(draw_case(0), strategy=STRATEGIES[0], faults=())
    assert "counts" in (check(case) or "")


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

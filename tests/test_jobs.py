import math
import os
import signal
import time

import pytest

from atoll.jobs import do_all


def test_everything_is_done_once() -> None:
    done = [each for each in do_all(math.sqrt, range(9), jobs=2) if each is not None]
    assert sorted(done) == [(number, math.sqrt(number)) for number in range(9)]


def test_what_goes_wrong_is_told_here() -> None:
    with pytest.raises(ValueError, match=r"math domain error|expected a nonnegative"):
        list(do_all(math.sqrt, [-1.0], jobs=1))


def test_leaving_early_ends_what_is_running() -> None:
    began = time.monotonic()
    work = do_all(time.sleep, [0.0, 60.0, 60.0], jobs=2)
    assert next(each for each in work if each is not None) == (0.0, None)
    work.close()
    assert time.monotonic() - began < 30


def test_one_failure_does_not_discard_the_rest() -> None:
    failures: list[tuple[float, str]] = []
    work = do_all(
        math.sqrt, [4.0, -1.0, 9.0], jobs=1, on_failure=lambda item, error: failures.append((item, str(error)))
    )
    assert [each for each in work if each is not None] == [(4.0, 2.0), (9.0, 3.0)]
    [(item, _)] = failures
    assert item == -1.0


def _die_of_three(number: int) -> int:
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def test_a_process_that_is_killed_does_not_discard_the_rest() -> None:
    failures: list[tuple[int, str]] = []
    work = do_all(_die_of_three, range(6), jobs=2, on_failure=lambda item, error: failures.append((item, str(error))))
    assert sorted(each for each in work if each is not None) == [(n, n) for n in (0, 1, 2, 4, 5)]
    [(item, why)] = failures
    assert item == 3
    assert "killed" in why

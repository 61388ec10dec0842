import math
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

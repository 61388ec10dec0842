from atoll.membership.progress import FIRST_STEP_S, STUCK_S, STUCK_STEPS, Progress


def test_training_that_stands_still_is_noticed() -> None:
    steps = [0]
    pace = Progress(lambda: steps[0], 0.0)
    before = pace.has_begun
    assert not pace.is_stuck(FIRST_STEP_S - 1), "the first step may take long"
    steps[0] = 1
    assert not pace.is_stuck(1.0)
    assert (before, pace.has_begun) == (False, True)
    assert not pace.is_stuck(1.0 + STUCK_S - 0.1)
    assert pace.is_stuck(1.0 + STUCK_S + 0.1)
    steps[0] = 2
    assert not pace.is_stuck(20.0), "it moves again"


def test_slow_steps_are_waited_for() -> None:
    steps = [0]
    pace = Progress(lambda: steps[0], 0.0)
    for step in range(1, 6):
        steps[0] = step
        assert not pace.is_stuck(10.0 * step)
    assert not pace.is_stuck(50.0 + 10 * STUCK_STEPS - 1)
    assert pace.is_stuck(50.0 + 10 * STUCK_STEPS + 1)


def test_who_waits_for_an_exchange_stands_still_on_purpose() -> None:
    steps = [1]
    pace = Progress(lambda: steps[0], 0.0)
    pace.waits = 1
    assert not pace.is_stuck(1000.0)
    pace.waits = 0
    assert pace.is_stuck(1000.0 + FIRST_STEP_S + 1)

import logging

import pytest

from atoll.world.live.complaints import AGAIN_S, MOST_KNOWN, Complaints


def test_the_same_is_said_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    said: list[tuple[str, str]] = []
    now = 0.0
    complaints = Complaints(lambda who, why: said.append((who, why)), clock=lambda: now)
    with caplog.at_level(logging.WARNING):
        for _ in range(100):
            complaints.say("n1", "another run")
        complaints.say("n1", "another reason")
        complaints.say("n2", "another run")
        now = AGAIN_S
        complaints.say("n1", "another run")
    assert said == [("n1", "another run"), ("n1", "another reason"), ("n2", "another run"), ("n1", "another run")]
    assert caplog.messages[0] == "n1 is refused: another run"
    assert len(caplog.messages) == 4


def test_what_is_known_is_bounded() -> None:
    complaints = Complaints(lambda _who, _why: None)
    for number in range(3 * MOST_KNOWN):
        complaints.say(f"a{number}", "x")
    assert len(complaints._said) == MOST_KNOWN

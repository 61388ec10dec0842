"""What a round knows of what it sent."""

import pytest

from atoll.collectives import SendLog


def test_the_quickest_stretch_says_what_a_byte_takes() -> None:
    log = SendLog()
    log.add(0.0, 1.0, 3000)
    log.add(0.5, 2.0, 1000)  # goes on while the first is under way: one stretch of 4000 bytes in 2 s
    log.add(5.0, 6.0, 4000)
    log.add(9.0, 9.1, 1000)  # too little to say much
    assert log.seconds_a_byte(least_bytes=2000) == pytest.approx(1 / 4000)
    assert log.seconds_a_byte(least_bytes=1000) == pytest.approx(0.1 / 1000)


def test_where_all_stretches_are_short_they_count_together() -> None:
    log = SendLog()
    log.add(0.0, 1.0, 1000)
    log.add(2.0, 2.5, 1500)
    assert log.seconds_a_byte(least_bytes=2000) == pytest.approx(1.5 / 2500)
    assert log.seconds_a_byte(least_bytes=5000) is None


def test_nothing_sent_says_nothing() -> None:
    log = SendLog()
    assert log.seconds_a_byte(least_bytes=1) is None


def test_where_bytes_take_no_time_that_is_known() -> None:
    log = SendLog()
    log.add(1.0, 1.0, 100)
    assert log.seconds_a_byte(least_bytes=200) is None
    assert log.seconds_a_byte(least_bytes=1) == 0.0
    log.add(2.0, 3.0, 100)
    assert log.seconds_a_byte(least_bytes=1) == pytest.approx(1 / 100)  # one that took time says more

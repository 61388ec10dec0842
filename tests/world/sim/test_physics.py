import math

import pytest

from atoll.world.sim.physics import IDEAL, INITIAL_WINDOW_BYTES, Physics, idle_window, loss_limit, notice_s


def test_loss_limit() -> None:
    # RFC 9438, table 1 (C = 0.4, RTT 0.1 s): average windows in segments.
    for loss, segments in ((1e-2, 12), (1e-3, 38), (1e-4, 187), (1e-5, 1054), (1e-6, 5926)):
        assert loss_limit(loss, 0.1) * 0.1 / 1448 == pytest.approx(segments, rel=0.03)
    assert loss_limit(0, 0.1) == math.inf


def test_headers() -> None:
    assert Physics().wire_bytes(1448) == 1500
    assert IDEAL.wire_bytes(1448) == 1448


def test_a_window_halves_while_idle() -> None:
    window = 16.0 * INITIAL_WINDOW_BYTES
    assert idle_window(window, 0.1, 0.05) == window
    assert idle_window(window, 0.45, 0.05) == window / 4
    assert idle_window(window, 1e9, 0.05) < 1


def test_noticing_takes_half_a_second_or_four_round_trips() -> None:
    assert notice_s(0.02) == 0.5
    assert notice_s(3.0) == 12

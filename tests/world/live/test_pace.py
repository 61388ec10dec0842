"""Against a link that is a queue before a pipe."""

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.world.live.pace import QUEUE_S, Pace, Sent


class Link:
    """A rate, a delay there and one back, and a queue that never ends."""

    def __init__(self, rate: float, round_trip_s: float) -> None:
        self.rate = rate
        self.round_trip_s = round_trip_s
        self.now = 0.0
        self.free_at = 0.0
        self.under_way: list[tuple[float, Sent]] = []
        self.delivered = 0
        self.longest_queue_s = 0.0

    def run(self, pace: Pace, until: float) -> None:
        while self.now < until:
            while pace.under_way < pace.window:
                sent = pace.send(pace.chunk, self.now, limited=False)
                self.longest_queue_s = max(self.longest_queue_s, self.free_at - self.now)
                self.free_at = max(self.free_at, self.now) + sent.size / self.rate
                self.under_way.append((self.free_at + self.round_trip_s, sent))
            self.now, sent = self.under_way.pop(0)
            pace.acknowledge(sent, self.now)
            self.delivered += sent.size


@given(st.sampled_from([1e5, 1e6, 6e6, 1e8, 2e9]), st.sampled_from([0.0002, 0.01, 0.1, 0.4]))
@settings(max_examples=20, deadline=None)
def test_links_are_full_and_queues_are_short(rate: float, round_trip_s: float) -> None:
    pace = Pace(0.0)
    link = Link(rate, round_trip_s)
    link.run(pace, 20 * round_trip_s + 2)
    assert pace.rate == pytest.approx(rate, rel=0.1)
    before, began, link.longest_queue_s = link.delivered, link.now, 0.0
    link.run(pace, link.now + 10 * round_trip_s + 1)
    assert link.delivered - before > 0.97 * rate * (link.now - began)
    least = (1 << 16) / rate  # a chunk or two must be under way on any link
    assert link.longest_queue_s < QUEUE_S + 2 * least + 0.02


def test_a_link_that_gets_faster_or_slower_is_noticed() -> None:
    pace = Pace(0.0)
    link = Link(1e6, 0.05)
    link.run(pace, 5)
    link.rate = 1e7
    link.run(pace, 10)
    assert pace.rate == pytest.approx(1e7, rel=0.1)
    link.rate = 1e6
    link.run(pace, 20)
    assert pace.rate == pytest.approx(1e6, rel=0.2)
    link.longest_queue_s = 0.0
    link.run(pace, 22)
    assert link.longest_queue_s < 0.1


def test_lanes_that_share_a_link_share_its_queue() -> None:
    """Each finds the queue that all of them make."""
    paces = [Pace(0.0) for _ in range(4)]
    rate, round_trip_s = 5e6, 0.02
    now, free_at = 0.0, 0.0
    under_way: list[tuple[float, int, Sent]] = []
    longest = 0.0
    while now < 12:
        for number, pace in enumerate(paces):
            while pace.under_way < pace.window:
                sent = pace.send(pace.chunk, now, limited=False)
                free_at = max(free_at, now) + sent.size / rate
                under_way.append((free_at + round_trip_s, number, sent))
                if now > 8:
                    longest = max(longest, free_at - now)
        now, number, sent = under_way.pop(0)
        paces[number].acknowledge(sent, now)
    assert longest < 0.12
    assert sum(pace.rate for pace in paces) > 0.9 * rate


def delivered_share(pace: Pace, rate: float, round_trip_s: float) -> float:
    """The share of a link's rate that is used if a packet is lost every 0.3 s, and sent again a round trip later."""
    now, free_at, delivered = 0.0, 0.0, 0
    under_way: deque[tuple[float, Sent]] = deque()
    while now < 20:
        while pace.under_way < pace.window:
            sent = pace.send(pace.chunk, now, limited=False)
            free_at = max(free_at, now) + sent.size / rate
            arrives = free_at + round_trip_s
            lost_at = arrives - arrives % 0.3
            under_way.append((max(arrives, lost_at + round_trip_s), sent))  # in order: the rest waits for the lost one
        now, sent = under_way.popleft()
        pace.acknowledge(sent, now)
        delivered += sent.size
    return delivered / (rate * now)


def test_a_connection_that_limits_its_queue_is_kept_busy_while_a_lost_packet_is_sent_again() -> None:
    pace = Pace(0.0)
    pace.limits_its_queue = True
    assert delivered_share(pace, 12.5e6, 0.08) > 0.95
    assert delivered_share(Pace(0.0), 12.5e6, 0.08) < 0.93  # the others run out of data


def test_several_connections_have_room_for_several() -> None:
    pace = Pace(0.0)
    one = pace.window
    pace.strands = 8
    assert pace.window == 8 * one, "of a slow path too: each of them loses packets of its own"

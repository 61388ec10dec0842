"""Messages arrive whole, once and in order, whatever happens to what carries them."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import FrameError
from atoll.world.live.boxes import Inbox, Outbox, Outgoing
from atoll.world.live.frames import Head, Kind, Opening


def _outgoing(body: bytes, loop: asyncio.AbstractEventLoop, number: int = 0) -> Outgoing:
    return Outgoing(Opening(f"channel {number}", b"head", len(body)).pack(), body, loop.create_future())


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.binary(max_size=60)),
        st.tuples(st.just("send"), st.integers(1, 40)),
        st.tuples(st.just("lose"), st.integers(0, 5)),
        st.tuples(st.just("take back"), st.integers(0, 9)),
    ),
    max_size=60,
)


@given(ACTIONS)
def test_whatever_happens(actions: list[tuple[str, bytes | int]]) -> None:
    """Frames are lost from some moment on, connections end, sends are taken back: what arrives is what was put."""
    loop = asyncio.new_event_loop()
    try:
        outbox, inbox = Outbox(lambda: None), Inbox("a")
        put: list[Outgoing] = []
        bodies: list[bytes] = []
        arrived: list[bytes] = []
        under_way = 0

        def deliver(most: int) -> bool:
            chunk = outbox.next(most)
            if chunk is None:
                return False
            if under_way:
                return True
            payload = b"".join(chunk.payload)
            head = Head(chunk.kind, len(payload), chunk.number, chunk.offset)
            room = inbox.place(head)
            if room is not None:
                room[:] = payload
            whole = inbox.take(head, room if room is not None else memoryview(payload), 0.0)
            if whole:
                arrived.append(bytes(whole[0].body))
            return True

        for what, value in actions:
            if what == "put":
                assert isinstance(value, bytes)
                put.append(_outgoing(value, loop, len(put)))
                bodies.append(value)
                outbox.put(put[-1])
            elif what == "send":
                assert isinstance(value, int)
                deliver(value)
            elif what == "lose":
                assert isinstance(value, int)
                under_way = 1
                for _ in range(value):
                    deliver(7)
                under_way = 0
                outbox.resume(inbox.position)
            elif put:
                assert isinstance(value, int)
                outbox.take_back(put[value % len(put)])
        while deliver(16):
            pass
        outbox.acknowledge(inbox.position)
        assert len(outbox) == 0
        expected = [body for body, message in zip(bodies, put, strict=True) if not message.void]
        assert arrived == expected
        assert all(message.left.done() for message in put)
    finally:
        loop.close()


def test_what_was_not_sent_cannot_be_acknowledged() -> None:
    outbox = Outbox(lambda: None)
    with pytest.raises(FrameError, match="is acknowledged"):
        outbox.acknowledge((3, 0))
    with pytest.raises(FrameError, match="to go on from"):
        outbox.resume((3, 0))


@pytest.mark.parametrize(
    "head",
    [
        Head(Kind.OPEN, 0, 5, 0),
        Head(Kind.PART, 4, 0, 0),
        Head(Kind.PART, 4, 0, 2**63),
    ],
)
def test_what_leaves_a_gap_is_refused(head: Head) -> None:
    with pytest.raises(FrameError):
        Inbox("a").take(head, memoryview(bytes(head.size)), 0.0)


def test_more_than_was_announced_is_refused() -> None:
    inbox = Inbox("a")
    opening = Opening("x", b"", 10).pack()
    assert inbox.take(Head(Kind.OPEN, len(opening), 0, 0), memoryview(opening), 0.0) is None
    with pytest.raises(FrameError):
        inbox.place(Head(Kind.PART, 11, 0, 0))
    with pytest.raises(FrameError):
        inbox.take(Head(Kind.PART, 11, 0, 0), memoryview(bytes(11)), 0.0)


def test_who_begins_anew_gets_all_that_waits() -> None:
    loop = asyncio.new_event_loop()
    try:
        outbox = Outbox(lambda: None)
        for number in range(3):
            outbox.put(_outgoing(b"%d" % number, loop))
        for _ in range(2):
            outbox.next(10)
        outbox.acknowledge((1, 0))
        outbox.restart()
        chunk = outbox.next(10)
        assert chunk is not None
        assert (chunk.number, bytes(chunk.payload[1])) == (0, b"1")
    finally:
        loop.close()

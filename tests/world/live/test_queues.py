"""Messages arrive whole, once and in order, whatever happens to what carries them."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import FrameError
from atoll.world.live.frames import Head, Kind, Opening
from atoll.world.live.queues import Inbox, Outbox, Outgoing


def _outgoing(body: bytes, loop: asyncio.AbstractEventLoop, number: int = 0) -> Outgoing:
    return Outgoing(Opening(f"channel {number}", b"head", len(body)).pack(), body, loop.create_future())


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.binary(max_size=60)),
        st.tuples(st.just("send"), st.integers(1, 40)),
        st.tuples(st.just("lose"), st.integers(0, 5)),
        st.tuples(st.just("take_back"), st.integers(0, 9)),
        st.tuples(st.just("replace"), st.integers(0, 5)),
        st.tuples(st.just("acknowledge"), st.just(0)),
    ),
    max_size=60,
)


class _Line:
    """An outbox, an inbox, and what carries frames from one to the other."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.outbox, self.inbox = Outbox(lambda: None), Inbox("a")
        self.put_in: list[Outgoing] = []
        self.bodies: list[bytes] = []
        self.arrived: list[bytes] = []

    def put(self, body: bytes) -> None:
        self.put_in.append(_outgoing(body, self._loop, len(self.put_in)))
        self.bodies.append(body)
        self.outbox.put(self.put_in[-1])

    def send(self, most: int) -> bool:
        chunk = self.outbox.next(most)
        if chunk is None:
            return False
        payload = b"".join(chunk.payload)
        head = Head(chunk.kind, len(payload), chunk.number, chunk.offset)
        room = self.inbox.place(head)
        if room is not None:
            room[:] = payload
        whole = self.inbox.take(head, room if room is not None else memoryview(payload), 0.0)
        if whole:
            self.arrived.append(bytes(whole[0].body))
        return True

    def lose(self, chunks: int) -> None:
        """Some are lost, and the connection with them."""
        for _ in range(chunks):
            self.outbox.next(7)
        self.outbox.resume(self.inbox.position)

    def replace(self, chunks: int) -> None:
        """A connection takes another's place; more has come over the old one since the receiver said how far it is."""
        said = self.inbox.position
        for number in range(chunks):
            self.send(5 + 3 * number)
        self.outbox.resume(said)

    def acknowledge(self, _: int) -> None:
        self.outbox.acknowledge(self.inbox.position)

    def take_back(self, which: int) -> None:
        if self.put_in:
            self.outbox.take_back(self.put_in[which % len(self.put_in)])


@given(ACTIONS)
def test_whatever_happens(actions: list[tuple[str, bytes | int]]) -> None:
    """What arrives is what was put."""
    loop = asyncio.new_event_loop()
    try:
        line = _Line(loop)
        for what, value in actions:
            getattr(line, what)(value)
        while line.send(16):
            pass
        line.acknowledge(0)
        assert len(line.outbox) == 0
        kept = [body for body, message in zip(line.bodies, line.put_in, strict=True) if not message.void]
        assert _is_part(kept, line.arrived), "nothing that was put is missing"
        assert _is_part(line.arrived, line.bodies), "in order, once; some may have arrived before they were taken back"
        assert all(message.left.done() for message in line.put_in)
    finally:
        loop.close()


def _is_part(some: list[bytes], of_all: list[bytes]) -> bool:
    """Whether they are all in it, in that order."""
    left = iter(of_all)
    return all(each in left for each in some)


def test_a_message_says_when_it_has_arrived() -> None:
    loop = asyncio.new_event_loop()
    try:
        outbox, said = Outbox(lambda: None), list[str]()
        message, gone = _outgoing(b"body", loop), _outgoing(b"body", loop)
        message.arrived, gone.arrived = lambda: said.append("arrived"), lambda: said.append("taken back")
        for each in (message, gone):
            outbox.put(each)
        chunk = outbox.next(10)
        assert chunk is not None
        outbox.left(chunk)
        assert message.left.done()
        assert not said, "the system has it, and may keep it for long"
        outbox.take_back(gone)
        outbox.next(10)
        outbox.acknowledge((2, 0))
        assert said == ["arrived"]
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

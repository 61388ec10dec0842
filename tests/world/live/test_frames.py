import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import FrameError
from atoll.world.live.frames import (
    HEAD_BYTES,
    LARGEST,
    Head,
    Kind,
    Opening,
    head_of,
    parse_head,
    parse_json,
    parse_opening,
)
from atoll.world.live.tunnel import pack_names, parse_envelope

NUMBERS = st.integers(0, 2**64 - 1)


@pytest.mark.parametrize("encrypted", [False, True])
@given(
    kind=st.sampled_from([Kind.PART, Kind.OPEN, Kind.NEWS]),
    number=NUMBERS,
    offset=NUMBERS,
    payload=st.binary(max_size=300),
)
def test_what_is_packed_is_parsed(*, kind: Kind, number: int, offset: int, payload: bytes, encrypted: bool) -> None:
    head = parse_head(head_of(kind, number, offset, [payload], encrypted=encrypted))
    assert (head.kind, head.size, head.number, head.offset) == (kind, len(payload), number, offset)
    head.check([payload], encrypted=encrypted)


@given(st.binary(min_size=1, max_size=300), st.data())
def test_one_wrong_bit_is_noticed(payload: bytes, data: st.DataObject) -> None:
    frame = bytearray(head_of(Kind.PART, 3, 5, [payload], encrypted=False) + payload)
    bit = data.draw(st.integers(0, 8 * len(frame) - 1))
    frame[bit // 8] ^= 1 << bit % 8
    with pytest.raises(FrameError):  # noqa: PT012 - either of them may notice
        head = parse_head(bytes(frame[:HEAD_BYTES]))
        if head.size != len(payload):
            raise FrameError("another length")
        head.check([frame[HEAD_BYTES:]], encrypted=False)


@given(st.binary(max_size=2 * HEAD_BYTES))
def test_any_bytes_are_a_head_or_refused(data: bytes) -> None:
    try:
        head = parse_head(data)
    except FrameError:
        return
    assert isinstance(head, Head)
    assert head.size <= LARGEST[head.kind]


@given(st.binary(min_size=HEAD_BYTES, max_size=HEAD_BYTES), st.integers(0, 2**32 - 1))
def test_no_length_is_believed_beyond_what_a_kind_may_have(rest: bytes, size: int) -> None:
    data = b"At\x01" + rest[3:4] + size.to_bytes(4, "big") + rest[8:]
    try:
        head = parse_head(data)
    except FrameError:
        return
    assert head.size <= LARGEST[head.kind] <= 8 << 20, "a report of all nodes is the longest"


def test_two_gigabytes_are_refused() -> None:
    data = b"At\x01\x07" + (2 << 30).to_bytes(4, "big") + bytes(20)
    with pytest.raises(FrameError, match="at most"):
        parse_head(data)


@given(st.text(max_size=40), st.binary(max_size=100), st.binary(max_size=200), st.integers(0, 1000))
def test_openings(channel: str, head: bytes, piece: bytes, more: int) -> None:
    opening = Opening(channel, head, len(piece) + more)
    found, rest = parse_opening(memoryview(opening.pack() + piece))
    assert (found, bytes(rest)) == (opening, piece)


@given(st.binary(max_size=120))
def test_any_bytes_are_an_opening_or_refused(data: bytes) -> None:
    try:
        opening, piece = parse_opening(memoryview(data))
    except FrameError:
        return
    assert len(piece) <= opening.body_bytes


@given(st.text(max_size=20), st.text(max_size=20), st.binary(min_size=HEAD_BYTES, max_size=99))
def test_envelopes(sender: str, receiver: str, frame: bytes) -> None:
    envelope = parse_envelope(memoryview(pack_names(sender, receiver) + frame))
    assert (envelope.sender, envelope.receiver, bytes(envelope.frame)) == (sender, receiver, frame)


@given(st.binary(max_size=120))
def test_any_bytes_are_an_envelope_or_refused(data: bytes) -> None:
    try:
        envelope = parse_envelope(memoryview(data))
    except FrameError:
        return
    assert pack_names(envelope.sender, envelope.receiver) + bytes(envelope.frame) == data
    assert len(envelope.frame) >= HEAD_BYTES


@given(
    st.one_of(st.binary(max_size=60), st.recursive(st.none(), st.lists).map(lambda value: json.dumps(value).encode()))
)
def test_what_is_no_object_is_refused(data: bytes) -> None:
    with pytest.raises(FrameError):
        parse_json(data)


def test_nesting_without_end_is_refused() -> None:
    with pytest.raises(FrameError):
        parse_json(b"[" * 100_000)

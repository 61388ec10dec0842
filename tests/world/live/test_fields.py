import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import FrameError
from atoll.world.live.fields import MOST_ADDRESSES, Fields, parse_addresses, printable

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(ANYTHING)
def test_a_field_is_what_it_should_be_or_refused(value: object) -> None:
    fields = Fields({"x": value}, "TEST frame")

    def text() -> object:
        return fields.text("x", most=3)

    def whole() -> object:
        return fields.whole("x", 0, 10)

    for read, fits in (
        (text, isinstance(value, str) and len(value) <= 3),
        (whole, type(value) is int and 0 <= value <= 10),
        (lambda: fields.number("x"), type(value) in (int, float) and 0 <= value <= 1e9),  # type: ignore[operator]
        (lambda: fields.table("x"), isinstance(value, dict)),
    ):
        if fits:
            assert read() == value
        else:
            with pytest.raises(FrameError, match="malformed TEST frame: x is"):
                read()


def test_a_missing_field_is_named() -> None:
    with pytest.raises(FrameError, match="malformed HELLO frame: life is None: expected a whole number from 1 to 9"):
        Fields({}, "HELLO frame").whole("life", 1, 9)


@pytest.mark.parametrize(
    "number", [math.inf, -math.inf, math.nan, -1, 10**400, True, "1"], ids=lambda each: repr(each)[:9]
)
def test_a_number_that_is_none(number: object) -> None:
    with pytest.raises(FrameError):
        Fields({"x": number}, "TEST frame").number("x")
    with pytest.raises(FrameError):
        Fields({"x": {"a": number}}, "TEST frame").numbers("x")


def test_addresses() -> None:
    assert parse_addresses([["host", 7700], ["::1", 1]], "x") == [("host", 7700), ("::1", 1)]
    assert len(parse_addresses([["host", 7]] * 100, "x")) == MOST_ADDRESSES


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        "host:1",
        {"host": 1},
        [["host"]],
        [["host", 1, 2]],
        [["", 1]],
        [["x" * 254, 1]],
        [["a b", 1]],
        [["a\0b", 1]],
        [["müll", 1]],
        [[b"host", 1]],
        [["host", 0]],
        [["host", 65536]],
        [["host", "7700"]],
        [["host", 1.0]],
        [["host", True]],
    ],
    ids=repr,
)
def test_an_address_that_is_none(wrong: object) -> None:
    with pytest.raises(FrameError, match=r"^x: "):
        parse_addresses(wrong, "x")


def test_a_log_line_stays_one_line() -> None:
    assert printable("a\nb\x1b[2J" + "c" * 100, 10) == "a?b?[2Jccc…"

"""What a run is about, as others say it: typed and bounded."""

import pytest

from atoll.errors import UserError
from atoll.runs.card import Card

GOOD: dict[str, object] = {"task": "digits", "strategy": "allreduce:every=4", "seats": 3}


def test_a_card_is_read_as_it_was_written() -> None:
    assert Card.read(GOOD).names == ("n0", "n1", "n2")


@pytest.mark.parametrize(
    "wrong",
    [
        {"task": 3},
        {"task": "x" * 5000},
        {"strategy": ["allreduce"]},
        {"shards": None},
        {"seed": 1.5},
        {"seed": 2**70},
        {"parameters": "many"},
        {"seats": True},
        {"seats": 251},
        {"islands": {}},
        {"colour": "blue"},
    ],
    ids=str,
)
def test_a_wrong_field_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UserError):
        Card.read({**GOOD, **wrong})

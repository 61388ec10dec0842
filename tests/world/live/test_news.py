import json

import pytest

from atoll.errors import FrameError
from atoll.world.live.frames import LARGEST, Kind
from atoll.world.live.keys import Address
from atoll.world.live.news import News

NAMES = ("a", "b")
LINK = {"round_trip_s": 0.1, "rate": 1e6}
NEWS = News(
    reaches={"a": 0.1},
    addresses={"a": [("h", 1)], "b": []},
    said={"a": [("h", 2)]},
    step_s=0.5,
    links={"a": LINK},
)


def test_what_is_told_is_read() -> None:
    assert News.parse(json.loads(NEWS.pack()), NAMES) == NEWS


def test_what_is_said_of_nobody_is_left_out() -> None:
    told = json.loads(NEWS.pack())
    for key in ("reaches", "addresses", "said", "links"):
        told[key]["nobody"] = told[key]["a"]
    assert News.parse(told, NAMES) == NEWS


@pytest.mark.parametrize("key", ["reaches", "addresses", "said", "links", "step_s"])
@pytest.mark.parametrize("wrong", [None, 3e9, "x", [], {"a": "x" * 600_000}, {"a": {}}, {"a": [["x" * 600_000, 1]]}])
def test_a_wrong_field_is_refused(key: str, wrong: object) -> None:
    with pytest.raises(FrameError, match="malformed NEWS frame"):
        News.parse({**json.loads(NEWS.pack()), key: wrong}, NAMES)


def test_the_largest_run_fits_into_a_frame() -> None:
    names = [f"n{number}" for number in range(250)]
    addresses: list[Address] = [("x" * 253, 65535)] * 8
    told = News(
        reaches=dict.fromkeys(names, 0.123456),
        addresses=dict.fromkeys(names, addresses),
        said=dict.fromkeys(names, addresses),
        step_s=1 / 3,
        links={name: {"round_trip_s": 0.123456, "rate": 1e9 / 3} for name in names},
    )
    assert len(told.pack()) <= LARGEST[Kind.NEWS]
    report = {"nodes": {name: {"step_s": 1 / 3, "links": told.links} for name in names}, "card": {}}
    assert len(json.dumps(report)) <= LARGEST[Kind.REPORT]

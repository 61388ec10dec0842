import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import TraceError
from atoll.trace import Event, LinkChanged, RunStarted, Tested, Trace, TraceTail, read_trace


@dataclass(frozen=True, kw_only=True, slots=True)
class Everything(Event):
    """Has a field of each type that events may have."""

    name: str
    count: int
    share: float
    yes: bool
    names: tuple[str, ...]
    shares: dict[str, float]
    maybe: float | None


times = st.floats(0, 1e6).map(lambda value: round(value, 6))
texts = st.text(st.characters(exclude_categories=["Cs"]))


@given(
    st.lists(
        st.builds(
            Everything,
            at=times,
            name=texts,
            count=st.integers(),
            share=times,
            yes=st.booleans(),
            names=st.lists(texts).map(tuple),
            shares=st.dictionaries(texts, times),
            maybe=st.none() | times,
        )
    )
)
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, events: list[Everything]) -> None:
    path = tmp_path_factory.mktemp("traces") / "trace.jsonl"
    with Trace(path) as trace:
        for event in events:
            trace.record(event)
    assert list(read_trace(path)) == events


def write_two(path: Path) -> None:
    with Trace(path) as trace:
        trace.record(LinkChanged(at=1.0, link="a~b", up=False))
        trace.record(LinkChanged(at=2.123456789, link="a~b", up=True))


def test_is_lines_of_json(tmp_path: Path) -> None:
    write_two(tmp_path / "t")
    lines = (tmp_path / "t").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"atoll_trace": 1},
        {"kind": "link_changed", "at": 1.0, "link": "a~b", "up": False},
        {"kind": "link_changed", "at": 2.123457, "link": "a~b", "up": True},
    ]


def test_a_run_that_died_leaves_a_readable_trace(tmp_path: Path) -> None:
    write_two(tmp_path / "t")
    whole = (tmp_path / "t").read_bytes()
    header = whole.index(b"\n") + 1
    for length in range(header, len(whole)):
        (tmp_path / "torn").write_bytes(whole[:length])
        assert len(list(read_trace(tmp_path / "torn"))) == whole[header:length].count(b"\n")


def test_is_written_as_the_run_goes(tmp_path: Path) -> None:
    trace = Trace(tmp_path / "t")
    for n in range(1000):
        trace.record(LinkChanged(at=float(n), link="a~b", up=True))
    assert len(list(read_trace(tmp_path / "t"))) >= 800
    trace.close()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a trace of Atoll"),
        ("hello\n", "not a trace of Atoll"),
        ('{"atoll_trace": 99}\n', "version 99; this Atoll reads version 1"),
        ('{"atoll_trace": 1}\nhello\n', "line 2: expected a JSON object with a 'kind', not 'hello'"),
        (
            '{"atoll_trace": 1}\n{"kind": "link_changed", "at": 1.0, "link": "x"}\n',
            "Object missing required field `up`",
        ),
        (
            '{"atoll_trace": 1}\n{"kind": "link_changed", "at": 1.0, "link": "x", "up": 3}\n',
            "Expected `bool`, got `int` - at `$.up`",
        ),
    ],
)
def test_what_is_wrong_is_told(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "t").write_text(text)
    with pytest.raises(TraceError) as refused:
        list(read_trace(tmp_path / "t"))
    assert message in str(refused.value)


def test_a_trace_that_is_older_than_a_field_is_read(tmp_path: Path) -> None:
    """Fields that were added later have defaults."""
    old = {"kind": "run_started", "at": 0.0, "atoll": "0", "world": "live", "network": "live", "nodes": ["a"]}
    line = json.dumps({**old, "links": [], "seed": 0})
    (tmp_path / "t").write_text(f'{{"atoll_trace": 1}}\n{line}\n')
    (found,) = read_trace(tmp_path / "t")
    assert isinstance(found, RunStarted)
    assert found.run == ""


def test_what_a_newer_version_has_added_is_skipped(tmp_path: Path) -> None:
    """A kind, and a field of a kind that is known."""
    known = '{"kind": "link_changed", "at": 1.0, "link": "x", "up": true, "colour": {"of": ["it"]}}'
    (tmp_path / "t").write_text(f'{{"atoll_trace": 1}}\n{{"kind": "moon_rose", "at": 0.5, "moon": 3}}\n{known}\n')
    assert list(read_trace(tmp_path / "t")) == [LinkChanged(at=1.0, link="x", up=True)]


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        list(read_trace(tmp_path / "none"))


def test_a_tail_reads_whole_lines_as_they_come(tmp_path: Path) -> None:
    tail = TraceTail(tmp_path / "t", Tested)
    assert list(tail.look()) == []  # not there yet
    first = Tested(at=1.0, node="a", steps=1, measure=0.5, sent_bytes=0)
    with Trace(tmp_path / "t") as trace:
        trace.record(LinkChanged(at=0.5, link="x", up=False))
        trace.record(first)
        trace.flush()
        assert list(tail.look()) == [first]
        with (tmp_path / "t").open("a") as torn:
            torn.write('{"kind":"tested","at":2.0')
        assert list(tail.look()) == []

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import StrategyError, TaskError
from atoll.settings import Count, NumberRange, Setting, parse_settings, parse_size, settings_of, write_settings


@dataclass(frozen=True)
class Example:
    every: Count = 4
    share: Annotated[float, NumberRange(0, 1)] = 0.5
    via: Literal["ring", "tree"] = "ring"
    overlap: bool = False


SETTINGS = settings_of(Example)


def read(text: str) -> dict[str, Any]:
    return parse_settings(text, SETTINGS, "here", StrategyError)


def test_fields_and_keywords_are_settings() -> None:
    def example(*, every: Count = 4, via: Literal["ring", "tree"] = "ring") -> None: ...

    assert settings_of(example) == (SETTINGS[0], SETTINGS[2])
    assert [setting.name for setting in SETTINGS] == ["every", "share", "via", "overlap"]


def test_words_alone() -> None:
    assert read("tree,overlap,every=2") == {"via": "tree", "overlap": True, "every": 2}
    assert read("") == {}


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "every": st.integers(1, 10**6),
            "share": st.sampled_from([0.0, 0.25, 0.5, 1.0]),
            "via": st.sampled_from(["ring", "tree"]),
            "overlap": st.booleans(),
        },
    )
)
def test_what_is_written_can_be_read(values: dict[str, Any]) -> None:
    """But for what is a default anyway."""
    assert Example(**read(write_settings(values, SETTINGS))) == Example(**values)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("evry=2", "here: there is no setting 'evry'; did you mean 'every'?"),
        ("every=0", "here, every: expected a whole number of at least 1, not '0'"),
        ("share=2", "here, share: expected a number from 0 to 1, not '2'"),
        ("via=rign", "here, via: expected one of ring|tree, not 'rign'; did you mean 'ring'?"),
        ("overlap=maybe", "here, overlap: expected yes or no, not 'maybe'"),
        ("every", "here: 'every' wants a value: every=… (a whole number of at least 1)"),
        ("ring,via=tree", "here: 'via' is set twice"),
    ],
)
def test_mistakes_are_told_in_one_line(text: str, message: str) -> None:
    with pytest.raises(StrategyError) as refused:
        read(text)
    assert str(refused.value) == message


def test_a_word_that_two_settings_know_is_no_setting() -> None:
    settings = [Setting("a", Literal["x", "y"], "x"), Setting("b", Literal["x", "z"], "x")]
    with pytest.raises(StrategyError, match="there is no setting 'x'"):
        parse_settings("x", settings, "here", StrategyError)


def test_sizes() -> None:
    assert parse_size("300 MB") == 3e8
    assert parse_size("512B") == 512
    assert parse_size("6G") == 6e9
    for text, message in {"lots": "'lots' is no size", "1.2.3GB": "is no size", "6": "'6' has no unit"}.items():
        with pytest.raises(TaskError, match=message):
            parse_size(text)

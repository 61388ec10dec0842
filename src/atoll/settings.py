"""Settings in a line of text: `every=4,via=ring,overlap`, as users write them after a name and a colon.

The fields of a dataclass or the keywords of a function define the valid settings.  An error message is one line, and
names the expected value.
"""

import dataclasses
import inspect
import math
import re
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from atoll.errors import AtollError, TaskError, nearest

__all__ = [
    "Count",
    "NumberRange",
    "OneOf",
    "Read",
    "Setting",
    "parse_settings",
    "parse_size",
    "settings_of",
    "write_settings",
]


@dataclass(frozen=True, slots=True)
class NumberRange:
    """The bounds of a number."""

    least: float = 0.0
    most: float = 1e9

    def __contains__(self, value: float) -> bool:
        return self.least <= value <= self.most

    def __str__(self) -> str:
        return f" from {self.least:g} to {self.most:g}" if self.most < 1e9 else f" of at least {self.least:g}"


@dataclass(frozen=True, slots=True)
class Read:
    """Reads a setting that is not a number, a choice or a switch."""

    read: Callable[[str, str], Any]
    """Makes a value from the text and its place."""
    expected: str
    write: Callable[[Any], str] = str


@dataclass(frozen=True, slots=True)
class OneOf:
    """A choice whose names are looked up when it is read."""

    names: Callable[[], tuple[str, ...]]


Count = Annotated[int, NumberRange(1)]


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting that a user may change."""

    name: str
    kind: Any
    default: Any
    how: NumberRange | Read | OneOf = NumberRange()

    @classmethod
    def of(cls, name: str, hint: Any, default: Any) -> "Setting":
        """Makes a setting from a type hint."""
        if typing.get_origin(hint) is Annotated:
            kind, how = typing.get_args(hint)
            return cls(name, kind, default, how)
        return cls(name, hint, default)

    @property
    def choices(self) -> tuple[str, ...]:
        """The valid names, if it is a choice."""
        if isinstance(self.how, OneOf):
            return self.how.names()
        return typing.get_args(self.kind) if typing.get_origin(self.kind) is Literal else ()

    @property
    def expected(self) -> str:
        """The valid values, in words."""
        if isinstance(self.how, Read):
            return self.how.expected
        if self.choices:
            return "one of " + "|".join(self.choices)
        if self.kind is bool:
            return "yes or no"
        return ("a whole number" if self.kind is int else "a number") + str(self.how)

    def read(self, text: str, where: str, error: type[AtollError]) -> Any:
        """Reads the value that a user wrote."""
        if isinstance(self.how, Read):
            return self.how.read(text, f"{where}, {self.name}")
        value: Any = None
        try:
            if self.choices:
                value = text if text in self.choices else None
            elif self.kind is bool:
                value = {"yes": True, "true": True, "no": False, "false": False}.get(text)
            elif isinstance(self.how, NumberRange):
                value = self.kind(text)
                value = value if value in self.how else None
        except ValueError:
            pass
        if value is None:
            hint = f"; {nearest(text, self.choices)}" if self.choices else ""
            raise error(f"{where}, {self.name}: expected {self.expected}, not {text!r}{hint}")
        return value

    def write(self, value: Any) -> str:
        """Returns a value as a user would write it."""
        if isinstance(self.how, Read):
            return f"{self.name}={self.how.write(value)}"
        if self.kind is bool:
            return self.name if value else f"{self.name}=no"
        return f"{self.name}={value:g}" if isinstance(value, float) else f"{self.name}={value}"


_SIZE = re.compile(r"([0-9.]+)\s*([kKMGT]?)(B?)")


def parse_size(text: str, what: str = "") -> float:
    """Reads a size in bytes; `what` names its place in error messages.

    >>> parse_size("6GB")
    6000000000.0
    """
    where = f"{what}: " if what else ""
    found = _SIZE.fullmatch(text.strip())
    try:
        number = float(found.group(1)) if found else math.nan
    except ValueError:
        number = math.nan
    if found is None or not number > 0:
        raise TaskError(f"{where}{text!r} is no size: expected a number and a unit, as in 6GB or 300MB")
    if not found.group(2) and not found.group(3):
        raise TaskError(
            f"{where}{text!r} has no unit: write {found.group(1)}GB, {found.group(1)}MB or {found.group(1)}kB"
        )
    return number * {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}[found.group(2)]


def settings_of(source: Callable[..., Any]) -> tuple[Setting, ...]:
    """Returns the settings that a dataclass's fields, or a function's keywords, define."""
    hints = typing.get_type_hints(source, include_extras=True)
    if dataclasses.is_dataclass(source):
        return tuple(Setting.of(field.name, hints[field.name], field.default) for field in dataclasses.fields(source))
    return tuple(
        Setting.of(name, hints[name], parameter.default)
        for name, parameter in inspect.signature(source).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    )


def parse_settings(text: str, settings: Iterable[Setting], where: str, error: type[AtollError]) -> dict[str, Any]:
    """Reads the settings that a user wrote.

    Args:
        text: `every=4,via=ring,overlap`.
        settings: the valid settings.
        where: the first words of error messages.
        error: the exception to raise.
    """
    known = {setting.name: setting for setting in settings}
    found: dict[str, Any] = {}
    for piece in filter(None, text.split(",")):
        name, equals, value = piece.partition("=")
        if not equals:
            name, value = _bare(name, known, where, error)
        if name not in known:
            raise error(f"{where}: there is no setting {name!r}; {nearest(name, known) if known else 'it has none'}")
        if name in found:
            raise error(f"{where}: {name!r} is set twice")
        found[name] = known[name].read(value, where, error)
    return found


def write_settings(values: Mapping[str, Any], settings: Iterable[Setting]) -> str:
    """Writes settings as text, without those that have their default."""
    return ",".join(
        setting.write(values[setting.name])
        for setting in settings
        if setting.name in values and values[setting.name] != setting.default
    )


def _bare(word: str, settings: dict[str, Setting], where: str, error: type[AtollError]) -> tuple[str, str]:
    """Reads a single word: it turns on a switch, or is a choice that only one setting has."""
    if word in settings and settings[word].kind is bool:
        return word, "yes"
    having = [setting.name for setting in settings.values() if word in setting.choices]
    if len(having) == 1:
        return having[0], word
    if word in settings:
        raise error(f"{where}: {word!r} wants a value: {word}=… ({settings[word].expected})")
    known = [*settings, *(choice for setting in settings.values() for choice in setting.choices)]
    raise error(f"{where}: there is no setting {word!r}; {nearest(word, known) if known else 'it has none'}")

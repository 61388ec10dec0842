"""Traces as files: one JSON object a line, written during the run, read back or followed while it grows.

The first line says what the file is: ``{"atoll_trace": 1}``.  Every other line is an event: ``kind`` names its class
(`atoll.trace.events`), the other keys are the class's fields; docs/traces.md lists them all.  Times are virtual or real
seconds since the run began, to the microsecond.  A run that crashes leaves a readable trace: at most its last line is
incomplete, and the reader skips that one.

Older and newer traces can be read: a field that is missing has its default, and kinds and fields that this version
does not know are skipped.
"""

import dataclasses
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Self, TextIO

import msgspec

from atoll.errors import TraceError
from atoll.trace.events import Event

__all__ = ["Trace", "TraceTail", "encode_event", "encode_header", "read_trace"]

VERSION = 1
_FLUSH_EVERY = 200


class Trace:
    """Writes events to a file; a context manager.  Events come in order of time.

    Args:
        path: the file.
        append: whether to append to an existing file.
    """

    def __init__(self, path: Path, *, append: bool = False) -> None:
        self._file: TextIO = path.open("a" if append else "w", encoding="utf-8", newline="\n")
        if not append:
            self._file.write(encode_header())
        self._file.flush()
        self._unflushed = 0

    def record(self, event: Event) -> None:
        self._file.write(encode_event(event))
        self._unflushed += 1
        if self._unflushed >= _FLUSH_EVERY:
            self.flush()

    def flush(self) -> None:
        self._file.flush()
        self._unflushed = 0

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@cache
def _names(kind: str) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(Event.kinds[kind]))


def encode_header() -> str:
    """The first line of a trace."""
    return json.dumps({"atoll_trace": VERSION}) + "\n"


def encode_event(event: Event) -> str:
    """An event's line."""
    fields: dict[str, Any] = {"kind": event.kind}
    for name in _names(event.kind):
        value = getattr(event, name)
        fields[name] = round(value, 6) if isinstance(value, float) else msgspec.to_builtins(value)
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False, allow_nan=False) + "\n"


def read_trace(path: Path) -> Iterator[Event]:
    """The events of a trace file, in order.

    An incomplete last line is skipped, and so are events of unknown kinds, which a newer version wrote.  All other
    defects raise a `TraceError`.
    """
    try:
        with path.open(encoding="utf-8") as lines:
            _check_header(path, lines.readline())
            for number, line in enumerate(lines, 2):
                if not line.endswith("\n"):
                    return  # the run crashed while writing it
                event = _decode(line, f"{path}, line {number}")
                if event is not None:
                    yield event
    except OSError as error:
        raise TraceError(f"trace {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise TraceError(f"trace {path}: not a trace of Atoll (expected UTF-8 text)") from None


class TraceTail:
    """Follows a trace that is being written.

    Args:
        path: the trace, which may not exist yet.
        kinds: the events of interest; others are not decoded.
    """

    def __init__(self, path: Path, *kinds: type[Event]) -> None:
        self._path = path
        self._marks = [f'"kind":"{kind.kind}"' for kind in kinds]
        self._offset = 0

    def look(self) -> Iterator[Event]:
        """The events since the last call, in whole lines."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                news = file.read()
        except FileNotFoundError:
            return
        complete = news.rfind(b"\n") + 1
        self._offset += complete
        for line in news[:complete].decode().splitlines():
            if any(mark in line for mark in self._marks):
                event = _decode(line, str(self._path))
                if event is not None:
                    yield event


def _check_header(path: Path, line: str) -> None:
    try:
        version = json.loads(line)["atoll_trace"]
    except (ValueError, KeyError, TypeError):
        raise TraceError(f'trace {path}: not a trace of Atoll (expected the first line {{"atoll_trace": …}})') from None
    if version != VERSION:
        raise TraceError(f"trace {path}: version {version}; this Atoll reads version {VERSION}")


def _decode(line: str, where: str) -> Event | None:
    """Decodes an event; `None` for an unknown kind."""
    try:
        values = json.loads(line)
        kind = values.pop("kind")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise TraceError(f"trace {where}: expected a JSON object with a 'kind', not {line.strip()[:60]!r}") from None
    made = Event.kinds.get(kind)
    if made is None:
        return None
    try:
        return msgspec.convert(values, made)
    except msgspec.ValidationError as error:
        raise TraceError(f"trace {where}: event {kind!r}: {error}") from None

"""Journals write the trace of a live node.  No file is overwritten, and a full disk does not stop the node."""

import errno
import logging
import os
from pathlib import Path
from typing import Self

from atoll.errors import TraceError
from atoll.trace import Event, EventsLost, encode_event, encode_header

__all__ = ["Journal"]

log = logging.getLogger("atoll")

FLUSH_EVERY = 200
"""The number of events; the node also flushes several times a second."""
ROOM_BYTES = 1 << 15
"""After the disk was full, this much free space is required before the journal writes again."""


class Journal:
    """Writes a node's events to a new file; a context manager.

    If a write fails (the disk is full, the folder was deleted), events are dropped and counted, and the next flush
    tries to write again.  The file always ends with a complete line, so it can always be read.

    Args:
        path: the file; `node.2.jsonl`, `node.3.jsonl`, … beside it if it exists already.  `None`: nothing is written.
        node: the name of the node.

    Raises:
        TraceError: no file can be created there.
    """

    def __init__(self, path: Path | None, node: str) -> None:
        self.path: Path | None = None
        self._node = node
        self._file: int | None = None
        self._end = 0
        """The offset of the next line; at most an incomplete line follows it."""
        self._lines = [encode_header()]
        self._at = 0.0
        """When the last event happened."""
        self._since: float | None = None
        """When the first event that is not in the file happened."""
        self._lost = 0
        self._is_failing = False
        if path is not None:
            self.path, self._file = _make(path)
            self.flush()

    def record(self, event: Event) -> None:
        if self._file is None:
            return
        self._at = event.at
        if self._since is None:
            self._since = event.at
        if self._is_failing:  # nothing is buffered: the disk may be full for days
            self._lost += 1
            return
        self._lines.append(encode_event(event))
        if len(self._lines) >= FLUSH_EVERY:
            self.flush()

    def flush(self) -> None:
        if self._file is None:
            return
        lines = self._lines
        if self._is_failing:
            lines = [encode_header()] if self._end == 0 else []
            if self._lost:
                lost = EventsLost(at=self._at, node=self._node, count=self._lost, since=self._since or 0.0)
                lines.append(encode_event(lost))
        if not lines:
            return
        try:
            self._write("".join(lines).encode(), room=ROOM_BYTES if self._is_failing else 0)
        except OSError as error:
            self._failed(error)
            return
        self._lines, self._since = [], None
        if self._is_failing:
            log.warning("%s: the trace is written again; %d events are missing", self.path, self._lost)
            self._is_failing, self._lost = False, 0

    def _write(self, lines: bytes, room: int) -> None:
        """Writes lines, if there is space for them and for `room` more bytes."""
        assert self._file is not None
        written, data = 0, lines + b" " * room
        while written < len(data):
            count = os.pwrite(self._file, data[written:], self._end + written)
            if count == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            written += count
        if room:
            os.ftruncate(self._file, self._end + len(lines))
        self._end += len(lines)

    def _failed(self, error: OSError) -> None:
        assert self._file is not None
        events = len(self._lines) - (self._end == 0)
        if not self._is_failing:
            self._is_failing = True
            log.warning(
                "%s: the trace cannot be written (%s): training goes on, and events are dropped until it can",
                self.path,
                error.strerror or error,
            )
            self._lost = events
            self._lines = []
        try:
            os.ftruncate(self._file, self._end)
        except OSError as why:  # the next write overwrites the rest
            log.debug("%s cannot be cut: %s", self.path, why)

    def close(self) -> None:
        self.flush()
        if self._file is not None:
            file, self._file = self._file, None
            try:
                os.close(file)
            except OSError as error:
                log.warning("%s: the trace may not be whole (%s)", self.path, error.strerror or error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _make(path: Path) -> tuple[Path, int]:
    """Creates a new file, with a number in its name if needed."""
    number, place = 1, path
    while True:
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            return place, os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            if not path.parent.is_dir():
                raise TraceError(f"trace {path}: {path.parent} is not a folder") from None
            number += 1
            place = path.with_name(f"{path.stem}.{number}{path.suffix}")
        except OSError as error:
            raise TraceError(f"trace {place}: {error.strerror or error}") from None

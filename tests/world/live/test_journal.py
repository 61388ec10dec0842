"""A node's trace: never overwritten, and a full disk does not end the node."""

import errno
import logging
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll.errors import TraceError
from atoll.trace import Event, EventsLost, LinkChanged, read_trace
from atoll.world.live.journal import Journal


def events(first: int, count: int) -> list[LinkChanged]:
    return [LinkChanged(at=float(number), link="a~b" * 10, up=True) for number in range(first, first + count)]


def write(journal: Journal, what: list[LinkChanged]) -> None:
    for event in what:
        journal.record(event)
    journal.flush()


def test_a_restart_writes_another_file(tmp_path: Path) -> None:
    paths = []
    for life in range(3):
        with Journal(tmp_path / "live" / "n1.jsonl", "n1") as journal:
            write(journal, events(life, 1))
            paths.append(journal.path)
    assert [path and path.name for path in paths] == ["n1.jsonl", "n1.2.jsonl", "n1.3.jsonl"]
    for life, path in enumerate(paths):
        assert path
        assert list(read_trace(path)) == events(life, 1)


def test_a_node_may_keep_no_trace() -> None:
    with Journal(None, "n1") as journal:
        write(journal, events(0, 500))
        assert journal.path is None


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(TraceError):
        Journal(tmp_path / "file" / "n1.jsonl", "n1")


class FullDisk:
    """A disk that has room for so many bytes more: it takes what fits, then nothing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room = 1 << 30
        self._write = os.pwrite
        monkeypatch.setattr(os, "pwrite", self)

    def __call__(self, file: int, data: bytes, offset: int) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = self._write(file, data[: self.room], offset)
        self.room -= written
        return written


def test_a_full_disk_and_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What fitted is read; then nothing, with one line in the log; then how much is missing, and what came after."""
    disk = FullDisk(monkeypatch)
    path = tmp_path / "n1.jsonl"
    with caplog.at_level(logging.WARNING), Journal(path, "n1") as journal:
        write(journal, events(0, 3))
        disk.room = 100  # half of the next lines
        write(journal, events(3, 10))
        assert list(read_trace(path)) == events(0, 3), "no half line is left"
        disk.room = 0
        for first in range(13, 1000, 50):
            write(journal, events(first, 50))
        assert len(caplog.messages) == 1
        assert "No space left on device" in caplog.text
        assert "training goes on" in caplog.text
        disk.room = 1 << 30
        journal.flush()
        write(journal, events(2000, 2))
    lost = EventsLost(at=1012.0, node="n1", count=1010, since=3.0)
    expected: list[Event] = [*events(0, 3), lost, *events(2000, 2)]
    assert list(read_trace(path)) == expected
    assert "1010 events are missing" in caplog.messages[-1]


def test_a_disk_that_is_full_from_the_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FullDisk(monkeypatch)
    disk.room = 7
    with Journal(tmp_path / "n1.jsonl", "n1") as journal:
        write(journal, events(0, 5))
        disk.room = 1 << 30
        write(journal, events(5, 1))
        write(journal, events(6, 1))
    found = list(read_trace(tmp_path / "n1.jsonl"))
    assert found == [EventsLost(at=5.0, node="n1", count=6, since=0.0), *events(6, 1)]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 kB, where this process may make one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(command, check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("this process may not mount a file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_real_disk_that_fills_up(small_disk: Path) -> None:
    path = small_disk / "n1.jsonl"
    filler = small_disk / "filler"
    with Journal(path, "n1") as journal:
        filler.write_bytes(bytes(40 * 1024))
        for first in range(0, 2000, 50):
            write(journal, events(first, 50))
        kept = list(read_trace(path))
        assert 50 <= len(kept) < 2000
        filler.unlink()
        journal.flush()
        write(journal, events(3000, 1))
    found = list(read_trace(path))
    lost = found[len(kept)]
    assert isinstance(lost, EventsLost)
    assert lost.count == 2000 - len(kept)
    assert found[len(kept) + 1 :] == events(3000, 1)

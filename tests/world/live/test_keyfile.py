"""Key files: one process at a time, and the run that a node was in beside its key."""

import dataclasses
import errno
import json
import logging
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import FrameError, InvitationError
from atoll.world.live.keyfile import KnownPeer, Remembered, began_at, hold_key
from atoll.world.live.keys import Identity

RUN = Remembered(
    secret=bytes(range(32)),
    name="n3",
    card={"task": "digits", "seats": 4},
    began=1_000.5,
    peers={"n0": KnownPeer(id="abc", addresses=[("127.0.0.1", 7700)]), "n1": KnownPeer(id="", addresses=[])},
)


def test_a_second_process_with_the_same_key_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "node"
    with hold_key(path), pytest.raises(InvitationError, match="another node on this machine uses it"), hold_key(path):
        pass
    with hold_key(path):  # it is free again
        pass


def test_a_key_that_is_made_while_it_is_held_stays_held(tmp_path: Path) -> None:
    path = tmp_path / "key"
    with hold_key(path):
        identity = Identity(bytes(32), path)
        with pytest.raises(InvitationError, match="another node on this machine uses it"), hold_key(path):
            pass
    assert Identity(bytes(32), path).id == identity.id
    assert path.stat().st_mode & 0o077 == 0, "for its owner alone"


def test_a_forked_process_does_not_hold_the_key(tmp_path: Path) -> None:
    """Workers that load data outlive a script that was killed."""
    path = tmp_path / "key"
    with hold_key(path):
        reading, writing = os.pipe()
        began, begins = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(writing)
            os.write(begins, b"x")
            os.read(reading, 1)  # until the parent has looked
            os._exit(0)
        os.read(began, 1)
        for each in (reading, began, begins):
            os.close(each)
    try:
        with hold_key(path) as kept:
            assert kept, "the child that still runs does not hold it"
    finally:
        os.close(writing)
        os.waitpid(child, 0)


def test_a_run_is_remembered_by_its_owner_alone(tmp_path: Path) -> None:
    with hold_key(tmp_path / "key") as kept:
        assert kept
        assert kept.recall() is None
        kept.remember(RUN)
        assert kept.recall() == RUN
        assert kept.run_path == tmp_path / "key.run"
        assert kept.run_path.stat().st_mode & 0o077 == 0
        kept.remember(dataclasses.replace(RUN, name="n2"))
        assert (kept.recall() or RUN).name == "n2"
        assert sorted(each.name for each in tmp_path.iterdir()) == ["key", "key.run"]
    assert RUN.invitation.addresses == (("127.0.0.1", 7700),)


def test_a_run_that_is_not_written_whole_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_file: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with hold_key(tmp_path / "key") as kept, caplog.at_level(logging.WARNING):
        assert kept
        kept.remember(RUN)
        monkeypatch.setattr(os, "fsync", fail)
        for name in ("n1", "n2"):
            kept.remember(dataclasses.replace(RUN, name=name))
        assert kept.recall() == RUN
        assert len(caplog.records) == 1, "said once"
        assert "No space left" in caplog.text
        assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize("content", [b"", b"{}", b"nonsense", RUN.pack()[:-20], RUN.pack().replace(b"00", b"", 1)])
def test_a_damaged_run_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "key.run").write_bytes(content)
    with hold_key(tmp_path / "key") as kept:
        assert kept
        with pytest.raises(InvitationError, match=r"is damaged .*remove it"):
            kept.recall()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(["atoll_run", "secret", "name", "card", "began", "peers"]), JSON)
def test_a_wrong_field_is_refused_or_read(key: str, value: object) -> None:
    """Nothing else than `FrameError` comes of it."""
    found = {**json.loads(RUN.pack()), key: value}
    try:
        read = Remembered.parse(json.dumps(found).encode())
    except FrameError:
        return
    assert isinstance(read, Remembered)


def test_the_age_of_a_run() -> None:
    assert abs(began_at(5.0) - (time.time() - 5.0)) < 1.0
    assert dataclasses.replace(RUN, began=began_at(7.0)).age_s() == pytest.approx(7.0, abs=1.0)
    assert dataclasses.replace(RUN, began=time.time() + 100).age_s() == 0.0, "the clock was put back"

"""Key files: a node's key, which one process uses at a time, and a file beside it about the node's run.

A run exists as long as some node knows its secret.  A node with a key file saves the run in `FILE.run`: the secret, the
description of the run, its own seat, and the keys and addresses of its peers.  So any node can rejoin its run, even a
node that the others wait for because it is the only one that can be dialled.
"""

import contextlib
import errno
import fcntl
import json
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atoll.errors import FrameError, InvitationError
from atoll.world.live.fields import Fields
from atoll.world.live.frames import parse_json
from atoll.world.live.keys import SECRET_BYTES, Address, Invitation

__all__ = ["KeyFile", "KnownPeer", "Remembered", "began_at", "hold_key"]

log = logging.getLogger("atoll")

FORMAT = 1
_held: set[int] = set()
"""File descriptors of the key files that this process holds."""


@dataclass(frozen=True, kw_only=True)
class KnownPeer:
    """The saved facts about another node."""

    id: str
    """Its key; empty if the key is unknown."""
    addresses: list[Address]


@dataclass(frozen=True, kw_only=True)
class Remembered:
    """The run that a node was in."""

    secret: bytes
    name: str
    """The node's seat."""
    card: dict[str, Any]
    """The description of the run."""
    began: float
    """When the run began, by this machine's clock."""
    peers: dict[str, KnownPeer] = field(default_factory=dict)

    @property
    def invitation(self) -> Invitation:
        """An invitation to the run, with the addresses of all peers that could be dialled."""
        known = [address for peer in self.peers.values() for address in peer.addresses]
        return Invitation(self.secret, tuple(dict.fromkeys(known)))

    def age_s(self) -> float:
        """How old the run is, by this machine's clock."""
        return max(0.0, time.time() - self.began)

    def pack(self) -> bytes:
        peers = {name: {"id": peer.id, "addresses": peer.addresses} for name, peer in self.peers.items()}
        found = {
            "atoll_run": FORMAT,
            "secret": self.secret.hex(),
            "name": self.name,
            "card": self.card,
            "began": round(self.began, 3),
            "peers": peers,
        }
        return json.dumps(found, indent=1).encode() + b"\n"

    @classmethod
    def parse(cls, content: bytes) -> "Remembered":
        """Reads the output of `pack`; raises `FrameError`."""
        found = parse_json(content)
        if found.get("atoll_run") != FORMAT:
            raise FrameError("it was not written by this version of Atoll")
        fields = Fields(found, "run file")
        try:
            secret = bytes.fromhex(fields.text("secret"))
        except ValueError:
            raise FrameError("its secret cannot be read") from None
        if len(secret) != SECRET_BYTES:
            raise FrameError("its secret cannot be read")
        peers = {}
        for name, peer in fields.table("peers").items():
            known = Fields(peer if isinstance(peer, dict) else {}, f"run file, {name}")
            peers[name] = KnownPeer(id=known.text("id"), addresses=known.addresses("addresses"))
        return cls(
            secret=secret,
            name=fields.text("name"),
            card=fields.table("card"),
            began=fields.number("began", most=1e12),
            peers=peers,
        )


def began_at(age_s: float) -> float:
    """When a run of this age began, by this machine's clock."""
    return time.time() - age_s


class KeyFile:
    """A key file that this process holds, and the run file beside it.

    Args:
        path: the path of the key.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run_path = path.with_name(path.name + ".run")
        self._written = b""
        self._warned = False

    def recall(self) -> Remembered | None:
        """Returns the run that the node was in; `None` if there was no run."""
        try:
            content = self.run_path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise InvitationError(f"{self.run_path}: cannot be read ({error.strerror or error})") from None
        try:
            return Remembered.parse(content)
        except FrameError as error:
            raise InvitationError(
                f"{self.run_path}: is damaged ({error}); remove it, and join with an invitation or begin another run"
            ) from None

    def remember(self, run: Remembered) -> None:
        """Saves the run for a later process.  A failure is logged once and does not stop the node."""
        content = run.pack()
        if content == self._written:
            return
        try:
            _write_for_owner(self.run_path, content)
        except OSError as error:
            if not self._warned:
                log.warning("%s: the run cannot be kept for a restart (%s)", self.run_path, error.strerror or error)
            self._warned = True
        else:
            self._written, self._warned = content, False


@contextlib.contextmanager
def hold_key(path: Path | None) -> Iterator[KeyFile | None]:
    """Locks a key file until the end of the block, so that no other process uses it.

    Raises:
        InvitationError: another process has it, or it cannot be opened.
    """
    if path is None:
        yield None
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        held = _open(path)
    except OSError as error:
        raise InvitationError(f"key file {path}: {error.strerror or error}") from None
    _held.add(held)
    try:
        _lock(held, path)
        yield KeyFile(path)
    finally:
        _held.discard(held)
        os.close(held)


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except PermissionError:
        return os.open(path, os.O_RDONLY)


def _lock(held: int, path: Path) -> None:
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise InvitationError(
                f"key file {path}: another node on this machine uses it; name another file for this one"
            ) from None
        log.debug("%s cannot be locked: %s", path, error)  # not every file system supports locks


def _let_go() -> None:
    """Closes the key files in a forked child, which must not hold its parent's keys."""
    for held in _held:
        with contextlib.suppress(OSError):
            os.close(held)
    _held.clear()


os.register_at_fork(after_in_child=_let_go)


def _write_for_owner(path: Path, content: bytes) -> None:
    """Writes a file that only its owner may read.  The write is atomic: readers see the old content or the new."""
    beside = path.with_name(path.name + ".part")
    try:
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise

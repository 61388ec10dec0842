"""Key files: a node's key, held by one process at a time, and beside it the run that the node takes part in.

A run lives as long as somebody knows its secret.  A node with a key file remembers the run in `FILE.run`: the secret,
what the run is about, its own seat, and who else was there and where.  So any node can come back to its run, also one
that the others have to wait for because only it can be dialled.
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
"""Descriptors of key files that this process holds."""


@dataclass(frozen=True, kw_only=True)
class KnownPeer:
    """What is remembered of another node."""

    id: str
    """Its key; empty if that is not known."""
    addresses: list[Address]


@dataclass(frozen=True, kw_only=True)
class Remembered:
    """The run that a node was in."""

    secret: bytes
    name: str
    """The node's seat."""
    card: dict[str, Any]
    """What the run is about."""
    began: float
    """When the run began, by this machine's clock."""
    peers: dict[str, KnownPeer] = field(default_factory=dict)

    @property
    def invitation(self) -> Invitation:
        """To the run, by way of everybody who could be dialled."""
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
        """Reads what `pack` gave; raises `FrameError`."""
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
        path: of the key.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run_path = path.with_name(path.name + ".run")
        self._written = b""
        self._warned = False

    def recall(self) -> Remembered | None:
        """The run that the node was in, if it was in any."""
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
        """Keeps the run for a later process.  That it cannot be kept is said once, and ends nothing."""
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
    """Holds a key file until the end of the block: no other process may use it meanwhile.

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
        log.debug("%s cannot be locked: %s", path, error)  # not every file system can


def _let_go() -> None:
    """A process that this one has forked does not hold its keys."""
    for held in _held:
        with contextlib.suppress(OSError):
            os.close(held)
    _held.clear()


os.register_at_fork(after_in_child=_let_go)


def _write_for_owner(path: Path, content: bytes) -> None:
    """Writes a file that only its owner may read.  Readers find what was there before, or all of it."""
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

"""Fields: what a peer says, read by type and within bounds before anything is done with it."""

from collections.abc import Mapping
from typing import Any

from atoll.errors import FrameError
from atoll.world.live.keys import Address

__all__ = ["LARGEST_HOST", "MOST_ADDRESSES", "Fields", "parse_addresses", "printable"]

MOST_ADDRESSES = 8
LARGEST_HOST = 253
"""Characters, as in DNS."""
LONGEST_S = 1e9
"""The longest time that a peer may speak of."""
_SAID = 64
"""How much of a wrong value an error repeats."""


class Fields:
    """The fields of a control frame.  Each is read by a method that knows its type and its bounds.

    Args:
        found: what the frame holds.
        what: the frame's kind, for errors.
    """

    def __init__(self, found: Mapping[str, Any], what: str) -> None:
        self._found = found
        self._what = what

    def text(self, key: str, *, most: int = 256) -> str:
        value = self._found.get(key)
        if not isinstance(value, str) or len(value) > most:
            raise self._wrong(key, f"a text of at most {most} characters")
        return value

    def whole(self, key: str, least: int, most: int) -> int:
        value = self._found.get(key)
        if type(value) is not int or not least <= value <= most:
            raise self._wrong(key, f"a whole number from {least} to {most}")
        return value

    def number(self, key: str, *, most: float = LONGEST_S) -> float:
        return self._number(key, self._found.get(key), most)

    def numbers(self, key: str, *, most: float = LONGEST_S) -> dict[str, float]:
        """A number for each name."""
        return {name: self._number(key, value, most) for name, value in self.table(key).items()}

    def table(self, key: str) -> dict[str, Any]:
        value = self._found.get(key)
        if not isinstance(value, dict):
            raise self._wrong(key, "an object")
        return value

    def addresses(self, key: str) -> list[Address]:
        return parse_addresses(self._found.get(key), f"{self._what}: {key}")

    def _number(self, key: str, value: Any, most: float) -> float:
        if type(value) not in (int, float) or not 0 <= value <= most:  # neither is NaN
            raise self._wrong(key, f"a number from 0 to {most:g}", value)
        return float(value)

    def _wrong(self, key: str, expected: str, value: Any = None) -> FrameError:
        said = printable(repr(self._found.get(key) if value is None else value), _SAID)
        return FrameError(f"malformed {self._what}: {key} is {said}: expected {expected}")


def parse_addresses(found: Any, what: str) -> list[Address]:
    """Where a peer says that a node listens: `[[host, port], …]`, of which the first few count."""
    if not isinstance(found, list):
        raise FrameError(f"{what}: expected a list of addresses, not {printable(repr(found), _SAID)}")
    addresses = []
    for each in found[:MOST_ADDRESSES]:
        host, port = each if isinstance(each, list) and len(each) == 2 else (None, None)
        if not isinstance(host, str) or not 0 < len(host) <= LARGEST_HOST or not _is_plain(host):
            raise FrameError(f"{what}: invalid address {printable(repr(each), _SAID)}")
        if type(port) is not int or not 0 < port < 65536:
            raise FrameError(f"{what}: invalid port in {printable(repr(each), _SAID)}")
        addresses.append((host, port))
    return addresses


def _is_plain(host: str) -> bool:
    return host.isascii() and host.isprintable() and " " not in host


def printable(text: str, most: int) -> str:
    """A peer's text for a log line: on one line, and not too long."""
    plain = "".join(c if c.isprintable() else "?" for c in text[: most + 1])
    return plain if len(plain) <= most else plain[:most] + "…"

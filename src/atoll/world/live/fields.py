"""Fields: the type and the bounds of each value that a peer sends are checked before it is used."""

from collections.abc import Mapping
from typing import Any

from atoll.errors import FrameError
from atoll.world.live.keys import Address

__all__ = ["LARGEST_HOST", "MOST_ADDRESSES", "Fields", "parse_addresses", "printable"]

MOST_ADDRESSES = 8
LARGEST_HOST = 253
"""In characters, as in DNS."""
LONGEST_S = 1e9
"""The longest time that a peer may report."""
_SAID = 64
"""An error message quotes this many characters of a wrong value."""


class Fields:
    """The fields of a control frame.  Each method checks a type and its bounds.

    Args:
        found: the content of the frame.
        what: the kind of frame, for error messages.
    """

    def __init__(self, found: Mapping[str, Any], what: str) -> None:
        self._found = found
        self._what = what

    def text(self, key: str, default: str | None = None, *, most: int = 256) -> str:
        value = self._found.get(key, default)
        if not isinstance(value, str) or len(value) > most:
            raise self._wrong(key, f"a text of at most {most} characters")
        return value

    def whole(self, key: str, least: int, most: int, default: int | None = None) -> int:
        value = self._found.get(key, default)
        if type(value) is not int or not least <= value <= most:
            raise self._wrong(key, f"a whole number from {least} to {most}")
        return value

    def number(self, key: str, *, most: float = LONGEST_S) -> float:
        return self._number(key, self._found.get(key), most)

    def numbers(self, key: str, *, most: float = LONGEST_S) -> dict[str, float]:
        """Returns a number for each name."""
        return {name: self._number(key, value, most) for name, value in self.table(key).items()}

    def table(self, key: str) -> dict[str, Any]:
        value = self._found.get(key)
        if not isinstance(value, dict):
            raise self._wrong(key, "an object")
        return value

    def addresses(self, key: str) -> list[Address]:
        return parse_addresses(self._found.get(key), f"{self._what}: {key}")

    def _number(self, key: str, value: Any, most: float) -> float:
        if type(value) not in (int, float) or not 0 <= value <= most:  # rejects NaN too
            raise self._wrong(key, f"a number from 0 to {most:g}", value)
        return float(value)

    def _wrong(self, key: str, expected: str, value: Any = None) -> FrameError:
        said = printable(repr(self._found.get(key) if value is None else value), _SAID)
        return FrameError(f"malformed {self._what}: {key} is {said}: expected {expected}")


def parse_addresses(found: Any, what: str) -> list[Address]:
    """Reads the addresses of a node from a peer: `[[host, port], …]`; only the first few are used."""
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
    """Makes a peer's text safe for a log line: one line, and not too long."""
    plain = "".join(c if c.isprintable() else "?" for c in text[: most + 1])
    return plain if len(plain) <= most else plain[:most] + "…"

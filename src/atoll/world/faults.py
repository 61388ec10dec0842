"""Fault scripts: deliberate faults of nodes and links, with their times.  The same for every world.

A script is a TOML file of `[[fault]]` tables (docs/faults.md).  Each has a kind, a beginning and, unless it is
permanent, an end; node names may be patterns as in networks.
"""

import fnmatch
import itertools
import json
import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atoll.errors import FaultError, nearest

__all__ = ["KINDS", "MESSAGE_KINDS", "Fault", "load_faults", "parse_faults"]

KINDS = {
    "crash": "a node stops, and restarts at the end with no state",
    "cut": "two nodes, or two sets of them, cannot reach each other",
    "partition": "nodes of different sides cannot reach each other",
    "oneway": "no message gets from one node, or set of them, to another",
    "slow": "a node computes slower by a factor",
    "stall": "a node freezes, and resumes at the end where it stopped",
    "hang": "a node's training stops, and everything else on it continues",
    "duplicate": "some messages between two nodes, or sets of them, arrive twice",
    "delay": "some messages arrive later than others that were sent after them",
    "corrupt": "some messages arrive with changed bytes",
    "garbage": "a node's model is noise after each of its steps",
    "exaggerate": "a node's steps are too large by a factor",
}
MESSAGE_KINDS = frozenset({"duplicate", "delay", "corrupt"})
LARGEST_SHARE = 0.9
"""The largest share of corrupt messages: they are sent again until one arrives intact."""
_KEYS = {
    "crash": {"nodes"},
    "cut": {"between"},
    "partition": {"sides"},
    "oneway": {"between"},
    "slow": {"nodes", "factor"},
    "stall": {"nodes"},
    "hang": {"nodes"},
    "duplicate": {"between"},
    "delay": {"between", "seconds"},
    "corrupt": {"between"},
    "garbage": {"nodes"},
    "exaggerate": {"nodes", "factor"},
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault."""

    kind: str
    at: float
    until: float = math.inf
    nodes: tuple[str, ...] = ()
    """The nodes that it affects."""
    pairs: frozenset[tuple[str, str]] = frozenset()
    """The pairs (sender, receiver) whose messages are blocked, or affected."""
    factor: float = 1.0
    share: float = 0.1
    """The share of messages that it affects."""
    seconds: float = 0.0
    """The largest delay of a message."""

    def __str__(self) -> str:
        """A short description: the nodes, the direction and the amount."""
        if self.nodes:
            whom = " ".join(self.nodes)
        elif self.kind == "partition":
            whom = " | ".join(" ".join(side) for side in self._sides())
        else:
            arrow = " → " if self.kind == "oneway" else " – "
            whom = arrow.join(" ".join(end) for end in self._ends())
        how = [f" ×{self.factor:g}"] if "factor" in _KEYS[self.kind] else []
        if self.kind in MESSAGE_KINDS:
            how.append(f", {self.share:.0%}")
        if "seconds" in _KEYS[self.kind]:
            how.append(f", {self.seconds:g} s")
        return f"{self.kind} {whom}{''.join(how)}"

    def as_toml(self) -> str:
        """The fault as a table of a script."""
        lines = ["[[fault]]", f'kind = "{self.kind}"', f"at = {self.at:g}"]
        if self.until < math.inf:
            lines.append(f"until = {self.until:g}")
        if self.nodes:
            lines.append(f"nodes = {json.dumps(list(self.nodes))}")
        elif self.kind == "partition":
            lines.append(f"sides = {json.dumps(self._sides())}")
        else:
            lines.append(f"between = {json.dumps(list(self._ends()))}")
        if "factor" in _KEYS[self.kind]:
            lines.append(f"factor = {self.factor:g}")
        if self.kind in MESSAGE_KINDS:
            lines.append(f"share = {self.share:g}")
        if "seconds" in _KEYS[self.kind]:
            lines.append(f"seconds = {self.seconds:g}")
        return "\n".join(lines) + "\n"

    def _ends(self) -> tuple[list[str], list[str]]:
        """The two ends, each direction once."""
        first = min(self.pairs)[0]
        others = sorted(other for name, other in self.pairs if name == first)
        return sorted({name for name, other in self.pairs if other == others[0]}), others

    def _sides(self) -> list[list[str]]:
        names = sorted({name for pair in self.pairs for name in pair})
        sides: list[list[str]] = []
        for name in names:
            side = next((side for side in sides if (name, side[0]) not in self.pairs), None)
            if side is None:
                sides.append([name])
            else:
                side.append(name)
        return sides


def load_faults(path: Path, names: Sequence[str]) -> tuple[Fault, ...]:
    """Reads a script from a file, for nodes of these names."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise FaultError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise FaultError(f"{path}: is not a text in UTF-8 ({error.reason})") from None
    return parse_faults(text, names, where=str(path))


def parse_faults(text: str, names: Sequence[str], *, where: str = "faults") -> tuple[Fault, ...]:
    """Reads the text of a script."""
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FaultError(f"{where}: not TOML: {error}") from None
    for key in found.keys() - {"fault"}:
        raise FaultError(f"{where}: there is no key {key!r} here; expected [[fault]] tables")
    return read_faults(found.get("fault", []), names, where=where)


def read_faults(tables: Any, names: Sequence[str], *, where: str = "faults") -> tuple[Fault, ...]:
    """Reads the `[[fault]]` tables of a script."""
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise FaultError(f"{where}: expected [[fault]] tables, in double brackets")
    return tuple(_fault(table, names, f"{where}, fault {number}") for number, table in enumerate(tables, 1))


def _fault(table: dict[str, Any], names: Sequence[str], where: str) -> Fault:
    kind = table.get("kind")
    if kind is None:
        raise FaultError(f"{where}: expected a kind: one of {', '.join(KINDS)}")
    if kind not in KINDS:
        raise FaultError(f"{where}: there is no kind {kind!r}; {nearest(str(kind), KINDS)}")
    expected = _KEYS[kind] | {"kind", "at", "until"} | ({"share"} if kind in MESSAGE_KINDS else set())
    for key in table.keys() - expected:
        raise FaultError(f"{where}: there is no key {key!r} for {kind!r}; {nearest(key, sorted(expected))}")
    for key in sorted((_KEYS[kind] | {"at"}) - table.keys()):
        raise FaultError(f"{where}: {kind!r} needs {key!r}")
    at, until = _seconds(table["at"], where, "at"), _seconds(table.get("until", math.inf), where, "until")
    if not 0 <= at < until:
        raise FaultError(f"{where}: expected 0 <= at < until, not at = {at:g}, until = {until:g}")
    nodes: tuple[str, ...] = ()
    pairs: frozenset[tuple[str, str]] = frozenset()
    if "nodes" in table:
        nodes = _match(table["nodes"], names, f"{where}: nodes")
    else:
        key = "sides" if kind == "partition" else "between"
        sides = [_match(side, names, f"{where}: {key}") for side in _sides(table[key], f"{where}: {key}", kind)]
        if kind == "partition" and len({*itertools.chain(*sides)}) < sum(map(len, sides)):
            raise FaultError(f"{where}: sides: expected every node on one side at most")
        ways = [(sides[0], sides[1])] if kind == "oneway" else itertools.permutations(sides, 2)
        found = {pair for one, other in ways for pair in itertools.product(one, other)}
        pairs = frozenset((a, b) for a, b in found if a != b)
        if not pairs:
            raise FaultError(f"{where}: {key}: expected different nodes, not {table[key]!r} alone")
    factor = table.get("factor", 1.0)
    if not isinstance(factor, int | float) or not 1 <= factor < math.inf:
        raise FaultError(f"{where}: factor: expected a number of at least 1, not {factor!r}")
    share = table.get("share", 0.1)
    if not isinstance(share, int | float) or not 0 < share <= 1 or (kind == "corrupt" and share > LARGEST_SHARE):
        most = LARGEST_SHARE if kind == "corrupt" else 1
        raise FaultError(f"{where}: share: expected a number above 0 and at most {most}, not {share!r}")
    seconds = _seconds(table.get("seconds", 0.0), where, "seconds")
    if not 0 <= seconds < math.inf:
        raise FaultError(f"{where}: seconds: expected a number of at least 0, not {seconds:g}")
    return Fault(kind, at, until, nodes, pairs, float(factor), float(share), seconds)


def _seconds(value: Any, where: str, key: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise FaultError(f"{where}: {key}: expected seconds, not {value!r}")
    return float(value)


def _sides(value: Any, where: str, kind: str) -> list[Any]:
    """The two ends, or at least two sides."""
    if not isinstance(value, list) or len(value) < 2 or (len(value) > 2 and kind != "partition"):
        expected = "at least two sides" if kind == "partition" else "two nodes or patterns"
        raise FaultError(f"{where}: expected {expected}, not {value!r}")
    return value


def _match(value: Any, names: Sequence[str], where: str) -> tuple[str, ...]:
    """The nodes that a name, a pattern, or a list of them matches."""
    patterns = value if isinstance(value, list) else [value]
    if not patterns:
        raise FaultError(f"{where}: expected at least one node's name or pattern, not []")
    found: dict[str, None] = {}
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise FaultError(f"{where}: expected a node's name or a pattern, not {pattern!r}")
        matching = fnmatch.filter(names, pattern)
        if not matching:
            raise FaultError(f"{where}: no node is called {pattern!r}; {nearest(pattern, names)}")
        found |= dict.fromkeys(matching)
    return tuple(name for name in names if name in found)

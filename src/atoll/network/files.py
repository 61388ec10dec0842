"""Networks as TOML: the format of docs/networks.md, read strictly.

A file with an unknown or invalid entry is refused in one line that names the place, the expected value and the nearest
valid name.  Units are part of the keys, in common forms: milliseconds, Mbit/s, GB.
"""

import dataclasses
import itertools
import math
import tomllib
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from atoll.errors import NetworkError, nearest
from atoll.network.bandwidth import read_bandwidth_trace
from atoll.network.model import LEAST_STEP_S, Fading, Gaps, Link, Network, Node, Outage, Phase, UpDown, Walk, Way

__all__ = ["load_network", "parse_network", "preset_names"]

LARGEST = 1e12
"""The largest number in a network; `inf` is for the end of an outage, and for no limit."""
STEP_S = 0.5
"""Seconds for a step of a node of speed 1."""
PRESETS = Path(__file__).parent / "presets"
T = TypeVar("T")


def preset_names() -> list[str]:
    """The networks that ship with Atoll."""
    return sorted(path.stem for path in PRESETS.glob("*.toml"))


def load_network(spec: str) -> Network:
    """A preset by name (`triangle`; `perfect:16` where the preset takes a number of nodes), or a network from a TOML
    file.
    """
    path = Path(spec)
    if path.suffix == ".toml" or len(path.parts) > 1:
        return dataclasses.replace(_load_file(path, spec, count=None), origin=str(path.resolve()))
    name, colon, number = spec.partition(":")
    if name not in preset_names():
        raise NetworkError(
            f"there is no network {_short(name)}; {nearest(name, preset_names())} (or the path of a .toml file)"
        )
    if colon and not (number.isdecimal() and len(number) <= 6 and int(number) > 0):
        raise NetworkError(f"network {spec!r}: expected a number of nodes after the colon, not {_short(number)}")
    found = _load_file(PRESETS / f"{name}.toml", name, count=int(number) if colon else None)
    return dataclasses.replace(found, origin=spec)


def _load_file(path: Path, shown: str, count: int | None) -> Network:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise NetworkError(f"network file {path}: expected text in UTF-8") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise NetworkError(f"network file {_short(str(path))[1:-1]}: {reason or 'not the name of a file'}") from None
    return parse_network(text, name=path.stem, shown=shown, folder=path.parent, count=count)


def parse_network(
    text: str, *, name: str, shown: str = "", folder: Path | None = None, count: int | None = None
) -> Network:
    """Parses a network from TOML.

    Args:
        text: TOML as in docs/networks.md.
        name: the name of the network.
        shown: the name of the file in error messages; default: `name`.
        folder: the folder of bandwidth traces; default: the current one.
        count: replaces the number of nodes, if the file has a number.
    """
    shown = shown or name
    try:
        table = _Table(tomllib.loads(text), shown)
    except tomllib.TOMLDecodeError as error:
        raise NetworkError(f"{shown}: not valid TOML: {error}") from None
    except (RecursionError, ValueError):
        raise NetworkError(f"{shown}: not valid TOML: nested too deeply, or a number too long") from None
    about = table.take("about", str, "")
    hubs = tuple(table.strings("hubs", []))
    run_s = table.number("run_s", None, above=0)
    node_entries, link_entries = table.tables("node"), table.tables("link")
    table.finish()
    nodes = _nodes(node_entries, shown, count)
    points = [*(node.name for node in nodes), *hubs]
    links: dict[frozenset[str], Link] = {}
    for index, entry in enumerate(link_entries, 1):
        where = f"{shown}, link {index}"
        for link in _links(_Table(entry, where), points, folder or Path()):
            # A later entry may single out a pair that an earlier, wider one has covered.
            links[frozenset((link.a, link.b))] = link
    return _located(
        shown,
        lambda: Network(name=name, nodes=nodes, hubs=hubs, links=tuple(links.values()), about=about, run_s=run_s),
    )


def _located(where: str, make: Callable[[], T]) -> T:
    """Makes a value whose own checks do not know the file, and adds the place to their errors."""
    try:
        return make()
    except NetworkError as error:
        raise NetworkError(f"{where}: {error}") from None


def _nodes(entries: list[Mapping[str, Any]], shown: str, count: int | None) -> tuple[Node, ...]:
    if not entries:
        raise NetworkError(f"{shown}: expected at least one [[node]] table")
    nodes: list[Node] = []
    for index, entry in enumerate(entries, 1):
        where = f"{shown}, node {index}"
        row = _Table(entry, where)
        names = row.strings("names", None)
        number = row.take("count", int, None)
        prefix = row.take("prefix", str, "")
        step_s = row.number("step_s", None, least=LEAST_STEP_S)
        speed = row.number("speed", None, above=0)
        memory_gb = row.number("memory_gb", None, above=0)
        encode_ms = row.number("encode_ms", 0.0, least=0.0)
        up_mbps = row.number("up_mbps", math.inf, above=0)
        down_mbps = row.number("down_mbps", math.inf, above=0)
        row.finish()
        if (names is None) == (number is None):
            raise NetworkError(f"{where}: expected either 'names' or 'count'")
        if number is not None and number < 1:
            raise NetworkError(f"{where}, count: expected a whole number above 0, not {number}")
        if step_s is not None and speed is not None:
            raise NetworkError(f"{where}: expected 'step_s' or 'speed', not both")
        if count is not None:
            if names is not None or len(entries) > 1:
                raise NetworkError(f"{shown}: its nodes are fixed, it takes no number of nodes")
            number = count
        for each in names or [f"{prefix}{place}" for place in range(number or 0)]:
            make = partial(
                Node,
                name=each,
                step_s=step_s if step_s is not None else STEP_S / (speed or 1.0),
                encode_s=encode_ms / 1e3,
                memory_bytes=None if memory_gb is None else round(memory_gb * 1e9),
                up_bps=up_mbps * 1e6,
                down_bps=down_mbps * 1e6,
            )
            nodes.append(_located(where, make))
    return tuple(nodes)


def _links(row: "_Table", points: list[str], folder: Path) -> list[Link]:
    """One [[link]] table: a link, or the same link between many pairs."""
    where = row.where
    between, among = row.strings("between", None), row.strings("among", None)
    there, back = _ways(row, folder)
    up_s, down_s = row.number("up_s", None, above=0), row.number("down_s", None, above=0)
    outages = tuple(
        _located(f"{where}, outages", partial(Outage, start_s=start, end_s=end)) for start, end in row.spans("outages")
    )
    gaps = row.numbers("gaps", Gaps)
    row.finish()
    if (between is None) == (among is None):
        raise NetworkError(f"{where}: expected either 'between' (two ends) or 'among' (every pair of them)")
    if (up_s is None) != (down_s is None):
        raise NetworkError(f"{where}: 'up_s' and 'down_s' come together")
    if between is not None:
        if len(between) != 2:
            raise NetworkError(f"{where}, between: expected two ends, not {len(between)}")
        firsts, seconds = (_matching(end, points, f"{where}, between") for end in between)
        pairs = [(a, b) for a in firsts for b in seconds if a != b]
    else:
        found = [name for end in among or [] for name in _matching(end, points, f"{where}, among")]
        pairs = list(itertools.combinations(dict.fromkeys(found), 2))
    up_down = None if up_s is None else UpDown(up_s=up_s, down_s=down_s)
    unique = {frozenset(pair): pair for pair in reversed(pairs)}  # "*" at both ends finds every pair twice
    make = partial(Link, there=there, back=back, outages=outages, up_down=up_down, gaps=gaps)
    return [make(a=a, b=b) for a, b in reversed(unique.values())]


def _matching(end: str, points: list[str], where: str) -> list[str]:
    found = [name for name in points if fnmatchcase(name, end)] if any(c in end for c in "*?[") else [end]
    if not found or found[0] not in points:
        raise NetworkError(f"{where}: there is no node or hub {end!r}; {nearest(end, points)}")
    return found


def _ways(row: "_Table", folder: Path) -> tuple[Way, Way]:
    """Both directions: each key has one value for both, or a list of two, from the first end to the second and back."""
    latency = row.both("latency_ms", 0.0, least=0)
    jitter = row.both("jitter_ms", 0.0, least=0)
    rate = row.both("rate_mbps", math.inf, above=0)
    loss = row.both("loss", 0.0, least=0)
    trace = row.strings("trace", None)
    files = [None, None] if trace is None else trace * 2 if len(trace) == 1 else trace
    if len(files) != 2:
        raise NetworkError(f"{row.where}, trace: expected one file or a list of two, not {len(files)}")
    traces = [each and _located(f"{row.where}, trace", partial(read_bandwidth_trace, folder / each)) for each in files]
    fading = [None if each is None else _fading(each) for each in row.both_tables("fading")]
    walk = row.numbers("walk", Walk)
    phases = tuple(_phase(_Table(each, f"{row.where}, phase {n}")) for n, each in enumerate(row.tables("phases"), 1))

    def way(n: int) -> Way:
        return Way(
            latency_s=latency[n] / 1e3,
            jitter_s=jitter[n] / 1e3,
            rate_bps=rate[n] * 1e6,
            loss=loss[n],
            trace=traces[n],
            fading=fading[n],
            walk=walk,
            phases=phases,
        )

    return _located(row.where, lambda: (way(0), way(1)))


def _fading(table: "_Table") -> Fading:
    quantiles = table.take("quantiles_mbps", list, None)
    every_s = table.number("every_s", 1.0, above=0)
    others = {key: table.number(key, None) for key in ("slow_share", "slow_s", "fast_s")}
    table.finish()
    for key, value in {"quantiles_mbps": quantiles, **others}.items():
        if value is None:
            raise NetworkError(f"{table.where}: expected '{key}'")
    if not all(type(each) in (int, float) and abs(each) <= LARGEST for each in quantiles):
        raise NetworkError(f"{table.where}, quantiles_mbps: expected a list of numbers")
    rates = tuple(float(each) * 1e6 for each in quantiles)
    return _located(table.where, partial(Fading, quantiles_bps=rates, every_s=every_s, **others))


def _phase(table: "_Table") -> Phase:
    latency_ms = table.number("latency_ms", 0.0, least=0)
    rate_mbps = table.number("rate_mbps", math.inf, above=0)
    table.finish()
    return Phase(latency_s=latency_ms / 1e3, rate_bps=rate_mbps * 1e6)


class _Table:
    """A TOML table from which keys are taken one by one; keys that are left are errors."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.where = where
        self._values = dict(values)
        self._known: list[str] = []

    def take(self, key: str, kind: Any, default: Any) -> Any:
        self._known.append(key)
        value = self._values.pop(key, default)
        kinds = kind if isinstance(kind, tuple) else (kind,)
        # TOML's true is Python's 1: a boolean in place of a number is a mistake.
        wrong = not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds)
        if value is not default and wrong:
            expected = " or ".join(_KIND_NAMES[each] for each in kinds if each is not int or float not in kinds)
            raise NetworkError(f"{self.where}, {key}: expected {expected}, not {value!r}")
        return value

    def number(self, key: str, default: float | None, *, least: float | None = None, above: float | None = None) -> Any:
        value = self.take(key, (int, float), default)
        if value is not default:
            self._check(key, value, least, above)
        return value

    def both(self, key: str, default: float, *, least: float | None = None, above: float | None = None) -> list[float]:
        value = self.take(key, (int, float, list), default)
        values = value if isinstance(value, list) else [value, value]
        if len(values) != 2 or not all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
            raise NetworkError(f"{self.where}, {key}: expected a number or a list of two, not {value!r}")
        for each in values:
            if each != default:
                self._check(key, each, least, above)
        return [float(each) for each in values]

    def _check(self, key: str, value: float, least: float | None, above: float | None) -> None:
        wrong = (least is not None and not value >= least) or (above is not None and not value > above)
        if wrong or not abs(value) <= LARGEST:
            expected = "a finite number"
            if wrong and least is not None:
                expected = f"a number of at least {least:g}"
            elif wrong:
                expected = f"a number above {above:g}"
            raise NetworkError(f"{self.where}, {key}: expected {expected}, not {_short(value)}")

    def strings(self, key: str, default: list[str] | None) -> Any:
        value = self.take(key, (str, list), default)
        if value is default:
            return default
        values = value if isinstance(value, list) else [value]
        if not values or not all(isinstance(each, str) for each in values):
            raise NetworkError(f"{self.where}, {key}: expected names, not {value!r}")
        return values

    def spans(self, key: str) -> list[tuple[float, float]]:
        value = self.take(key, list, [])
        for each in value:
            if not (isinstance(each, list) and len(each) == 2 and all(type(n) in (int, float) for n in each)):
                raise NetworkError(f"{self.where}, {key}: expected pairs [start, end] in seconds, not {each!r}")
            for time in each:
                if time != math.inf:
                    self._check(key, time, None, None)
        return [(float(start), float(end)) for start, end in value]

    def tables(self, key: str) -> list[Mapping[str, Any]]:
        value: list[Mapping[str, Any]] = self.take(key, list, [])
        if not all(isinstance(each, dict) for each in value):
            raise NetworkError(f"{self.where}, {key}: expected tables")
        return value

    def both_tables(self, key: str) -> list["_Table | None"]:
        value = self.take(key, (dict, list), None)
        values = value if isinstance(value, list) else [value, value]
        if len(values) != 2 or not all(each is None or isinstance(each, dict) for each in values):
            raise NetworkError(f"{self.where}, {key}: expected a table or a list of two")
        return [None if each is None else _Table(each, f"{self.where}, {key}") for each in values]

    def numbers(self, key: str, what: type[T]) -> T | None:
        """A table with a number for each field of the dataclass `what`, by the field's own name."""
        value = self.take(key, dict, None)
        if value is None:
            return None
        table = _Table(value, f"{self.where}, {key}")
        names = [field.name for field in dataclasses.fields(what)]  # type: ignore[arg-type]
        values = {name: table.number(name, None) for name in names}
        table.finish()
        for name, number in values.items():
            if number is None:
                raise NetworkError(f"{table.where}: expected '{name}'")
        return _located(table.where, lambda: what(**values))

    def finish(self) -> None:
        for key in self._values:
            raise NetworkError(f"{self.where}: there is no key {key!r} here; {nearest(key, self._known)}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:20]}… ({len(text)} characters)"


_KIND_NAMES = {
    str: "text",
    int: "a whole number",
    float: "a number",
    list: "a list",
    dict: "a table",
}

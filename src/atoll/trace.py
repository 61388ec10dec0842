"""The trace of a run: typed events, one JSON object a line, written as the run goes and read back by one reader.

The first line says what the file is: ``{"atoll_trace": 1}``.  Every other line is an event: ``kind`` names its class
below, the other keys are the class's fields; docs/traces.md lists them all.  Times are virtual or real seconds since
the run began, to the microsecond.  A run that dies leaves a readable trace: at most its last line is torn, and the
reader leaves that one out.

A new kind of event is a new frozen dataclass that derives from `Event`; nothing else changes.
"""

import dataclasses
import json
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, TextIO

from atoll.errors import TraceError, nearest

__all__ = [
    "CheckpointSaved",
    "Computed",
    "ContributionRefused",
    "DataUsed",
    "Emulated",
    "EpochEnded",
    "Event",
    "EventsLost",
    "Exchanged",
    "FaultChanged",
    "FinalTested",
    "IslandsFormed",
    "Joined",
    "LinkChanged",
    "MeanTested",
    "MessageRefused",
    "Planned",
    "ReachChanged",
    "Recorder",
    "RunEnded",
    "RunStarted",
    "SeatTaken",
    "StageReported",
    "Tested",
    "Trace",
    "TraceTail",
    "TrainingStarted",
    "Transferred",
    "ViewChanged",
    "Waited",
    "WayMeasured",
    "encode_event",
    "encode_header",
    "read_trace",
]

VERSION = 1
_FLUSH_EVERY = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """Something that happened at `at` (seconds since the run began)."""

    kinds: ClassVar[dict[str, type["Event"]]] = {}
    kind: ClassVar[str] = ""
    at: float

    def __init_subclass__(cls) -> None:
        # Name and register every subclass.  (A dataclass with slots is made twice; the second, final class wins.)
        cls.kind = "".join(f"_{c.lower()}" if c.isupper() else c for c in cls.__name__).lstrip("_")
        Event.kinds[cls.kind] = cls


@dataclass(frozen=True, kw_only=True, slots=True)
class RunStarted(Event):
    """The first event: what runs, where, and from which seed."""

    atoll: str
    """Version of Atoll."""
    world: str
    """`sim`, `emulate` or `live`."""
    network: str
    nodes: tuple[str, ...]
    links: tuple[str, ...]
    seed: int
    run: str = ""
    """Which run it is, over real links: the traces of its nodes have it in common."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkChanged(Event):
    """A link went down or came back."""

    link: str
    up: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class FaultChanged(Event):
    """A fault of the run's script began or ended."""

    fault: str
    """Its kind, and whom it is about."""
    nodes: tuple[str, ...]
    """The nodes that are gone, slow or stand still."""
    on: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class ReachChanged(Event):
    """A node noticed that a peer can, or cannot, be reached."""

    node: str
    peer: str
    reachable: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class WayMeasured(Event):
    """What a node knows of its way to a peer that it reaches; recorded every few seconds over real links."""

    node: str
    peer: str
    via: str
    """Who hands on what they say to each other; empty where nobody has to."""
    round_trip_s: float
    rate: float
    """Bytes a second that bulk gets; 0 where there was none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ViewChanged(Event):
    """A node exchanges with these members from now on."""

    node: str
    view: str
    members: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Joined(Event):
    """A node that had no agreement in common with the others was handed what they hold."""

    node: str
    view: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Transferred(Event):
    """A message arrived."""

    sender: str
    receiver: str
    channel: str
    bytes: int
    """All of it: body, head and frame."""
    since: float
    """When it was handed to the transport."""
    began: float
    """When its first byte left; until then it waited behind others or for the link."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Computed(Event):
    """A node finished a piece of computing."""

    node: str
    since: float
    steps: float


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingStarted(Event):
    """What is trained, and how."""

    task: str
    strategy: str
    role: str
    """`strategy`; `ideal`: what all are compared with; `perfect`: a strategy on links that cost nothing."""
    shards: str
    target: float
    rising: bool
    """Whether the measure rises towards the target (accuracy) or falls (loss)."""
    parameters: int

    def reached(self, measure: float) -> bool:
        """Whether a measure is the target, or better."""
        return measure >= self.target if self.rising else measure <= self.target


@dataclass(frozen=True, kw_only=True, slots=True)
class Tested(Event):
    """A node tested its own model."""

    node: str
    steps: int
    """Training steps that the node has done."""
    measure: float
    sent_bytes: int
    """Every byte that it has handed to the transport so far."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MeanTested(Event):
    """The mean of all replicas was tested (in simulation, where somebody can see all of them)."""

    measure: float


@dataclass(frozen=True, kw_only=True, slots=True)
class FinalTested(Event):
    """At the end a node's model was tested on all examples that the task keeps for it."""

    node: str
    measure: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ContributionRefused(Event):
    """A node did not send its contribution to an exchange, or refused another's, whom `why` names."""

    node: str
    name: str
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochEnded(Event):
    """A node has gone through its shard once more, and so many different examples of it were used."""

    node: str
    epoch: int
    examples: int
    of: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DataUsed(Event):
    """What a run has made of the training examples: how many there are and how many were ever used; how often one was
    used at least, on average and at most.
    """

    examples: int
    used: int
    least: int
    mean: float
    most: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointSaved(Event):
    """Every node has saved where it stands; a run that is resumed goes on from here."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Emulated(Event):
    """How well the network of an emulated run was emulated: packets, the share that came late and by how much at most,
    the switch's share of a core, and whether the run is to be believed.
    """

    by: str
    """How nodes were joined: `tun`, `veth`, or `proxy`, with which outages are kinder than real ones."""
    packets: int
    late_share: float
    latest_s: float
    cpu_share: float
    valid: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class MessageRefused(Event):
    """What arrived at a node was not what its sender had sent; it is sent again."""

    node: str
    sender: str
    channel: str
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned(Event):
    """A node decided how an exchange is to go: which way, how much of the update, and how long that should take."""

    node: str
    name: str
    via: str
    ratio: float
    seconds: float
    why: str
    """`first`, `gain` or `links` where the decision is another one than before."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Exchanged(Event):
    """A node took the result of an exchange."""

    node: str
    name: str
    via: str
    since: float
    members: int
    late: bool
    """Whether the node had trained on meanwhile, so that the result was a correction."""
    digest: str = ""
    """Of what was agreed on: the same for all who took this result.  Empty where nothing is agreed on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Waited(Event):
    """A node's training stood still."""

    node: str
    since: float
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class IslandsFormed(Event):
    """Who holds which layers of the model together."""

    islands: tuple[str, ...]
    """Each as its stages in order: `A1 0-4, A2 4-9`, layers from the first to the one behind the last."""
    samples_a_second: float
    """As predicted, of all islands together."""
    why: str = ""
    """There are none: why."""

    @property
    def lasts(self) -> set[str]:
        """The nodes of last stages, which test."""
        return {island.rsplit(", ", 1)[-1].split()[0] for island in self.islands}


@dataclass(frozen=True, kw_only=True, slots=True)
class StageReported(Event):
    """What a stage of an island has done, since it last said so."""

    node: str
    island: str
    stage: int
    updates: int
    """In all."""
    stale_mean: float
    """Updates between a batch's forward and backward pass."""
    stale_most: int
    holds: int
    """How many batches it may have between the two: it is fewer updates late than that."""
    versions: int
    """Of its weights, that it keeps now."""
    most_bytes: int = 0
    """Of memory that it has used at one time."""
    given_up: int
    """Batches that did not come back, in all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SeatTaken(Event):
    """A node holds a stage of an island from now on, or none."""

    node: str
    island: str
    """Its name; empty: there is no stage for this node."""
    stage: int
    stages: int
    start: int
    """The first layer."""
    stop: int
    """The one behind the last."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EventsLost(Event):
    """A node could not write its trace for a while, and these many events are missing before this one."""

    node: str
    count: int
    since: float
    """When the first of them happened."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunEnded(Event):
    """The last event."""

    reason: str
    """`finished`, `time limit`, `stalled` or `failed: …`."""


class Recorder(Protocol):
    """Where events go."""

    def record(self, event: Event) -> None: ...

    def flush(self) -> None: ...


class Trace:
    """Writes events to a file; a context manager.  Events come in order of time.

    Args:
        path: the file.
        append: whether to go on with what it holds.
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
        fields[name] = round(value, 6) if isinstance(value, float) else value
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False, allow_nan=False) + "\n"


def read_trace(path: Path) -> Iterator[Event]:
    """The events of a trace file, in order.  A torn last line is left out; anything else that is wrong is a
    `TraceError`.
    """
    try:
        with path.open(encoding="utf-8") as lines:
            _check_header(path, lines.readline())
            for number, line in enumerate(lines, 2):
                if not line.endswith("\n"):
                    return  # the run died while writing it
                yield _decode(line, f"{path}, line {number}")
    except OSError as error:
        raise TraceError(f"trace {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise TraceError(f"trace {path}: not a trace of Atoll (expected UTF-8 text)") from None


class TraceTail:
    """Follows a trace that is being written.

    Args:
        path: the trace, which may not be there yet.
        kinds: the events of interest; others are not even read.
    """

    def __init__(self, path: Path, *kinds: type[Event]) -> None:
        self._path = path
        self._marks = [f'"kind":"{kind.kind}"' for kind in kinds]
        self._offset = 0

    def look(self) -> Iterator[Event]:
        """What has come since, in whole lines."""
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
                yield _decode(line, str(self._path))


def _check_header(path: Path, line: str) -> None:
    try:
        version = json.loads(line)["atoll_trace"]
    except (ValueError, KeyError, TypeError):
        raise TraceError(f'trace {path}: not a trace of Atoll (expected the first line {{"atoll_trace": …}})') from None
    if version != VERSION:
        raise TraceError(f"trace {path}: version {version}; this Atoll reads version {VERSION}")


def _decode(line: str, where: str) -> Event:
    try:
        values = json.loads(line)
        kind = values.pop("kind")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise TraceError(f"trace {where}: expected a JSON object with a 'kind', not {line.strip()[:60]!r}") from None
    made = Event.kinds.get(kind)
    if made is None:
        raise TraceError(f"trace {where}: there is no event {kind!r}; {nearest(str(kind), Event.kinds)}")
    readers = _readers(kind)
    missing = [name for name in _required(kind) if name not in values]
    unknown = [name for name in values if name not in readers]
    if missing or unknown:
        wrong = f"has no {missing[0]!r}" if missing else f"has {unknown[0]!r}; {nearest(unknown[0], readers)}"
        raise TraceError(f"trace {where}: event {kind!r} {wrong}")
    try:
        return made(**{name: read(values[name]) for name, read in readers.items() if name in values})
    except (TypeError, ValueError) as error:
        raise TraceError(f"trace {where}: event {kind!r}: {error}") from None


@cache
def _readers(kind: str) -> dict[str, Callable[[Any], Any]]:
    hints = typing.get_type_hints(Event.kinds[kind])
    return {name: _reader(hints[name]) for name in _names(kind)}


@cache
def _required(kind: str) -> tuple[str, ...]:
    """The fields without a default: a trace may be older than the others."""
    fields = dataclasses.fields(Event.kinds[kind])
    missing = dataclasses.MISSING
    return tuple(each.name for each in fields if each.default is missing and each.default_factory is missing)


def _reader(hint: Any) -> Callable[[Any], Any]:
    """Turns what JSON gives into what a field is declared as, or raises `TypeError`."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        inner = _reader(arguments[0])
        return lambda value: tuple(inner(each) for each in value)
    if origin is dict:
        inner = _reader(arguments[1])
        return lambda value: {key: inner(each) for key, each in value.items()}
    if origin is types.UnionType:
        inner = _reader(next(each for each in arguments if each is not types.NoneType))
        return lambda value: None if value is None else inner(value)

    def read(value: Any) -> Any:
        if hint is float and type(value) is int:
            return float(value)
        if type(value) is not hint:
            raise TypeError(f"expected {hint.__name__}, found {value!r}")
        return value

    return read

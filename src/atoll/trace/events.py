"""The types of events in a trace.

A new kind of event is a new frozen dataclass that derives from `Event`, and a row in docs/traces.md; nothing else
changes.  A field that is added to a kind has a default, so that older traces can be read.
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol

__all__ = [
    "CheckpointSaved",
    "Computed",
    "ContributionRefused",
    "DataUsed",
    "Emulated",
    "EpochEnded",
    "Event",
    "EventsLost",
    "ExamplesUsed",
    "Exchanged",
    "FaultChanged",
    "FinalTested",
    "Joined",
    "LinkChanged",
    "MeanTested",
    "MessageRefused",
    "Planned",
    "ReachChanged",
    "Recorder",
    "RunEnded",
    "RunStarted",
    "Tested",
    "TrainingStarted",
    "Transferred",
    "ViewChanged",
    "Waited",
    "WayMeasured",
]


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
    """The first event: the version, the world, the network and the seed."""

    atoll: str
    """Version of Atoll."""
    world: str
    """`sim`, `emulate` or `live`."""
    network: str
    nodes: tuple[str, ...]
    links: tuple[str, ...]
    seed: int
    run: str = ""
    """The id of the run, over real links: the same in the traces of all its nodes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkChanged(Event):
    """A link went down or came back."""

    link: str
    up: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class FaultChanged(Event):
    """A fault of the run's script began or ended."""

    fault: str
    """Its kind, and the nodes that it affects."""
    nodes: tuple[str, ...]
    """The nodes that are down, slow or frozen."""
    on: bool

    @property
    def is_crash(self) -> bool:
        """Whether nodes have crashed, or restarted."""
        return self.fault.split()[0] == "crash"


@dataclass(frozen=True, kw_only=True, slots=True)
class ReachChanged(Event):
    """A node noticed that a peer can, or cannot, be reached."""

    node: str
    peer: str
    reachable: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class WayMeasured(Event):
    """A node's measurement of its route to a reachable peer; recorded every few seconds over real links."""

    node: str
    peer: str
    via: str
    """The node that relays their messages; empty for a direct link."""
    round_trip_s: float
    rate: float
    """Bytes a second of bulk messages; 0 if there were none."""
    connections: int = 1
    """Of how many connections the bulk lane consists."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ViewChanged(Event):
    """A node exchanges with these members from now on."""

    node: str
    view: str
    members: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Joined(Event):
    """A node that had no agreement in common with the others received their state."""

    node: str
    view: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Transferred(Event):
    """A message arrived."""

    sender: str
    receiver: str
    channel: str
    bytes: int
    """The whole size: body, head and frame."""
    since: float
    """When it was handed to the transport."""
    began: float
    """When its first byte left; until then it waited behind others or for the link."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Computed(Event):
    """A node finished a computation."""

    node: str
    since: float
    steps: float


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingStarted(Event):
    """The task, the strategy and the target of a run."""

    task: str
    strategy: str
    role: str
    """`strategy`; `ideal`: the reference for all; `perfect`: a strategy on links that cost nothing."""
    shards: str
    target: float
    rising: bool
    """Whether the measure rises towards the target (accuracy) or falls (loss)."""
    parameters: int

    def reached(self, measure: float) -> bool:
        """Whether a measure is as good as the target, or better."""
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
    """The mean of all replicas was tested (only in simulation)."""

    measure: float


@dataclass(frozen=True, kw_only=True, slots=True)
class FinalTested(Event):
    """At the end a node's model was tested on all examples that the task keeps for it."""

    node: str
    measure: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ContributionRefused(Event):
    """A node did not send its contribution to an exchange, or refused that of the node that `why` names."""

    node: str
    name: str
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochEnded(Event):
    """A node has finished one more pass over its shard, with this many different examples."""

    node: str
    epoch: int
    examples: int
    of: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DataUsed(Event):
    """How a run has used the training examples: how many there are and how many were ever used; the least, mean and
    greatest number of uses of an example.
    """

    examples: int
    used: int
    least: int
    mean: float
    most: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ExamplesUsed(Event):
    """How often one node has used each training example: 64-bit numbers, compressed, in base 64."""

    node: str
    counts: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointSaved(Event):
    """Every node has saved its state; a resumed run continues from here."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Emulated(Event):
    """The quality of an emulated network: packets, the share that came late and the latest one, the switch's share of a
    core, and whether the run is valid.
    """

    by: str
    """How nodes were joined: `tun`, `veth`, or `proxy`, with which outages are milder than real ones."""
    packets: int
    late_share: float
    latest_s: float
    cpu_share: float
    valid: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class MessageRefused(Event):
    """A node refused a message that was malformed, damaged or never received; or, over real links, a connection."""

    node: str
    sender: str
    channel: str
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned(Event):
    """A node planned an exchange: its route, the share of the update that is sent, and the expected time."""

    node: str
    name: str
    via: str
    ratio: float
    seconds: float
    why: str
    """`first`, `gain` or `links` if the decision has changed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Exchanged(Event):
    """A node took the result of an exchange."""

    node: str
    name: str
    via: str
    since: float
    members: int
    late: bool
    """Whether the node continued to train meanwhile, so that the result was a correction."""
    digest: str = ""
    """The digest of the result: the same for all nodes that took it.  Empty if nothing was agreed on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Waited(Event):
    """A node's training waited."""

    node: str
    since: float
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class EventsLost(Event):
    """A node could not write its trace for a while; this many events are missing before this one."""

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
    """Records events."""

    def record(self, event: Event) -> None: ...

    def flush(self) -> None: ...

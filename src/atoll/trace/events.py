"""The events of a run, as types: what a trace is made of.

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

    @property
    def is_crash(self) -> bool:
        """Whether nodes have crashed, or come back."""
        return self.fault.split()[0] == "crash"


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
class ExamplesUsed(Event):
    """How often one node has used each training example: 64-bit numbers, compressed, in base 64."""

    node: str
    counts: str


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

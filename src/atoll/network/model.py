"""The description of a network: frozen values for its nodes, the links between them, and how those links vary over
time.

Nothing here changes.  `atoll.network.weather` turns a link into the times at which it changes, and worlds apply them.
Rates are in bits a second for each direction, latencies in seconds one way.
"""

import dataclasses
import math
import re
from dataclasses import dataclass, field

from atoll.errors import NetworkError, nearest
from atoll.network.bandwidth import BandwidthTrace

__all__ = ["Fading", "Gaps", "Link", "Network", "Node", "Outage", "Phase", "UpDown", "Walk", "Way"]

LEAST_S = 0.001
"""The shortest time between two changes of weather."""
LEAST_STEP_S = 1e-6
"""The shortest step: with steps of no time, a simulation's clock would never advance."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def _need(ok: bool, what: str) -> None:  # noqa: FBT001 - reads as an assertion
    if not ok:
        raise NetworkError(what)


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """One participant: its computing speed, its memory and its access to the network."""

    name: str
    step_s: float = 0.5
    """Seconds that one training step takes."""
    encode_s: float = 0.0
    """Seconds that encoding, decoding or adding a million values of an exchange takes."""
    memory_bytes: int | None = None
    """Its memory; `None`: not declared."""
    up_bps: float = math.inf
    """Its total sending rate, over all links."""
    down_bps: float = math.inf
    """Its total receiving rate."""

    def __post_init__(self) -> None:
        _need(bool(_NAME.fullmatch(self.name)), f"a node's name is letters, digits, '_', '.', '-', not {self.name!r}")
        _need(
            LEAST_STEP_S <= self.step_s < math.inf,
            f"step_s of {self.name} must be at least {LEAST_STEP_S:g} s, not {self.step_s}: time would stand still",
        )
        _need(0 <= self.encode_s < math.inf, f"encode_s of {self.name} must be at least 0, not {self.encode_s}")
        _need(self.memory_bytes is None or self.memory_bytes > 0, f"memory of {self.name} must be more than 0")
        _need(self.up_bps > 0 and self.down_bps > 0, f"up and down rates of {self.name} must be more than 0")


@dataclass(frozen=True, kw_only=True, slots=True)
class Walk:
    """A latency that does a random walk: it starts at U(low, high) and moves by U(−move, move) after every message,
    never below 0.
    """

    low_s: float
    high_s: float
    move_s: float

    def __post_init__(self) -> None:
        _need(0 <= self.low_s <= self.high_s < math.inf, "a walk needs 0 <= low <= high")
        _need(self.move_s >= 0, "a walk's move must be 0 or more")


@dataclass(frozen=True, kw_only=True, slots=True)
class Fading:
    """A rate that varies every second, as a mobile link's does, around a level that changes slowly.

    Every `every_s` a standard normal z is mapped to a rate through the distribution whose evenly spaced quantiles,
    from the 0th to the 100th percentile, are `quantiles_bps` (linear between them).  z is the sum of two AR(1)
    processes: one with the time constant `slow_s` and the share `slow_share` of the variance, and one with `fast_s`.
    """

    quantiles_bps: tuple[float, ...]
    slow_share: float
    slow_s: float
    fast_s: float
    every_s: float = 1.0

    def __post_init__(self) -> None:
        _need(len(self.quantiles_bps) >= 2, "fading needs at least two quantiles")
        _need(self.quantiles_bps[0] >= 0, "a fading rate cannot be below 0")
        _need(list(self.quantiles_bps) == sorted(self.quantiles_bps), "the quantiles of a fading rate must not fall")
        _need(self.quantiles_bps[-1] > 0, "a fading rate must be above 0 at times")
        _need(0 <= self.slow_share <= 1, "the slow share of a fading rate must be in [0, 1]")
        times = (self.slow_s, self.fast_s, self.every_s)
        _need(all(time >= LEAST_S for time in times), f"the times of a fading rate must be at least {LEAST_S} s")


@dataclass(frozen=True, kw_only=True, slots=True)
class Gaps:
    """Short outages of a link, which come in bursts, and now and then a long one.

    A gap begins `every_s` (exponential mean) after the last one ended or, with the probability `again`, already
    `again_s` after it.  It lasts `least_s` and a log-normal time of median `median_s` and shape `sigma`, but at most
    `most_s`.  Long ones come `long_every_s` (exponential mean) apart and last U(`long_least_s`, `long_most_s`).
    """

    every_s: float
    again: float
    again_s: float
    median_s: float
    sigma: float
    least_s: float
    most_s: float
    long_every_s: float
    long_least_s: float
    long_most_s: float

    def __post_init__(self) -> None:
        times = (self.every_s, self.again_s, self.long_every_s)
        _need(all(time >= LEAST_S for time in times), f"gaps must be at least {LEAST_S} s apart")
        _need(0 <= self.again < 1, "the probability of another gap soon must be in [0, 1)")
        _need(self.sigma >= 0 and self.median_s > 0, "gaps need a positive median and a sigma of 0 or more")
        _need(0 < self.least_s <= self.most_s, "gaps need 0 < least <= most")
        _need(0 < self.long_least_s <= self.long_most_s, "long gaps need 0 < least <= most")


@dataclass(frozen=True, kw_only=True, slots=True)
class Phase:
    """The latency and rate of a link for one equal part of the network's `run_s`."""

    latency_s: float
    rate_bps: float

    def __post_init__(self) -> None:
        _need(0 <= self.latency_s < math.inf, "a phase's latency must be 0 or more")
        _need(self.rate_bps > 0, "a phase's rate must be more than 0")


@dataclass(frozen=True, kw_only=True, slots=True)
class Outage:
    """A link is down from `start_s` until `end_s`, which may be infinity."""

    start_s: float
    end_s: float

    def __post_init__(self) -> None:
        _need(0 <= self.start_s < self.end_s, f"an outage needs 0 <= start < end, not {self.start_s} to {self.end_s}")


@dataclass(frozen=True, kw_only=True, slots=True)
class UpDown:
    """A link that is up and down for exponentially distributed times with these means, starting up."""

    up_s: float
    down_s: float

    def __post_init__(self) -> None:
        times = (self.up_s, self.down_s)
        _need(all(LEAST_S <= time < math.inf for time in times), f"mean up and down times must be at least {LEAST_S} s")


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """One direction of a link.  Its rate has one source: `rate_bps`, a `trace`, `fading`, or `phases`."""

    latency_s: float = 0.0
    jitter_s: float = 0.0
    rate_bps: float = math.inf
    loss: float = 0.0
    trace: BandwidthTrace | None = None
    fading: Fading | None = None
    walk: Walk | None = None
    phases: tuple[Phase, ...] = ()

    def __post_init__(self) -> None:
        _need(
            self.latency_s >= 0 and math.isfinite(self.latency_s), f"latency must be 0 or more, not {self.latency_s} s"
        )
        _need(self.jitter_s >= 0 and math.isfinite(self.jitter_s), f"jitter must be 0 or more, not {self.jitter_s} s")
        _need(self.rate_bps > 0, f"rate must be more than 0, not {self.rate_bps} bit/s")
        _need(0 <= self.loss < 1, f"loss must be in [0, 1), not {self.loss}")
        sources = [math.isfinite(self.rate_bps), self.trace is not None, self.fading is not None, bool(self.phases)]
        _need(sum(sources) <= 1, "a rate comes from one of: a rate, a trace, fading, phases")
        _need(not (self.walk and self.phases), "a latency comes from a walk or from phases, not from both")
        _need(not (self.latency_s and (self.walk or self.phases)), "a walk or phases set the latency: leave it out")

    @property
    def limited(self) -> bool:
        """Whether its rate is ever finite."""
        return (
            math.isfinite(self.rate_bps)
            or self.trace is not None
            or self.fading is not None
            or any(math.isfinite(phase.rate_bps) for phase in self.phases)
        )

    @property
    def most_rate_bps(self) -> float:
        """The highest rate it ever has."""
        if self.trace:
            return max(self.trace.rates_bps)
        if self.fading:
            return self.fading.quantiles_bps[-1]
        return max((phase.rate_bps for phase in self.phases), default=self.rate_bps)


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """A link of two directions between two points, which fail together."""

    a: str
    b: str
    there: Way = Way()
    """From `a` to `b`."""
    back: Way = Way()
    """From `b` to `a`."""
    outages: tuple[Outage, ...] = ()
    up_down: UpDown | None = None
    gaps: Gaps | None = None

    def __post_init__(self) -> None:
        _need(self.a != self.b, f"a link joins two different points, not {self.a} and itself")

    @property
    def name(self) -> str:
        return f"{self.a}~{self.b}"

    @property
    def fails(self) -> bool:
        """Whether it is ever down."""
        traces = [way.trace for way in (self.there, self.back) if way.trace]
        return bool(self.outages or self.up_down or self.gaps or any(trace.outages for trace in traces))

    @property
    def changes(self) -> bool:
        """Whether it ever changes during a run."""
        ways = (self.there, self.back)
        return self.fails or any(way.trace or way.fading or way.phases or way.walk for way in ways)


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """Nodes, hubs and links.  A hub is a point that only forwards: a site's switch, a carrier's core."""

    name: str
    nodes: tuple[Node, ...]
    links: tuple[Link, ...] = ()
    hubs: tuple[str, ...] = ()
    about: str = ""
    run_s: float | None = None
    """The expected length of a run; the phases of its links are equal parts of it."""
    origin: str = field(default="", compare=False, repr=False)
    """The name, or the file, that `load_network` read; empty if it was made in code."""

    def __post_init__(self) -> None:
        names = [node.name for node in self.nodes]
        _need(bool(names), "a network needs at least one node")
        points = [*names, *self.hubs]
        twice = [name for name in points if points.count(name) > 1] if len(set(points)) < len(points) else []
        _need(not twice, f"{twice[0] if twice else ''} is named twice")
        known = set(points)
        pairs: set[frozenset[str]] = set()
        for link in self.links:
            for end in (link.a, link.b):
                if end not in known:
                    raise NetworkError(f"link {link.name}: there is no node or hub {end!r}; {nearest(end, points)}")
            pair = frozenset((link.a, link.b))
            _need(pair not in pairs, f"link {link.name}: these two are joined already")
            pairs.add(pair)
            phased = link.there.phases or link.back.phases
            _need(not phased or self.run_s is not None, f"link {link.name} has phases: say how long the run is (run_s)")
        _need(self.run_s is None or 0 < self.run_s < math.inf, "run_s must be more than 0 and finite")
        for hub in self.hubs:
            _need(bool(_NAME.fullmatch(hub)), f"a hub's name is letters, digits, '_', '.', '-', not {hub!r}")

    def __len__(self) -> int:
        return len(self.nodes)

    @property
    def node_names(self) -> tuple[str, ...]:
        return tuple(node.name for node in self.nodes)

    def perfected(self) -> "Network":
        """The same nodes with links that cost no time: the network of the ideal."""
        hub = "everywhere"
        nodes = tuple(dataclasses.replace(node, up_bps=math.inf, down_bps=math.inf) for node in self.nodes)
        links = tuple(Link(a=node.name, b=hub) for node in nodes)
        return Network(
            name=f"perfect ({self.name})", nodes=nodes, links=links, hubs=(hub,), about=f"{self.name} with free links"
        )

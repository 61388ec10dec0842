"""How a node merges arriving models into its own.

For rounds (all members at once) a merge is a weight: the result is the weighted mean.  For pushes (models arrive at any
time) it is a rule for the arrivals of one step boundary.
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from atoll.strategies.replica import Quantity, Replica, Work
from atoll.vectors import Vector, added, divide, minus, zeros

__all__ = [
    "Arrival",
    "ByAge",
    "ByWork",
    "Drift",
    "Equal",
    "Mean",
    "Merge",
    "Own",
    "PushSum",
    "Weight",
    "average_buffers",
]


PAST_BYTES, LEAST_PAST = 64 << 20, 3
"""The memory limit for a node's own past models, and the least number of models to keep."""
MERGES_KEPT = 256
"""How many merge times a node keeps."""


class Weight(Protocol):
    """A member's weight in a round's mean."""

    def __call__(self, steps_since: int) -> float: ...


@dataclass(frozen=True, slots=True)
class Mean:
    """All members have equal weight."""

    def __call__(self, steps_since: int) -> float:  # noqa: ARG002 - the shape of the part
        return 1.0


@dataclass(frozen=True, slots=True)
class ByWork:
    """A member's weight is its number of steps since the last round."""

    def __call__(self, steps_since: int) -> float:
        return float(max(steps_since, 1))


@dataclass(frozen=True, slots=True)
class Arrival:
    """A model that a peer pushed."""

    sender: str
    sent_s: float
    """The time of the snapshot, on the sender's clock."""
    values: Vector
    work: Work
    buffers: Vector
    weight: float = 1.0
    told: Tensor | None = None
    """The values that the peer sent in this push; it sent the others earlier.  `None`: all are from this push."""


def average_buffers(replica: Replica, others: list[Vector]) -> None:
    """Sets buffers to the mean of the node's own and the arrived ones, however the weights are merged."""
    own = replica.read(Quantity.BUFFERS)
    if len(own):
        replica.write(Quantity.BUFFERS, divide(added([own, *others]), 1 + len(others)))


class Merge(Protocol):
    """Merges arrivals into a replica's parameters."""

    @property
    def conserves_mass(self) -> bool:
        """Whether a push gives a share of the node's mass away (push-sum), rather than a copy of its model."""

    @property
    def remembers(self) -> int:
        """How many of its own past models a node must keep."""

    def __call__(self, replica: Replica, arrivals: list[Arrival], own: "Own") -> None: ...


class Own:
    """The node's own state for merging: its mass, and its own parameters at its last step boundaries.

    Args:
        remembers: for how many past step boundaries they are needed.
        size: the number of parameters.
    """

    def __init__(self, remembers: int, size: int) -> None:
        kept = min(remembers, max(LEAST_PAST, PAST_BYTES // (4 * size))) if remembers and size else remembers
        self.mass = 1.0
        self._past: deque[tuple[float, Vector]] = deque(maxlen=kept)
        self._every = math.ceil(remembers / kept) if kept else 1
        """The interval between kept boundaries: it is larger for large models, so that they reach equally far back."""
        self._boundaries = 0
        self._merged_s: deque[float] = deque(maxlen=MERGES_KEPT)

    def merged(self, now: float, arrivals: int) -> None:
        """Records that `arrivals` arrivals were merged into the model."""
        self._merged_s.extend([now] * arrivals)

    def merged_since(self, time: float) -> int:
        """The number of arrivals merged since a time."""
        return sum(merged >= time for merged in self._merged_s)

    def remember(self, now: float, read: Callable[[], Vector]) -> None:
        """Called at every step boundary.

        Args:
            now: the time.
            read: reads the parameters.
        """
        if self._boundaries % self._every == 0:
            self._past.append((now, read()))
        self._boundaries += 1

    def forget(self) -> None:
        """Called when the node's model is replaced."""
        self._past.clear()
        self._merged_s.clear()

    def at(self, time: float) -> Vector | None:
        """The parameters at the last boundary not after `time`; the oldest kept ones if `time` is before all."""
        found: Vector | None = None
        for then, values in self._past:
            if found is None or then <= time:
                found = values
        return found


class _Copies:
    """The base of merges of copies."""

    __slots__ = ()
    conserves_mass = False
    remembers = 0


def _weighted(replica: Replica, arrivals: list[Arrival], weights: list[float]) -> None:
    """X ← (x + Σ w·arrival) / (1 + Σ w)."""
    total = replica.read(Quantity.PARAMETERS)
    for arrival, weight in zip(arrivals, weights, strict=True):
        total += arrival.values * weight
        replica.include(arrival.work)
    replica.write(Quantity.PARAMETERS, divide(total, 1 + sum(weights)))


@dataclass(frozen=True, slots=True)
class Equal(_Copies):
    """The mean of the own model and all that have arrived (odticn, 2023)."""

    def __call__(self, replica: Replica, arrivals: list[Arrival], own: Own) -> None:  # noqa: ARG002
        _weighted(replica, arrivals, [1.0] * len(arrivals))


@dataclass(frozen=True, slots=True)
class ByAge(_Copies):
    """An arrival counts less the older it is: exp(−age/τ)."""

    tau_s: float = 4.0

    def __call__(self, replica: Replica, arrivals: list[Arrival], own: Own) -> None:  # noqa: ARG002
        now = replica.world.now
        weights = [math.exp(-max(now - arrival.sent_s, 0.0) / self.tau_s) for arrival in arrivals]
        _weighted(replica, arrivals, weights)


@dataclass(frozen=True, slots=True)
class Drift(_Copies):
    """Compares an arrival with the own model at the time it was sent, and keeps what was learned since.

    x ← x + Σ (arrival − x(then)) / (1 + n).  So a model that is a minute old adds the difference of a minute ago, and
    does not pull the node back to its old state.  n counts the current arrivals and those that were merged while this
    one was in flight: it does not include them, and if all counted in full, models would oscillate around their mean.
    """

    remembers = 32

    def __call__(self, replica: Replica, arrivals: list[Arrival], own: Own) -> None:
        change = zeros(replica.size, replica.device)
        for arrival in arrivals:
            then = own.at(arrival.sent_s)
            differs = minus(arrival.values, replica.read(Quantity.PARAMETERS) if then is None else then)
            divide(differs, 1 + len(arrivals) + own.merged_since(arrival.sent_s))
            change += differs if arrival.told is None else differs * arrival.told
            replica.include(arrival.work)
        replica.add(Quantity.PARAMETERS, change)
        own.merged(replica.world.now, len(arrivals))


@dataclass(frozen=True, slots=True)
class PushSum:
    """Gossip that is unbiased for any choice of peers (Assran et al., 2019): x/w with both x and w pushed in shares.

    The parameters are the estimate z = x/w; a push carries a share of the mass w, and the mass of a push that cannot
    be sent returns.
    """

    conserves_mass = True
    remembers = 0

    def __call__(self, replica: Replica, arrivals: list[Arrival], own: Own) -> None:
        _weighted(replica, arrivals, [arrival.weight / own.mass for arrival in arrivals])
        own.mass += sum(arrival.weight for arrival in arrivals)

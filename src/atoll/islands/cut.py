"""Cutting a model into stages, one for each machine of an island, in the order of its pipeline.

Stages do not wait for each other, so the slowest stage, or the slowest link between two, sets the speed of the whole:
cuts minimise the time of the slowest, and every stage fits into its machine's memory.  The best of all cuts of a chain
of layers is found by dynamic programming, from the last stage to the first.

The number of batches that a stage may hold is bounded.  With one for itself and one for each later stage it is never
idle if links take no time; if they do, a few more are allowed, as memory permits.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

__all__ = ["Costs", "Cut", "Hop", "Layer", "Machine", "Memory", "Stage", "Terms", "best_cut", "cut"]

Table = NDArray[np.float64]
"""Indexed by the first layer and the end (one past the last layer)."""

FORWARD, BACKWARD, RECOMPUTE = 1.0, 2.0, 1.0
"""The cost of each, in forward passes."""
MOST_MORE = 12
"""The most batches that a stage may hold beyond one for itself and one for each later stage."""
QUEUE = 1.5
"""A tensor that arrives may find its stage busy: the time on a link counts this many times."""
WORTH = 0.995
"""One more batch is allowed if it reduces the time of a batch to less than this share."""


@dataclass(frozen=True, slots=True)
class Layer:
    """The cost of a layer."""

    name: str
    flops: float
    """Operations of a forward pass, for one sample."""
    output_bytes: float
    """The size of its output, for one sample."""
    kept_bytes: float
    """The bytes that its backward pass needs, for one sample: at least its input."""
    parameter_bytes: float


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine for one stage."""

    flops_a_second: float
    memory_bytes: float = math.inf
    name: str = ""


@dataclass(frozen=True, slots=True)
class Hop:
    """A link from one stage to the next, the same in both directions."""

    latency_s: float = 0.0
    bytes_a_second: float = math.inf
    there: float = 1.0
    """The share of time that it is up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How an island trains.

    Attributes:
        batch: samples that go through the stages together: a batch, or a piece of one.
        an_update: how many of those an update uses: there are fewer versions of the weights then.
        optimizer: the size of the optimiser's state, in copies of the parameters (Adam: 2).
        recompute: whether a forward pass keeps only its input, and the backward pass recomputes the rest.
        stash: whether a batch's backward pass uses the weights of its forward pass, so that those are kept.
        target_bytes: the size of a sample's targets, which are sent with it.
        wire: bytes sent for each byte of a layer's output.
    """

    batch: int
    an_update: int = 1
    optimizer: float = 2.0
    recompute: bool = False
    stash: bool = True
    target_bytes: float = 0.0
    wire: float = 1.0


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory that a stage needs, in bytes."""

    parameters: float
    optimizer: float
    """Gradients, and the optimiser's state."""
    stashes: float
    """Older weights, for batches whose backward pass needs them."""
    activations: float

    @property
    def total(self) -> float:
        return self.parameters + self.optimizer + self.stashes + self.activations


@dataclass(frozen=True, slots=True)
class Stage:
    """The layers of one machine."""

    start: int
    stop: int
    compute_s: float
    """The time of a batch, forward and backward."""
    send_s: float
    """The time to send its outputs to the next stage, or gradients back."""
    latency_s: float
    """The latency to the next stage."""
    there: float
    """The share of time that the link to the next stage is up."""
    holds: int
    """How many batches it may have between their forward and their backward passes."""
    memory: Memory


@dataclass(frozen=True, slots=True)
class Cut:
    """Which stage holds which layers."""

    stages: tuple[Stage, ...]

    @property
    def slowest_s(self) -> float:
        """The time that the slowest stage, or link, takes for a batch."""
        return max(max(stage.compute_s, stage.send_s) for stage in self.stages)

    @property
    def batch_s(self) -> float:
        """The time between two finished batches: set by the slowest stage or link, by the batches that may be in
        flight (Little's law), and by the time that links are down.
        """
        return max(self.slowest_s, self._round_s) / self.there

    @property
    def there(self) -> float:
        """The share of time that all links are up."""
        return math.prod(stage.there for stage in self.stages)

    @property
    def _round_s(self) -> float:
        found = way = 0.0
        for stage in reversed(self.stages):
            way += stage.compute_s + QUEUE * 2 * (stage.send_s + stage.latency_s)
            found = max(found, way / stage.holds)
        return found

    @property
    def limit(self) -> str:
        """The bottleneck of the pipeline."""
        if self.there < 0.9:
            return "links that are down"
        if self._round_s > 1.001 * self.slowest_s:
            return "memory for batches in flight"
        place = max(range(len(self.stages)), key=lambda i: max(self.stages[i].compute_s, self.stages[i].send_s))
        stage = self.stages[place]
        if stage.send_s > stage.compute_s:
            return f"the link after stage {place + 1}"
        return f"stage {place + 1}'s computation"

    @property
    def bubble(self) -> float:
        """The share of time that stages are idle, on average."""
        return 1 - sum(stage.compute_s for stage in self.stages) / len(self.stages) / self.batch_s


class Costs:
    """The costs of every span of layers."""

    def __init__(self, layers: Sequence[Layer], terms: Terms) -> None:
        self.layers = tuple(layers)
        self.terms = terms
        self.count = len(self.layers)

    def _spans(self, values: Sequence[float]) -> Table:
        """Sums over spans of layers; infinite for empty ones."""
        ends = np.concatenate([[0.0], np.cumsum(values)])
        sums: Table = ends[None, :] - ends[:, None]
        sums[np.tril_indices(self.count + 1)] = math.inf
        return sums

    @cached_property
    def work(self) -> Table:
        """Floating-point operations of a batch, forward and backward."""
        passes = FORWARD + BACKWARD + RECOMPUTE * self.terms.recompute
        return passes * self.terms.batch * self._spans([layer.flops for layer in self.layers])

    @cached_property
    def sent(self) -> Table:
        """Bytes of a batch that a span sends on, by its end."""
        sizes = [self.terms.wire * layer.output_bytes + self.terms.target_bytes for layer in self.layers]
        found: Table = self.terms.batch * np.array([0.0, *sizes])
        return found

    @cached_property
    def parameters(self) -> Table:
        return self._spans([layer.parameter_bytes for layer in self.layers])

    @cached_property
    def _kept(self) -> Table:
        return self.terms.batch * self._spans([layer.kept_bytes for layer in self.layers])

    @cached_property
    def _inputs(self) -> Table:
        """The bytes that a span keeps of a batch if it keeps only its input."""
        inputs = [layer.kept_bytes for layer in self.layers]
        found: Table = self.terms.batch * np.array([*inputs, math.inf])[:, None]
        return found

    def memory(self, holds: int) -> Table:
        """The memory of a stage that holds this many batches, for all spans."""
        return self._fixed(holds) * self.parameters + self._activations(holds)

    def _fixed(self, holds: int) -> float:
        return 2.0 + self.terms.optimizer + (math.ceil((holds - 1) / self.terms.an_update) if self.terms.stash else 0)

    def _activations(self, holds: int) -> Table:
        return self._inputs * holds + self._kept if self.terms.recompute else self._kept * holds

    def memory_of(self, start: int, stop: int, holds: int) -> Memory:
        parameters = float(self.parameters[start, stop])
        return Memory(
            parameters=parameters,
            optimizer=(1.0 + self.terms.optimizer) * parameters,
            stashes=(self._fixed(holds) - 2.0 - self.terms.optimizer) * parameters,
            activations=float(self._activations(holds)[start, stop]),
        )

    def stage(self, start: int, stop: int, machine: Machine, hop: Hop | None, holds: int) -> Stage:
        return Stage(
            start=start,
            stop=stop,
            compute_s=float(self.work[start, stop]) / machine.flops_a_second,
            send_s=float(self.sent[stop]) / hop.bytes_a_second if hop else 0.0,
            latency_s=hop.latency_s if hop else 0.0,
            there=hop.there if hop else 1.0,
            holds=holds,
            memory=self.memory_of(start, stop, holds),
        )

    def alone(self, machine: Machine, holds: int) -> Table:
        """The time of a batch on a machine, for all spans; infinite where a span does not fit."""
        found: Table = np.where(
            self.memory(holds) <= machine.memory_bytes, self.work / machine.flops_a_second, math.inf
        )
        return found


def cut(costs: Costs, machines: Sequence[Machine], hops: Sequence[Hop], more: int = 0) -> Cut | None:
    """The cut for these machines in this order whose slowest stage or link is the fastest.

    Args:
        costs: the costs of the layers.
        machines: one for each stage.
        hops: the link from each to the next.
        more: batches that each stage may hold beyond one for itself and one for each later stage.

    Returns:
        `None` if the model does not fit, or has too few layers.
    """
    count = len(machines)
    last = costs.alone(machines[-1], 1 + more)[:, costs.count]
    tails, choices = [last], []
    for place in reversed(range(count - 1)):
        both = np.maximum(costs.alone(machines[place], count - place + more), costs.sent / hops[place].bytes_a_second)
        ways = np.maximum(both, tails[-1])
        choices.append(ways.argmin(1))
        tails.append(ways.min(1))
    if not math.isfinite(tails[-1][0]):
        return None
    ends = [0]
    for choice in reversed(choices):
        ends.append(int(choice[ends[-1]]))
    spans = itertools.pairwise([*ends, costs.count])
    stages = [
        costs.stage(*span, machines[place], hops[place] if place < count - 1 else None, count - place + more)
        for place, span in enumerate(spans)
    ]
    return Cut(tuple(stages))


def best_cut(costs: Costs, machines: Sequence[Machine], hops: Sequence[Hop]) -> Cut | None:
    """The best cut, with as many more batches as are worth it and fit into memory."""
    best = cut(costs, machines, hops)
    for more in range(1, MOST_MORE + 1):
        if best is None or best.batch_s * best.there <= best.slowest_s / WORTH:
            break
        found = cut(costs, machines, hops, more)
        if found is None or found.batch_s >= WORTH * best.batch_s:
            break
        best = found
    return best

"""Cutting a model into stages, one for each machine of an island, in the order of its pipeline.

Stages do not wait for each other, so the slowest of them, or the slowest link between two, says how fast the whole is:
cuts are made where the slowest is least slow, and every stage fits into its machine's memory.  Among all cuts of a
chain of layers the best is found by dynamic programming, from the last stage to the first.

How many batches a stage may hold is bounded.  With one for itself and one for each later stage it is never idle where
links take no time; where they do, a few more are let in, as memory allows.
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
"""By the first layer and the one behind the last."""

FORWARD, BACKWARD, RECOMPUTE = 1.0, 2.0, 1.0
"""What each takes, in forward passes."""
MOST_MORE = 12
"""How many batches more than one a stage are let in, at most."""
QUEUE = 1.5
"""What comes over a link finds its stage at work on something else: how much longer than on the way it is away."""
WORTH = 0.995
"""One more is let in where that makes a batch take less than this much of the time."""


@dataclass(frozen=True, slots=True)
class Layer:
    """What a layer costs."""

    name: str
    flops: float
    """Of a forward pass, a sample."""
    output_bytes: float
    """What it hands on, a sample."""
    kept_bytes: float
    """What its backward pass needs, a sample: its input, at least."""
    parameter_bytes: float


@dataclass(frozen=True, slots=True)
class Machine:
    """What a stage runs on."""

    flops_a_second: float
    memory_bytes: float = math.inf
    name: str = ""


@dataclass(frozen=True, slots=True)
class Hop:
    """A link from one stage to the next, the same each way."""

    latency_s: float = 0.0
    bytes_a_second: float = math.inf
    there: float = 1.0
    """The share of time that it is not away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How an island trains.

    Attributes:
        batch: samples that go through the stages together: a batch, or a piece of one.
        an_update: how many of those an update learns from: there are fewer versions of the weights then.
        optimizer: what an optimiser remembers, in copies of the parameters (Adam: 2).
        recompute: whether a forward pass keeps its input alone, and the backward pass makes the rest again.
        stash: whether a batch's backward pass has the weights that its forward pass had, so that those are kept.
        target_bytes: what the targets of a sample take: they travel with it.
        wire: bytes that travel for a byte of what layers hand on.
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
    """What a stage needs of its machine's memory, in bytes."""

    parameters: float
    optimizer: float
    """Gradients, and what the optimiser remembers."""
    stashes: float
    """Weights of before, for batches whose backward pass needs them."""
    activations: float

    @property
    def total(self) -> float:
        return self.parameters + self.optimizer + self.stashes + self.activations


@dataclass(frozen=True, slots=True)
class Stage:
    """The layers that a machine holds."""

    start: int
    stop: int
    compute_s: float
    """What a batch takes, forward and backward."""
    send_s: float
    """What its outputs take to the next stage, and gradients back."""
    latency_s: float
    """To the next stage."""
    there: float
    """The share of time that the way to the next stage is not away."""
    holds: int
    """How many batches it may have between their forward and their backward passes."""
    memory: Memory


@dataclass(frozen=True, slots=True)
class Cut:
    """Who holds what."""

    stages: tuple[Stage, ...]

    @property
    def slowest_s(self) -> float:
        """What the slowest stage, or link, takes for a batch."""
        return max(max(stage.compute_s, stage.send_s) for stage in self.stages)

    @property
    def batch_s(self) -> float:
        """How often a batch comes out: as often as the slowest stage or link lets one through, and as often as there is
        room for another one (Little's law), while no link is away.
        """
        return max(self.slowest_s, self._round_s) / self.there

    @property
    def there(self) -> float:
        """The share of time that all links are there."""
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
        """What a batch waits for."""
        if self.there < 0.9:
            return "links that are away"
        if self._round_s > 1.001 * self.slowest_s:
            return "memory for batches on their way"
        place = max(range(len(self.stages)), key=lambda i: max(self.stages[i].compute_s, self.stages[i].send_s))
        stage = self.stages[place]
        if stage.send_s > stage.compute_s:
            return f"the link after stage {place + 1}"
        return f"stage {place + 1}'s computing"

    @property
    def bubble(self) -> float:
        """The share of time that stages have nothing to do, on average."""
        return 1 - sum(stage.compute_s for stage in self.stages) / len(self.stages) / self.batch_s


class Costs:
    """What every span of layers costs."""

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
        """Bytes of a batch that a span hands on, by the layer behind its last."""
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
        """What a span keeps of a batch if it keeps its input alone."""
        inputs = [layer.kept_bytes for layer in self.layers]
        found: Table = self.terms.batch * np.array([*inputs, math.inf])[:, None]
        return found

    def memory(self, holds: int) -> Table:
        """Of a stage that holds so many batches, for all spans."""
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
        """What a machine takes for a batch, for all spans; infinite where one does not fit."""
        found: Table = np.where(
            self.memory(holds) <= machine.memory_bytes, self.work / machine.flops_a_second, math.inf
        )
        return found


def cut(costs: Costs, machines: Sequence[Machine], hops: Sequence[Hop], more: int = 0) -> Cut | None:
    """The cut for these machines in this order whose slowest stage or link is the least slow.

    Args:
        costs: of the layers.
        machines: one for each stage.
        hops: from each to the next.
        more: batches that each stage may hold beside one for itself and one for each later stage.

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
    """The same, with as many batches let in as are worth it and as memory has room for."""
    best = cut(costs, machines, hops)
    for more in range(1, MOST_MORE + 1):
        if best is None or best.batch_s * best.there <= best.slowest_s / WORTH:
            break
        found = cut(costs, machines, hops, more)
        if found is None or found.batch_s >= WORTH * best.batch_s:
            break
        best = found
    return best

"""Cutting a model into stages, one for each machine of an island, in the order of its pipeline.

Stages do not wait for each other (docs/design.md), so the slowest of them, or the slowest link between two, says how
fast the whole is: cuts are made where the slowest is least slow, and every stage fits into its machine's memory.  Among
all cuts of a chain of layers the best is found by dynamic programming.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from atoll.errors import TaskError

__all__ = ["Cut", "Layer", "Machine", "Stage", "Terms", "cut", "profile"]

FORWARD, BACKWARD, RECOMPUTE = 1.0, 2.0, 1.0
"""What each takes, in forward passes."""


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
    to_next_bytes_a_second: float = math.inf
    """Of the link to the machine of the next stage, each way."""


@dataclass(frozen=True, slots=True)
class Stage:
    """The layers that a machine holds."""

    start: int
    stop: int
    compute_s: float
    """What a batch takes, forward and backward."""
    send_s: float
    """What its outputs take to the next stage, and gradients back."""
    memory_bytes: float


@dataclass(frozen=True, slots=True)
class Cut:
    """Who holds what."""

    stages: tuple[Stage, ...]

    @property
    def batch_s(self) -> float:
        """How often a batch comes out: as often as the slowest stage, or link, lets one through."""
        return max(max(stage.compute_s, stage.send_s) for stage in self.stages)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How an island trains.

    Attributes:
        batch: samples a batch.
        optimizer: what an optimiser remembers, in copies of the parameters (Adam: 2).
        recompute: whether a forward pass keeps its input alone, and the backward pass makes the rest again.
        stash: whether a batch's backward pass has the weights that its forward pass had, so that those are kept.
    """

    batch: int
    optimizer: float = 2.0
    recompute: bool = False
    stash: bool = True


def profile(model: nn.Module, example: Tensor) -> tuple[Layer, ...]:
    """What each layer of a chain costs, measured on an example batch.

    Raises:
        TaskError: the model is no chain of layers, or layers share weights.
    """
    if not isinstance(model, nn.Sequential):
        raise TaskError(f"{type(model).__name__} is no nn.Sequential: only a chain of layers can be cut")
    owners: dict[int, str] = {}
    layers = []
    values = example
    was_training = model.training
    model.eval()
    try:
        for name, layer in model.named_children():
            for parameter_name, parameter in layer.named_parameters():
                owner = owners.setdefault(id(parameter), name)
                if owner != name:
                    raise TaskError(f"layers {owner} and {name} share {parameter_name}: they cannot be cut apart")
            layers.append(_measured(name, layer, values))
            with torch.no_grad():
                values = layer(values)
    finally:
        model.train(was_training)
    return tuple(layers)


def _measured(name: str, layer: nn.Module, values: Tensor) -> Layer:
    samples = len(values)
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    inputs = values.detach().clone().requires_grad_() if values.is_floating_point() else values
    parameters = {each.untyped_storage().data_ptr() for each in layer.parameters()}
    with FlopCounterMode(display=False) as counter, torch.autograd.graph.saved_tensors_hooks(keep, lambda it: it):
        outputs = layer(inputs)
    own = sum(size for place, size in kept.items() if place not in parameters)
    return Layer(
        name=name,
        flops=(counter.get_total_flops() + outputs.numel()) / samples,  # a value at least for what is no product
        output_bytes=outputs.nbytes / samples,
        kept_bytes=max(own, values.nbytes) / samples,
        parameter_bytes=sum(each.nbytes for each in layer.parameters()),
    )


def cut(layers: Sequence[Layer], machines: Sequence[Machine], terms: Terms) -> Cut | None:
    """The best cut for these machines in this order; `None` if the model does not fit, or has too few layers."""
    count, places = len(machines), range(len(layers) + 1)
    best: dict[tuple[int, int], tuple[float, Stage | None]] = {(0, 0): (0.0, None)}
    for place, stop in itertools.product(range(1, count + 1), places):
        found: tuple[float, Stage | None] = (math.inf, None)
        for start in range(stop):
            before = best.get((place - 1, start))
            if before is None or before[0] >= found[0]:
                continue
            stage = _stage(layers, range(start, stop), machines[place - 1], terms, later=count - place)
            slowest = max(before[0], stage.compute_s, stage.send_s)
            if stage.memory_bytes <= machines[place - 1].memory_bytes and slowest < found[0]:
                found = slowest, stage
        if found[1] is not None:
            best[place, stop] = found
    stages: list[Stage] = []
    stop = len(layers)
    for place in range(count, 0, -1):
        _, held = best.get((place, stop), (math.inf, None))
        if held is None:
            return None
        stages.append(held)
        stop = held.start
    return Cut(tuple(reversed(stages)))


def _stage(layers: Sequence[Layer], span: range, machine: Machine, terms: Terms, *, later: int) -> Stage:
    """What a machine with so many later stages makes of some layers."""
    held = layers[span.start : span.stop]
    passes = FORWARD + BACKWARD + RECOMPUTE * terms.recompute
    sent = held[-1].output_bytes * terms.batch if later else 0.0
    return Stage(
        start=span.start,
        stop=span.stop,
        compute_s=passes * terms.batch * sum(layer.flops for layer in held) / machine.flops_a_second,
        send_s=sent / machine.to_next_bytes_a_second,
        memory_bytes=_memory_bytes(held, terms, later),
    )


def _memory_bytes(held: Sequence[Layer], terms: Terms, later: int) -> float:
    """Weights, gradients, what the optimiser remembers, and what is kept for the batches that later stages have: one
    for each of those, and the stage's own.
    """
    parameters = sum(layer.parameter_bytes for layer in held)
    copies = 2.0 + terms.optimizer + (later if terms.stash else 0)
    kept = sum(layer.kept_bytes for layer in held)
    batches = held[0].kept_bytes * (1 + later) + kept if terms.recompute else kept * (1 + later)
    return copies * parameters + terms.batch * batches

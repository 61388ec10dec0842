"""Runs in which islands hold the model: who holds what, and the node program of a stage.

A node's stage trains in its island's pipeline, and for each range of layers that it holds it takes part in an exchange
with those who hold them in the other islands: the strategies that whole replicas have, each for a range.
"""

import asyncio
import dataclasses
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from atoll.errors import TaskError, nearest
from atoll.exchange import Vector
from atoll.island import (
    WEIGHTS,
    Averaging,
    Costs,
    Given,
    Island,
    Layer,
    Machine,
    Pairs,
    Pipeline,
    Plan,
    Seat,
    StageModel,
    Terms,
    Weights,
    best_cut,
    chain,
    form,
    profile,
    ranges,
    survey,
)
from atoll.network import Network
from atoll.seeds import derive
from atoll.strategy import Quantity, Strategy
from atoll.strategy.talk import Talk
from atoll.trace import IslandsFormed, Tested
from atoll.train.batches import Batches
from atoll.train.node import Background
from atoll.train.own import OwnReplica
from atoll.train.parameters import Parameters
from atoll.train.parts import Parts
from atoll.train.task import Task
from atoll.world.base import World
from atoll.world.scoped import Scoped

__all__ = [
    "Assembly",
    "IslandNode",
    "IslandSettings",
    "Layout",
    "Survey",
    "build_chain",
    "lay_out",
    "parse_islands",
    "parse_size",
    "survey_task",
]

_SIZE = re.compile(r"([0-9.]+)\s*([kKMGT]?)B?")
_WIRES = {"float32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def parse_size(text: str) -> float:
    """Bytes.

    >>> parse_size("6GB")
    6000000000.0
    """
    found = _SIZE.fullmatch(text.strip())
    try:
        number = float(found.group(1)) if found else math.nan
    except ValueError:
        number = math.nan
    if found is None or not number > 0:
        raise TaskError(f"{text!r} is no size: expected a number and a unit, as in 6GB or 300MB")
    return number * {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}[found.group(2)]


@dataclass(frozen=True, slots=True, kw_only=True)
class IslandSettings:
    """How islands are made, and train.

    Attributes:
        islands: nodes of each, in the order of stages; none: the best that there are.
        memory: bytes of nodes that do not declare theirs.
        weights: which ones a backward pass uses.
        recompute: whether forward passes keep their input alone.
        slower: whether what comes late counts less.
        flush: in how many pieces a batch is cut, to train synchronously; 0: without waiting.
        wire: what activations and gradients are rounded to on their way.
    """

    islands: tuple[tuple[str, ...], ...] = ()
    memory: float = math.inf
    weights: Weights = "stash"
    recompute: bool = False
    slower: bool = False
    flush: int = 0
    wire: str = "float32"


def parse_islands(text: str) -> IslandSettings:
    """What a user wrote: `auto`, or `A1+A2/B1+B2`; and settings: `auto:memory=4GB,weights=predict,recompute`.

    >>> parse_islands("A1+A2/B1:flush=8").islands
    (('A1', 'A2'), ('B1',))
    """
    who, _, settings = text.partition(":")
    islands = () if who == "auto" else tuple(tuple(each.split("+")) for each in who.split("/"))
    given: dict[str, object] = {}
    known = [field.name for field in dataclasses.fields(IslandSettings) if field.name != "islands"]
    for setting in filter(None, settings.split(",")):
        name, _, value = setting.partition("=")
        if name not in known:
            raise TaskError(f"islands {text!r}: there is no setting {name!r}; {nearest(name, known)}")
        given[name] = _setting(name, value, text)
    return IslandSettings(islands=islands, **given)  # type: ignore[arg-type]


def _setting(name: str, value: str, text: str) -> object:
    choices: dict[str, Sequence[str]] = {"weights": WEIGHTS, "wire": tuple(_WIRES)}
    if name == "memory":
        return parse_size(value)
    if name == "flush":
        if not value.isdigit():
            raise TaskError(f"islands {text!r}: flush: expected a number of pieces, not {value!r}")
        return int(value)
    if name in choices:
        if value not in choices[name]:
            raise TaskError(f"islands {text!r}: {name}: {nearest(value, choices[name])}")
        return value
    if value not in {"", "yes", "no"}:
        raise TaskError(f"islands {text!r}: {name}: expected nothing, yes or no, not {value!r}")
    return value != "no"


# Who holds what ---


@dataclass(frozen=True, eq=False, slots=True)
class Survey:
    """What a plan is made from."""

    layers: tuple[Layer, ...]
    machines: tuple[Machine, ...]
    pairs: Pairs
    terms: Terms

    def scaled(self, memory_bytes: float) -> "Survey":
        """The same for a model whose weights, gradients and optimiser take this much: parameters alone grow."""
        state = (2 + self.terms.optimizer) * sum(layer.parameter_bytes for layer in self.layers)
        factor = memory_bytes / state
        layers = [dataclasses.replace(each, parameter_bytes=factor * each.parameter_bytes) for each in self.layers]
        return dataclasses.replace(self, layers=tuple(layers))

    def plans(self, averaging: Averaging | None = None, *, seed: int = 0) -> list[Plan]:
        return form(self.layers, self.machines, self.pairs, self.terms, averaging, seed=seed)

    def plan_of(self, islands: tuple[tuple[str, ...], ...]) -> Plan:
        """For islands that the user has named."""
        places = {machine.name: place for place, machine in enumerate(self.machines)}
        found = []
        for names in islands:
            for name in names:
                if name not in places:
                    raise TaskError(f"islands: there is no node {name!r}; {nearest(name, places)}")
            order = tuple(places[name] for name in names)
            cut = best_cut(Costs(self.layers, self.terms), [self.machines[i] for i in order], self.pairs.hops(order))
            if cut is None:
                raise TaskError(f"the island {' '.join(names)} cannot hold the model, or has more nodes than layers")
            found.append(Island(order, cut))
        used = [place for island in found for place in island.order]
        twice = [self.machines[place].name for place in used if used.count(place) > 1]
        if twice:
            raise TaskError(f"islands: {twice[0]} is in two places")
        samples = sum(self.terms.batch / island.cut.batch_s for island in found)
        idle = tuple(place for place in range(len(self.machines)) if place not in used)
        return Plan(tuple(found), idle, samples, 0.0, "named by the user")


def survey_task(network: Network, task: Task, settings: IslandSettings) -> tuple[nn.Sequential, Survey]:
    """A task's model as a chain, with what it costs on a network's nodes."""
    example = task.train.inputs[: task.batch]
    model = (task.chain or task.model)().to(example.device)
    links = chain(model, example)
    layers = profile(links, example)
    terms = Terms(
        batch=task.batch,
        optimizer=_copies(task.optimizer),
        recompute=settings.recompute,
        stash=settings.weights != "current",
        target_bytes=task.train.targets[:1].nbytes,
    )
    machines, pairs = survey(network, layers, batch=task.batch, memory_bytes=settings.memory)
    return links, Survey(layers, machines, pairs, terms)


def _copies(optimizer: Callable[[Sequence[nn.Parameter]], Optimizer]) -> float:
    """What an optimiser remembers, in copies of the parameters."""
    values = nn.Parameter(torch.zeros(100))
    values.grad = torch.zeros(100)
    made = optimizer([values])
    made.step()
    held = [each for state in made.state.values() for each in state.values() if isinstance(each, torch.Tensor)]
    return float(sum(each.numel() for each in held if each.numel() >= 100) / 100)


class Layout:
    """Seats and ranges of a plan, by the names of nodes.

    Args:
        plan: who holds what.
        survey: what it was made from.
        settings: how islands train.
    """

    def __init__(self, plan: Plan, survey: Survey, settings: IslandSettings) -> None:
        names = [machine.name for machine in survey.machines]
        whole = sum(layer.flops for layer in survey.layers)
        self.plan = plan
        self.islands = {names[island.order[0]]: tuple(names[i] for i in island.order) for island in plan.islands}
        """By the name of the first node, which is the island's."""
        self.seats: dict[str, Seat] = {}
        self.spans: dict[str, tuple[int, int]] = {}
        for island in plan.islands:
            nodes = [names[place] for place in island.order]
            for place, stage in enumerate(island.cut.stages):
                self.spans[nodes[place]] = stage.start, stage.stop
                self.seats[nodes[place]] = Seat(
                    island=nodes[0],
                    stage=place,
                    before=nodes[place - 1] if place else None,
                    after=nodes[place + 1] if place + 1 < len(nodes) else None,
                    holds=stage.holds if not settings.flush else settings.flush,
                    share=sum(layer.flops for layer in survey.layers[stage.start : stage.stop]) / whole,
                    flush=settings.flush,
                    wire=_WIRES[settings.wire],
                )
        owners = [
            [(stage.stop, place) for place, stage in zip(island.order, island.cut.stages, strict=True)]
            for island in plan.islands
        ]
        self.ranges = [(start, stop, tuple(names[i] for i in who)) for start, stop, who in ranges(owners)]

    def formed(self) -> IslandsFormed:
        told = [
            ", ".join(f"{node} {self.spans[node][0]}-{self.spans[node][1]}" for node in nodes)
            for nodes in self.islands.values()
        ]
        return IslandsFormed(at=0.0, islands=tuple(told), samples_a_second=self.plan.samples_a_second)


def lay_out(network: Network, task: Task, settings: IslandSettings, *, seed: int = 0) -> Layout:
    """Who holds what: as the user has said, or the best that there is."""
    _, survey = survey_task(network, task, settings)
    plan = survey.plan_of(settings.islands) if settings.islands else survey.plans(seed=seed)[0]
    return Layout(plan, survey, settings)


# A node's part ---


class SpanReplica(OwnReplica):
    """A range of layers, as strategies see it: the model that a node and its peers in other islands have in common."""

    def __init__(
        self, world: World, members: tuple[str, ...], layers: nn.Module, optimizer: Optimizer, node: "IslandNode"
    ) -> None:
        super().__init__(world, members, layers, optimizer)
        self._index = Parameters(layers)
        self._node = node

    @property
    def _parameters(self) -> Parameters:
        return self._index

    @property
    def loss(self) -> float:
        return self._node.pipeline.loss

    def write(self, quantity: Quantity, values: Vector) -> None:
        if quantity is Quantity.PARAMETERS:
            self._node.stage.keep_versions()
        super().write(quantity, values)

    def add(self, quantity: Quantity, change: Vector) -> None:
        if quantity is Quantity.PARAMETERS:
            self._node.stage.keep_versions()
        super().add(quantity, change)

    def lend(self, share: float) -> bytes:
        raise TaskError(f"islands cannot lend examples ({share:g} of a batch): choose a strategy without injection")

    def borrow(self, examples: bytes) -> None:
        raise TaskError(f"islands cannot borrow examples ({len(examples)} bytes)")


class Assembly:
    """An island's model as a whole: in simulation somebody can see all of its stages at once.

    Args:
        nodes: of the island.
        tester: tests a model.
        rising: whether the measure rises towards the target.
    """

    def __init__(self, nodes: tuple[str, ...], tester: Callable[[nn.Module, Vector], float], *, rising: bool) -> None:
        self._nodes = nodes
        self._tester = tester
        self._rising = rising
        self._stages: dict[str, tuple[World, nn.Module]] = {}

    def put(self, world: World, layers: nn.Module) -> None:
        self._stages[world.name] = world, layers

    @property
    def sent_bytes(self) -> int:
        return sum(world.sent_bytes for world, _ in self._stages.values())

    @property
    def model(self) -> nn.Sequential:
        return nn.Sequential(*(layer for name in self._nodes for layer in self._stages[name][1].children()))

    def read(self, quantity: Quantity) -> Vector:  # noqa: ARG002 - as a replica's
        return Parameters(self.model).read()

    def write(self, quantity: Quantity, values: Vector) -> None:  # noqa: ARG002
        Parameters(self.model).write(values)

    def test(self) -> float:
        model = self.model
        was_training = [layer.training for layer in model]
        measure = self._tester(model, Parameters(model).read())
        for layer, training in zip(model, was_training, strict=True):
            layer.train(training)
        if math.isfinite(measure):
            return measure
        return 0.0 if self._rising else 1e9


class IslandNode:
    """One node's stage, its part in the island's pipeline, and in the exchanges of its ranges.

    Args:
        world: where it is.
        layout: who holds what.
        task: what is learned.
        parts: whose examples.
        settings: how islands train.
        seed: of the run; all islands' models begin alike.
    """

    def __init__(
        self, world: World, layout: Layout, task: Task, parts: Parts, settings: IslandSettings, *, seed: int
    ) -> None:
        self.world = world
        self._task = task
        self._seat = seat = layout.seats[world.name]
        start, stop = layout.spans[world.name]
        links = build_chain(task, seed)
        self.layers = links[start:stop]
        self.spans: list[SpanReplica] = []
        optimizers: list[Optimizer] = []
        for first, last, members in layout.ranges:
            if world.name not in members:
                continue
            held = links[first:last]
            parameters = list(held.parameters())
            if not parameters:
                continue
            optimizers.append(task.optimizer(parameters))
            scope = Scoped(world, f"range {first}-{last}")
            self.spans.append(SpanReplica(scope, members, held, optimizers[-1], self))
        self.stage = StageModel(
            self.layers, optimizers, weights=settings.weights, recompute=settings.recompute, slower=settings.slower
        )
        self._batches: Batches | None = None
        if seat.before is None:
            place = list(layout.islands).index(world.name)
            self._batches = parts.batches(place, derive(seed, "batches", world.name))
        self._used = parts.used
        self._talks: list[Talk] = []
        self._merged = 0
        self._tested_at = 0
        self.pipeline = Pipeline(
            Scoped(world, f"island {seat.island}"),
            seat,
            self.stage,
            source=self._next if self._batches else None,
            loss=task.loss if seat.after is None else None,
            recompute=settings.recompute,
            before_update=self._before_update,
            updated=self._updated,
        )
        self._assembly: Assembly | None = None

    async def run(self, strategy: Strategy, assembly: Assembly | None = None) -> None:
        """Trains until cancelled.

        Args:
            strategy: how islands talk.
            assembly: the island's whole model, to be tested by its last stage, where somebody can see it.
        """
        self._assembly = assembly
        async with asyncio.TaskGroup() as group:
            background = Background(group)
            for span in self.spans:
                if len(span.members) > 1:
                    talk = strategy.talk(span)
                    talk.start(background)
                    self._talks.append(talk)
            await self.pipeline.run(background)

    def _next(self) -> Given:
        assert self._batches is not None
        batch = self._batches.take()
        np.add.at(self._used, batch.numpy(), 1)
        return Given(self._task.train.inputs[batch], self._task.train.targets[batch])

    async def _before_update(self) -> None:
        await asyncio.gather(*(talk.after_gradient() for talk in self._talks if talk.uses_gradients))

    async def _updated(self, samples: int) -> None:
        for span in self.spans:
            span.steps += 1
            span.work[span.rank] += samples
        merged = any(await asyncio.gather(*(talk.after_step() for talk in self._talks if not talk.is_idle)))
        updates, world = self.stage.updates, self.world
        if self._assembly is None or self._seat.after is not None:
            return
        if merged or updates - self._tested_at >= self._task.test_every:
            self._tested_at = updates
            world.record(
                Tested(
                    at=world.now,
                    node=world.name,
                    steps=updates,
                    measure=self._assembly.test(),
                    sent_bytes=self._assembly.sent_bytes,
                )
            )


def build_chain(task: Task, seed: int) -> nn.Sequential:
    """The model that all islands begin with."""
    example = task.train.inputs[: task.batch]
    with torch.random.fork_rng(devices=[]):
        torch.random.manual_seed(derive(seed, "model") % 2**63)
        return chain((task.chain or task.model)().to(example.device), example)

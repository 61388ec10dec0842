"""Runs in which islands hold the model: which node holds which layers.

A node's stage trains in its island's pipeline.  For each range of layers that it holds, the node takes part in an
exchange with their holders in the other islands: the same strategies as for whole replicas, each for a range.
"""

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from atoll.codecs import parse_codec
from atoll.errors import TaskError, nearest
from atoll.islands import (
    Averaging,
    Costs,
    Island,
    Layer,
    Machine,
    MachineLinks,
    Plan,
    StageSeat,
    Terms,
    best_cut,
    chain,
    form,
    profile,
    ranges,
    reform,
    shortage,
    survey,
)
from atoll.islands.settings import IslandSettings
from atoll.network import Network
from atoll.trace import IslandsFormed, StageSpan
from atoll.training.task import Examples, Task

__all__ = [
    "Facts",
    "Layout",
    "Survey",
    "lay_out",
    "price",
    "survey_task",
    "unknown",
]

UNKNOWN_S, UNKNOWN_RATE = 0.05, 12.5e6
"""The assumed latency, and bytes a second, of a link that was not measured yet."""
MakeOptimizer = Callable[[Sequence[nn.Parameter]], Optimizer | None]
_WRITTEN = 1 << 16
"""The number of values that a codec's compression is measured on."""


# The survey ---


@dataclass(frozen=True, slots=True)
class Facts:
    """What a node has measured about itself."""

    flops_a_second: float
    memory_bytes: float
    ways: Mapping[str, tuple[float, float]]
    """Links to other nodes, as far as known: seconds one way, and bytes a second (0: unknown)."""

    def told(self) -> str:
        """The facts as JSON."""
        ways = {name: [round(latency, 6), round(rate)] for name, (latency, rate) in self.ways.items()}
        return json.dumps([self.flops_a_second, self.memory_bytes, ways])

    @classmethod
    def read(cls, text: str) -> "Facts":
        speed, memory, ways = json.loads(text)
        if not (speed > 0 and memory > 0):
            raise ValueError(f"a machine of {speed} operations a second and {memory} bytes")
        return cls(speed, memory, {str(name): (float(latency), float(rate)) for name, (latency, rate) in ways.items()})


@dataclass(frozen=True, eq=False, slots=True)
class Survey:
    """The input of a plan: layers, machines and links."""

    layers: tuple[Layer, ...]
    machines: tuple[Machine, ...]
    pairs: MachineLinks
    terms: Terms

    def memory_of(self, name: str) -> float:
        """The memory of a machine, in bytes."""
        return next(machine.memory_bytes for machine in self.machines if machine.name == name)

    @property
    def shortage(self) -> str:
        """Why no island can hold the model."""
        return shortage(Costs(self.layers, self.terms), self.machines)

    def facts(self) -> dict[str, Any]:
        """Machines and the links between them, as JSON values."""
        return {
            "machines": [[each.flops_a_second, each.memory_bytes, each.name] for each in self.machines],
            "pairs": [self.pairs.latency_s.tolist(), self.pairs.bytes_a_second.tolist(), self.pairs.there.tolist()],
        }

    def scaled(self, memory_bytes: float) -> "Survey":
        """The same for a model whose weights, gradients and optimiser take this much: only parameters grow."""
        state = (2 + self.terms.optimizer) * sum(layer.parameter_bytes for layer in self.layers)
        factor = memory_bytes / state
        layers = [dataclasses.replace(each, parameter_bytes=factor * each.parameter_bytes) for each in self.layers]
        return dataclasses.replace(self, layers=tuple(layers))

    def with_facts(self, facts: Mapping[str, Facts]) -> "Survey":
        """The same with the facts that nodes have measured, instead of declared ones."""
        if not facts:
            return self
        machines = tuple(Machine(each.flops_a_second, each.memory_bytes, name) for name, each in facts.items())
        count = len(machines)
        latency, rate = np.full((count, count), UNKNOWN_S), np.zeros((count, count))
        places = {machine.name: place for place, machine in enumerate(machines)}
        for name, found in facts.items():
            for other, (seconds, bytes_a_second) in found.ways.items():
                if other in places:
                    latency[places[name], places[other]] = seconds
                    rate[places[name], places[other]] = bytes_a_second
        rate = np.where(rate > 0, rate, rate.T)  # an unknown direction is as fast as the other one
        rate = np.where(rate > 0, rate, UNKNOWN_RATE)
        return dataclasses.replace(self, machines=machines, pairs=MachineLinks(latency, rate, np.ones((count, count))))

    def plans(self, averaging: Averaging | None = None, *, seed: int = 0) -> list[Plan]:
        return form(self.layers, self.machines, self.pairs, self.terms, averaging, seed=seed)

    def plan_of(self, islands: tuple[tuple[str, ...], ...]) -> Plan:
        """The plan for islands that the user has named."""
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
        return self.plan_for(found, "named by the user")

    def plan_as_it_is(self, islands: Sequence[tuple[Sequence[str], Sequence[tuple[int, int, int]]]]) -> Plan:
        """The plan for existing islands: their nodes, and the stage of each."""
        places = {machine.name: place for place, machine in enumerate(self.machines)}
        found = [(tuple(places[name] for name in names), stages) for names, stages in islands]
        return self.plan_for(
            reform(self.layers, self.machines, self.pairs, self.terms, kept=found, free=()), "as it is"
        )

    def plan_for(self, islands: Sequence[Island], how: str) -> Plan:
        """The plan for islands found elsewhere; the cost of averaging is left out."""
        used = {place for island in islands for place in island.order}
        samples = sum(self.terms.batch / island.cut.batch_s for island in islands)
        idle = tuple(place for place in range(len(self.machines)) if place not in used)
        return Plan(tuple(islands), idle, samples, 0.0, how)


def survey_task(network: Network | dict[str, Any], task: Task, settings: IslandSettings) -> Survey:
    """The costs of a task's model, on a network's nodes or on those of `Survey.facts`."""
    example = Examples(task.train.inputs[: task.batch], task.train.targets[: task.batch])
    model = (task.chain or task.model)().to(example.inputs.device)
    layers, terms = price(chain(model, example.inputs), example, task.optimizer, settings)
    if isinstance(network, Network):
        machines, pairs = survey(network, layers, batch=task.batch, memory_bytes=settings.memory)
    else:
        machines = tuple(Machine(*each) for each in network["machines"])
        pairs = MachineLinks(*(np.array(each) for each in network["pairs"]))
    return Survey(layers, machines, pairs, terms)


def price(
    links: nn.Sequential, example: Examples, optimizer: MakeOptimizer, settings: IslandSettings
) -> tuple[tuple[Layer, ...], Terms]:
    """The costs of a chain's layers, and how an island trains it."""
    pieces = settings.flush or settings.pieces
    terms = Terms(
        batch=math.ceil(len(example) / pieces),
        an_update=pieces * settings.accumulate,
        optimizer=_copies(optimizer) + (settings.weights == "predict"),  # it also keeps a trend of the weights
        recompute=settings.recompute,
        stash=settings.weights != "current" and not settings.flush,
        target_bytes=example.targets[:1].nbytes,
        wire=parse_codec(settings.wire).size(_WRITTEN) / (4 * _WRITTEN),
    )
    return profile(links, example.inputs), terms


def unknown(names: Sequence[str], layers: tuple[Layer, ...], terms: Terms) -> Survey:
    """A survey of machines about which nothing is known until they report their facts."""
    count = len(names)
    pairs = MachineLinks(
        np.full((count, count), UNKNOWN_S), np.full((count, count), UNKNOWN_RATE), np.ones((count, count))
    )
    return Survey(layers, tuple(Machine(1.0, math.inf, name) for name in names), pairs, terms)


def _copies(optimizer: MakeOptimizer) -> float:
    """The size of an optimiser's state, in copies of the parameters."""
    values = nn.Parameter(torch.zeros(100))
    values.grad = torch.zeros(100)
    made = optimizer([values])
    if made is None:
        return 0.0
    made.step()
    held = [each for state in made.state.values() for each in state.values() if isinstance(each, torch.Tensor)]
    return float(sum(each.numel() for each in held if each.numel() >= 100) / 100)


class Layout:
    """The seats and ranges of a plan, by the names of nodes.

    Args:
        plan: which machine holds which layers.
        survey: the survey that it was made from.
        settings: how islands train.
    """

    def __init__(self, plan: Plan, survey: Survey, settings: IslandSettings) -> None:
        names = [machine.name for machine in survey.machines]
        whole = sum(layer.flops for layer in survey.layers)
        self.plan = plan
        self.survey = survey
        self.settings = settings
        self.islands = {names[island.order[0]]: tuple(names[i] for i in island.order) for island in plan.islands}
        """The nodes of each island, by the name of its first node, which is the island's name."""
        self.seats: dict[str, StageSeat] = {}
        self.spans: dict[str, tuple[int, int]] = {}
        self.cuts: dict[str, tuple[tuple[int, int, int], ...]] = {}
        """For each island and stage: the first layer, the end (one past the last), and how many batches it may hold."""
        for island in plan.islands:
            nodes = [names[place] for place in island.order]
            self.cuts[nodes[0]] = tuple((stage.start, stage.stop, stage.holds) for stage in island.cut.stages)
            for place, stage in enumerate(island.cut.stages):
                self.spans[nodes[place]] = stage.start, stage.stop
                self.seats[nodes[place]] = StageSeat(
                    island=nodes[0],
                    stage=place,
                    before=nodes[place - 1] if place else None,
                    after=nodes[place + 1] if place + 1 < len(nodes) else None,
                    holds=stage.holds if not settings.flush else settings.flush,
                    share=sum(layer.flops for layer in survey.layers[stage.start : stage.stop]) / whole,
                    flush=settings.flush,
                    pieces=settings.pieces,
                    accumulate=settings.accumulate,
                    wire=parse_codec(settings.wire),
                )
        owners = [
            [(stage.stop, place) for place, stage in zip(island.order, island.cut.stages, strict=True)]
            for island in plan.islands
        ]
        self.ranges = [(start, stop, tuple(names[i] for i in who)) for start, stop, who in ranges(owners)]

    def formed(self, at: float = 0.0) -> IslandsFormed:
        """The event for the trace."""
        stages = tuple(tuple(StageSpan(node, *self.spans[node]) for node in nodes) for nodes in self.islands.values())
        why = "" if stages else self.survey.shortage
        return IslandsFormed(at=at, stages=stages, samples_a_second=self.plan.samples_a_second, why=why)


def lay_out(network: Network | dict[str, Any], task: Task, settings: IslandSettings, *, seed: int = 0) -> Layout:
    """The layout that the user has named, or the best one."""
    survey = survey_task(network, task, settings)
    plan = survey.plan_of(settings.islands) if settings.islands else survey.plans(seed=seed)[0]
    return Layout(plan, survey, settings)

"""The node program of islands: a stage of a model, in its island's pipeline, and in the exchanges of what it holds.

Nodes agree on who is here as strategies do (`atoll.group`); and since everybody then knows where everybody stood, all
work out alike, without another word, who holds what from now on: islands that are whole stay as they are, the rest
makes the best of it.  Who is given layers that it does not hold asks for them: those of its old island first, then
others' owners of them.  Exchanges go on wherever their owners are the same, or fewer.
"""

import asyncio
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import nn
from torch.optim import Optimizer

from atoll.errors import TaskError
from atoll.exchange import Vector
from atoll.group import Group, Summary, View
from atoll.island import Given, Pipeline, Plan, Prober, Seat, StageModel, reform
from atoll.saved import Saved
from atoll.seeds import derive
from atoll.strategy import Quantity, Strategy, Work
from atoll.strategy.talk import Talk
from atoll.trace import IslandsFormed, Tested
from atoll.train.batches import Batches
from atoll.train.islands import IslandSettings, Layout, Survey, build_chain
from atoll.train.memory import remember, what_is_remembered
from atoll.train.node import Background
from atoll.train.own import OwnReplica
from atoll.train.parameters import Parameters
from atoll.train.parts import Parts
from atoll.train.task import Task
from atoll.world.base import Lane, Message, World
from atoll.world.hearing import hear
from atoll.world.scoped import Scoped

__all__ = ["Assembly", "IslandNode", "Settlement", "Standing", "settle"]

ASK_AGAIN_S = 5.0
"""How long an answer to a request for layers may take before the next node is asked, while it can be reached."""

RangeKey = tuple[int, int]
Held = tuple[nn.Module, Optimizer | None]
"""A layer, and what changes it."""
Layers = Mapping[int, Held]


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a node stands: which island it is in, or is to be in, and what it holds."""

    order: tuple[str, ...] = ()
    """The nodes of its island, in the order of stages."""
    scope: str = ""
    """What the island's pipeline is called: nobody mixes it up with one of before."""
    shard: int = -1
    """Whose examples the island learns from."""
    held: tuple[int, ...] = ()
    """Layers whose weights it has."""
    ranges: dict[RangeKey, tuple[str, tuple[str, ...]]] = field(default_factory=dict)
    """What its exchanges are called, and who takes part."""

    def summary(self) -> Summary:
        told: Summary = [["islands", ""], ["order", " ".join(self.order)], ["scope", self.scope], ["shard", self.shard]]
        told.append(["held", " ".join(map(str, self.held))])
        return told + [
            [f"range {first} {last}", f"{scope}|{' '.join(members)}"]
            for (first, last), (scope, members) in sorted(self.ranges.items())
        ]

    @classmethod
    def read(cls, summary: Summary) -> "Standing":
        given = {str(key): value for key, value in summary}
        ranges = {}
        for key, value in given.items():
            if key.startswith("range "):
                _, first, last = key.split()
                scope, _, members = str(value).partition("|")
                ranges[int(first), int(last)] = scope, tuple(members.split())
        return cls(
            order=tuple(str(given.get("order", "")).split()),
            scope=str(given.get("scope", "")),
            shard=int(given.get("shard", -1)),
            held=tuple(int(each) for each in str(given.get("held", "")).split()),
            ranges=ranges,
        )


@dataclass(frozen=True, eq=False, slots=True)
class Settlement:
    """Who holds what from now on, as all members of a view have worked it out."""

    layout: Layout
    scopes: dict[str, str]
    """Of pipelines, by the island's name."""
    shards: dict[str, int]
    ranges: dict[RangeKey, tuple[str, tuple[str, ...]]]
    """What exchanges are called, and who takes part: the owners of a range, or they and others who once were."""
    standings: dict[str, Standing]
    """Where everybody stood before."""

    def island_of(self, name: str) -> tuple[str, ...]:
        seat = self.layout.seats.get(name)
        return self.layout.islands[seat.island] if seat else ()

    def standing(self, name: str, held: Sequence[int]) -> Standing:
        """Where a node stands in it, holding these layers so far."""
        seat = self.layout.seats.get(name)
        return Standing(
            order=self.island_of(name),
            scope=self.scopes[seat.island] if seat else "",
            shard=self.shards[seat.island] if seat else -1,
            held=tuple(held),
            ranges={(start, stop): self.ranges[start, stop] for start, stop, who in self.layout.ranges if name in who},
        )

    def sources(self, name: str, layer: int) -> list[str]:
        """Who may be asked for a layer: those of the old island, then those of the new one, then anybody."""
        old, new = self.standings[name].order, self.island_of(name)
        holders = [each for each, standing in self.standings.items() if layer in standing.held and each != name]
        return sorted(holders, key=lambda each: (each not in old, each not in new, holders.index(each)))


def settle(
    name: str, standings: dict[str, Standing], survey: Survey, settings: IslandSettings, shards: int
) -> Settlement:
    """Who holds what among those who are here.

    Args:
        name: of the view that agrees on it: it makes new names new.
        standings: where everybody who is here stands, in the order that all use.
        survey: what is known of machines, links and layers.
        settings: how islands train.
        shards: how many parts the examples are in.
    """
    places = {machine.name: place for place, machine in enumerate(survey.machines)}
    whole: dict[tuple[str, ...], str] = {}
    for standing in standings.values():
        told = {standings[each].scope for each in standing.order if each in standings}
        if standing.order and told == {standing.scope} and all(each in standings for each in standing.order):
            whole[standing.order] = standing.scope
    inside = {each for order in whole for each in order}
    islands = reform(
        survey.layers,
        survey.machines,
        survey.pairs,
        survey.terms,
        kept=[tuple(places[each] for each in order) for order in whole],
        free=[places[each] for each in standings if each not in inside],
    )
    samples = sum(survey.terms.batch / island.cut.batch_s for island in islands)
    layout = Layout(Plan(tuple(islands), (), samples, 0.0, "after a change"), survey, settings)
    scopes = {first: whole.get(order, f"island {first} {name}") for first, order in layout.islands.items()}
    taken = {first: standings[first].shard for first, order in layout.islands.items() if order in whole}
    free = [shard for shard in range(shards) if shard not in taken.values()]
    for first in layout.islands:
        if first not in taken:
            taken[first] = free.pop(0) if free else places[first] % shards
    ranges: dict[RangeKey, tuple[str, tuple[str, ...]]] = {}
    for start, stop, owners in layout.ranges:
        # Who takes another seat begins its exchanges anew, and so do those who exchange with it.
        stay = [standings[owner] for owner in owners if standings[owner].order in whole]
        before = {each.ranges.get((start, stop)) for each in stay} if len(stay) == len(owners) else set()
        known = before.pop() if len(before) == 1 else None
        same = known is not None and set(owners) <= set(known[1])
        ranges[start, stop] = known if known and same else (f"range {start}-{stop} {name}", owners)
    return Settlement(layout, scopes, taken, ranges, standings)


class SpanReplica(OwnReplica):
    """A range of layers, as strategies see it: the model that a node and its peers in other islands have in common."""

    def __init__(
        self,
        world: World,
        members: tuple[str, ...],
        layers: nn.Module,
        optimizers: dict[int, Optimizer],
        node: "IslandNode",
    ) -> None:
        super().__init__(world, members, layers, next(iter(optimizers.values())))
        self._index = Parameters(layers)
        self._optimizers = optimizers
        self._node = node

    @property
    def _parameters(self) -> Parameters:
        return self._index

    @property
    def loss(self) -> float:
        return self._node.loss

    def write(self, quantity: Quantity, values: Vector) -> None:
        if quantity is Quantity.PARAMETERS:
            self._node.keep_versions()
        super().write(quantity, values)

    def add(self, quantity: Quantity, change: Vector) -> None:
        if quantity is Quantity.PARAMETERS:
            self._node.keep_versions()
        super().add(quantity, change)

    def memory(self) -> Saved:
        return {
            f"{layer}/{key}": value
            for layer, optimizer in self._optimizers.items()
            for key, value in what_is_remembered(optimizer).items()
        }

    def take_over(self, work: Work, memory: Saved) -> None:
        self.include(work)
        for layer, optimizer in self._optimizers.items():
            own = {key.split("/", 1)[1]: value for key, value in memory.items() if key.startswith(f"{layer}/")}
            if own:
                remember(optimizer, own)

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
        self.nodes = nodes
        self._tester = tester
        self._rising = rising
        self._stages: dict[str, tuple[World, nn.Module]] = {}

    def put(self, world: World, layers: nn.Module) -> None:
        self._stages[world.name] = world, layers

    @property
    def is_whole(self) -> bool:
        return len(self._stages) == len(self.nodes)

    @property
    def sent_bytes(self) -> int:
        return sum(world.sent_bytes for world, _ in self._stages.values())

    @property
    def model(self) -> nn.Sequential:
        return nn.Sequential(*(layer for name in self.nodes for layer in self._stages[name][1].children()))

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


Seated = Callable[[World, tuple[str, ...], nn.Module], Assembly | None]
"""Told when a node has taken a seat, with its island and layers; gives the island's model, if somebody sees it."""


@dataclass(slots=True, eq=False)
class _Exchange:
    """A range's exchange, at this node."""

    scope: str
    replica: SpanReplica
    talk: Talk
    background: Background


class IslandNode:
    """One node.

    Args:
        world: where it is.
        layout: who holds what at the beginning.
        task: what is learned.
        parts: whose examples.
        strategy: how islands talk.
        seed: of the run; all islands' models begin alike.
        seated: told when it takes a seat.
    """

    def __init__(
        self,
        world: World,
        layout: Layout,
        task: Task,
        parts: Parts,
        strategy: Strategy,
        *,
        seed: int,
        seated: Seated = lambda *_: None,
    ) -> None:
        self.world = world
        self._survey = survey = layout.survey
        self._task = task
        self._parts = parts
        self._settings = layout.settings
        self._strategy = strategy
        self._seed = seed
        self._seated = seated
        self._shards = parts.count
        self._hall = Scoped(world, "islands")
        self.council = Group(self._hall, tuple(machine.name for machine in survey.machines))
        self._layers: Layers = {}
        self._before: dict[int, Held] = {}
        """Layers that it held before, for those who ask."""
        self._exchanges: dict[RangeKey, _Exchange] = {}
        self._exchanges_are_old = False
        self._group: asyncio.TaskGroup | None = None
        self._work: Background | None = None
        self._running = ""
        """What the pipeline is called that it is at work in."""
        self._batches: Batches | None = None
        self._assembly: Assembly | None = None
        self._tested_at = 0
        self._probing: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._requests = 0
        self.stage: StageModel | None = None
        self.pipeline: Pipeline | None = None
        self._settlement: Settlement | None = None
        if not world.is_late:
            standings = {machine.name: Standing() for machine in survey.machines}
            scopes = {first: f"island {first}" for first in layout.islands}
            shards = {first: place for place, first in enumerate(layout.islands)}
            ranges = {(first, last): (f"range {first}-{last}", who) for first, last, who in layout.ranges}
            self._settlement = Settlement(layout, scopes, shards, ranges, standings)

    async def run(self) -> None:
        """Trains until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            background = Background(group)
            self.council.start(background, self)
            background(hear(self._hall, "give", lambda message: self._asked(message, background)))
            while True:
                self._changed.clear()
                if self._settlement is not None:
                    await self._follow(self._settlement)
                await self._changed.wait()

    @property
    def standing(self) -> Standing:
        """Where it stands now."""
        held = sorted({*self._layers, *self._before})
        if self._settlement is None:
            return Standing(held=tuple(held))
        return self._settlement.standing(self.world.name, held)

    @property
    def seats(self) -> dict[str, Seat]:
        """Everybody's, as far as this node knows."""
        return self._settlement.layout.seats if self._settlement else {}

    # What all agree on ---

    def results(self) -> Summary:
        return []

    def compared(self, sender: str, results: Summary) -> bool:  # noqa: ARG002 - as a guest's
        return True

    def summary(self) -> Summary:
        return self.standing.summary()

    def installed(self, view: View, summaries: dict[str, Summary]) -> None:
        standings = {name: Standing.read(summaries[name]) for name in view.members}
        self._settlement = settle(view.name, standings, self._survey, self._settings, self._shards)
        if view.members[0] == self.world.name:
            formed = self._settlement.layout.formed()
            self.world.record(
                IslandsFormed(at=self.world.now, islands=formed.islands, samples_a_second=formed.samples_a_second)
            )
        self._exchanges_are_old = True
        self._changed.set()

    # Taking a seat ---

    async def _follow(self, settlement: Settlement) -> None:
        """Does what a settlement says, unless there is a newer one before that is done."""
        scope = settlement.standing(self.world.name, ()).scope
        if scope == self._running:
            return  # exchanges follow at the next step boundary
        self._stop()
        if not scope:
            self._close_exchanges()
            return
        fetching = asyncio.create_task(self._fetch(settlement))
        changed = asyncio.create_task(self._changed.wait())
        try:
            await asyncio.wait({fetching, changed}, return_when=asyncio.FIRST_COMPLETED)
            if fetching.done():
                layers = fetching.result()
                while self.council.held:  # where it stands must not change while others decide by it
                    await self.world.sleep(0.05)
                if self._settlement is settlement:
                    self._begin(settlement, layers)
        finally:
            fetching.cancel()
            changed.cancel()

    def _stop(self) -> None:
        if self._work is not None:
            self._work.cancel()
        self._work, self._running = None, ""
        self.stage = self.pipeline = None

    async def _fetch(self, settlement: Settlement) -> dict[int, Held]:
        """All layers of the new seat: own ones, and what others know of the rest."""
        start, stop = settlement.layout.spans[self.world.name]
        chain = build_chain(self._task, self._seed)
        here = {**self._before, **self._layers}
        found = {}
        missing: dict[tuple[str, ...], list[int]] = {}
        for layer in range(start, stop):
            if layer in here:
                found[layer] = here[layer]
                continue
            module = chain[layer]
            parameters = list(module.parameters())
            found[layer] = module, self._task.optimizer(parameters) if parameters else None
            sources = settlement.sources(self.world.name, layer)
            if sources and (parameters or list(module.buffers())):
                missing.setdefault(tuple(sources), []).append(layer)
        for names, layers in missing.items():
            for name in names:
                if await self._ask(name, {layer: found[layer] for layer in layers}):
                    break
        return found

    async def _ask(self, name: str, layers: Layers) -> bool:
        """Asks a node for layers, and fills them with what it answers; `False` if it has none or cannot be reached."""
        self._requests += 1
        token = f"{self.world.name} {self.world.now:g} {self._requests}"
        peer = self._hall.peer(name)
        head = json.dumps({"layers": list(layers), "token": token}).encode()
        try:
            async with asyncio.timeout(ASK_AGAIN_S):
                await peer.send("give", head, lane=Lane.CONTROL)
            answer = asyncio.create_task(peer.receive(f"given {token}"))
            lost = asyncio.create_task(peer.wait_until(reachable=False))
            try:
                await asyncio.wait({answer, lost}, return_when=asyncio.FIRST_COMPLETED)
                if not answer.done():
                    return False
                return fill(layers, answer.result().body)
            finally:
                answer.cancel()
                lost.cancel()
        except TimeoutError:
            return False

    def _asked(self, message: Message, background: Background) -> None:
        asked = json.loads(message.head)
        here = {**self._before, **self._layers}
        layers = {int(layer): here[int(layer)] for layer in asked["layers"] if int(layer) in here}
        background(self._give(message.sender, f"given {asked['token']}", layers))

    async def _give(self, name: str, channel: str, layers: Layers) -> None:
        body = await self.world.aside(lambda: packed(layers))
        await self._hall.peer(name).send(channel, b"", body, lane=Lane.BULK)

    def _begin(self, settlement: Settlement, layers: Layers) -> None:
        assert self._group is not None
        world, settings, task = self.world, self._settings, self._task
        seat = settlement.layout.seats[world.name]
        self._before = {layer: held for layer, held in {**self._before, **self._layers}.items() if layer not in layers}
        self._layers = dict(layers)
        held = nn.Sequential(*(module for module, _ in layers.values()))
        self.stage = StageModel(
            held,
            [optimizer for _, optimizer in layers.values() if optimizer],
            weights=settings.weights,
            recompute=settings.recompute,
            slower=settings.slower,
        )
        standing = settlement.standing(world.name, ())
        if seat.before is None:
            self._batches = self._parts.batches(standing.shard, derive(self._seed, "batches", standing.scope))
        self.pipeline = Pipeline(
            Scoped(world, standing.scope),
            seat,
            self.stage,
            source=self._next if seat.before is None else None,
            loss=task.loss if seat.after is None else None,
            recompute=settings.recompute,
            before_update=self._before_update,
            updated=self._updated,
        )
        self._tested_at = 0
        self._running = standing.scope
        self._assembly = self._seated(world, standing.order, held)
        self._refresh_exchanges()
        self._work = Background(self._group)
        self._prober = Prober(
            Scoped(world, standing.scope),
            seat,
            self.stage,
            inputs=task.test.inputs,
            measure=task.measured,
            tested=self._record_test,
        )
        self._prober.start(self._work)
        self._work(self.pipeline.run(self._work))

    # Exchanges ---

    def _close_exchanges(self, keep: dict[RangeKey, tuple[str, tuple[str, ...]]] | None = None) -> None:
        for key, exchange in list(self._exchanges.items()):
            if keep is None or key not in keep or keep[key][0] != exchange.scope:
                exchange.background.cancel()
                del self._exchanges[key]

    def _refresh_exchanges(self) -> None:
        """Takes part in the exchanges of the settlement, and in no others."""
        assert self._settlement is not None
        assert self._group is not None
        self._exchanges_are_old = False
        wanted = self._settlement.standing(self.world.name, ()).ranges
        self._close_exchanges(wanted)
        for (first, last), (scope, members) in sorted(wanted.items()):
            held = {layer: self._layers[layer] for layer in range(first, last)}
            optimizers = {layer: optimizer for layer, (_, optimizer) in held.items() if optimizer}
            if (first, last) in self._exchanges or len(members) < 2 or not optimizers:
                continue
            modules = nn.Sequential(*(module for module, _ in held.values()))
            world = Scoped(self.world, scope, begins=True)
            replica = SpanReplica(world, members, modules, optimizers, self)
            background = Background(self._group)
            talk = self._strategy.talk(replica)
            talk.start(background)
            self._exchanges[first, last] = _Exchange(scope, replica, talk, background)

    @property
    def loss(self) -> float:
        return self.pipeline.loss if self.pipeline else math.nan

    def keep_versions(self) -> None:
        if self.stage:
            self.stage.keep_versions()

    # Training ---

    def _next(self) -> Given:
        assert self._batches is not None
        batch = self._batches.take()
        np.add.at(self._parts.used, batch.numpy(), 1)
        return Given(self._task.train.inputs[batch], self._task.train.targets[batch])

    async def _before_update(self) -> None:
        talks = [each.talk for each in self._exchanges.values()]
        await asyncio.gather(*(talk.after_gradient() for talk in talks if talk.uses_gradients))

    async def _updated(self, samples: int) -> None:
        assert self.stage is not None
        if self._exchanges_are_old:
            self._refresh_exchanges()
        for each in self._exchanges.values():
            each.replica.steps += 1
            each.replica.work[each.replica.rank] += samples
        talks = [each.talk for each in self._exchanges.values()]
        merged = any(await asyncio.gather(*(talk.after_step() for talk in talks if not talk.is_idle)))
        if merged or self.stage.updates - self._tested_at >= self._task.test_every:
            self._test()

    def _test(self) -> None:
        """Where somebody sees the whole model, its last stage tests it; else test examples go through the stages."""
        assert self.stage is not None
        assert self._work is not None
        assembly, standing = self._assembly, self.standing
        if assembly is None and standing.order[0] == self.world.name:
            if self.stage.updates - self._tested_at >= self._task.test_every and (
                self._probing is None or self._probing.done()
            ):
                self._tested_at = self.stage.updates
                self._probing = self._work(self._prober.begin())
        elif assembly is not None and assembly.nodes[-1] == self.world.name and assembly.is_whole:
            self._tested_at = self.stage.updates
            self._record_test(assembly.test(), assembly.sent_bytes)

    def _record_test(self, measure: float, sent_bytes: int | None = None) -> None:
        if self.stage is None:
            return
        if not math.isfinite(measure):
            measure = 0.0 if self._task.rising else 1e9
        self.world.record(
            Tested(
                at=self.world.now,
                node=self.world.name,
                steps=self.stage.updates,
                measure=measure,
                sent_bytes=self.world.sent_bytes if sent_bytes is None else sent_bytes,
            )
        )


# Layers on their way ---


def packed(layers: Layers) -> bytes:
    """Weights, buffers, and what optimisers remember."""
    tensors: dict[str, torch.Tensor] = {}
    for layer, (module, optimizer) in layers.items():
        for name, value in module.state_dict().items():
            tensors[f"{layer}/model/{name}"] = value.detach().cpu().contiguous().clone()
        if optimizer:
            for name, remembered in what_is_remembered(optimizer).items():
                tensors[f"{layer}/optimizer/{name}"] = torch.from_numpy(remembered)
    return safetensors.torch.save(tensors)


def fill(layers: Layers, body: bytes | memoryview) -> bool:
    """Puts what was packed into layers; `False` if it is not all of it, and nothing is changed then."""
    try:
        tensors = safetensors.torch.load(bytes(body))
    except safetensors.SafetensorError:
        return False
    for layer, (module, _) in layers.items():
        for name, value in module.state_dict().items():
            given = tensors.get(f"{layer}/model/{name}")
            if given is None or given.shape != value.shape or not torch.isfinite(given).all():
                return False
    with torch.no_grad():
        for layer, (module, optimizer) in layers.items():
            for name, value in module.state_dict().items():
                value.copy_(tensors[f"{layer}/model/{name}"])
            prefix = f"{layer}/optimizer/"
            memory = {key.removeprefix(prefix): each.numpy() for key, each in tensors.items() if key.startswith(prefix)}
            if optimizer and memory:
                remember(optimizer, memory)
    return True

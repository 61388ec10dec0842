"""The node program of islands: a stage of a model, in its island's pipeline, and in the exchanges of what it holds.

Nodes agree on who is here as strategies do (`atoll.group`); and since everybody then knows where everybody stood, all
work out alike, without another word, who holds what from now on: islands that are whole stay as they are, the rest
makes the best of it.  Who is given layers that it does not hold asks for them: those of its old island first, then
others' owners of them.  Exchanges go on wherever their owners are the same, or fewer.
"""

import asyncio
import json
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch import nn

from atoll.group import Group, Summary, View
from atoll.island import Given, Pipeline, Prober, Seat, StageModel
from atoll.seeds import derive
from atoll.strategy import Strategy
from atoll.strategy.talk import Talk
from atoll.trace import Tested
from atoll.train.assembly import Assembly
from atoll.train.batches import Batches
from atoll.train.islands import Layout, build_chain
from atoll.train.node import Background
from atoll.train.parts import Parts
from atoll.train.settlement import Exchanges, RangeKey, Settlement, Standing, settle
from atoll.train.span import Held, Layers, SpanReplica, fill, packed
from atoll.train.task import Task
from atoll.world.base import Lane, Message, World
from atoll.world.hearing import hear
from atoll.world.scoped import Scoped

__all__ = ["IslandNode"]

ASK_AGAIN_S = 5.0
"""How long an answer to a request for layers may take before the next node is asked, while it can be reached."""

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
            self._settlement = Settlement.first(layout)

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
            self.world.record(self._settlement.layout.formed(at=self.world.now))
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

    def _close_exchanges(self, keep: Exchanges | None = None) -> None:
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
            replica = SpanReplica(
                world, members, modules, optimizers, loss=self._loss, before_change=self._keep_versions
            )
            background = Background(self._group)
            talk = self._strategy.talk(replica)
            talk.start(background)
            self._exchanges[first, last] = _Exchange(scope, replica, talk, background)

    def _loss(self) -> float:
        return self.pipeline.loss if self.pipeline else math.nan

    def _keep_versions(self) -> None:
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

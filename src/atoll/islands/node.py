"""The node program of islands: a stage of a model, in its island's pipeline, and in the exchanges of what it holds.

Nodes agree on who is here as strategies do (`atoll.membership`).  Everybody then knows where everybody stood, so all
work out alike, without another word, who holds what from now on: islands that are whole stay as they are, the rest
makes the best of it.  Who is given layers that it does not hold asks for them: those of its old island first, then
others' owners of them.  Exchanges go on wherever their owners are the same, or fewer.
"""

import asyncio
import dataclasses
import hashlib
import json
import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from torch import Tensor, nn

from atoll.islands import Pipeline, Prober, Seat, StageModel
from atoll.islands.assembly import Assembly
from atoll.islands.curriculum import Lesson
from atoll.islands.layers import Stock
from atoll.islands.layout import Facts, Survey
from atoll.islands.settings import IslandSettings
from atoll.islands.settlement import Exchanges, RangeKey, Settlement, Standing, settle
from atoll.islands.span import Held, Layers, SpanReplica, forget
from atoll.membership import Group, Summary, View
from atoll.state import Saved, note, part, read_note, under
from atoll.strategies import Strategy
from atoll.strategies.talk import Talk
from atoll.trace import SeatTaken, Tested
from atoll.training.drive import Background
from atoll.world.base import World
from atoll.world.scope import Scoped

__all__ = ["IslandNode", "Seated"]

log = logging.getLogger("atoll")

LOOK_EVERY_S = 1.0
"""How often a node looks what it knows of itself and of its links."""
ALONE_S = 2.0
"""How long a node that is the first looks for others."""

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
        survey: what is known of layers, machines and links.
        settings: how islands train.
        lesson: what is learned.
        strategy: how islands talk.
        first: who holds what at the beginning, where that is agreed on beforehand.
        find: finds out what this machine is like, where that is not declared.
        seated: told when it takes a seat.
        at_boundary: called after every step, with what gives the node's state at that moment.
    """

    def __init__(
        self,
        world: World,
        survey: Survey,
        settings: IslandSettings,
        lesson: Lesson,
        strategy: Strategy,
        *,
        first: Settlement | None = None,
        find: Callable[[], Facts] | None = None,
        seated: Seated = lambda *_: None,
        at_boundary: Callable[[Callable[[], Saved]], object] | None = None,
    ) -> None:
        self.world = world
        self._survey = survey
        self._settings = settings
        self._lesson = lesson
        self._strategy = strategy
        self._find = find
        self._facts = find() if find else None
        self._seated = seated
        self._at_boundary = at_boundary
        hall = Scoped(world, "islands", alone=find is not None)
        self.council = Group(hall, tuple(machine.name for machine in survey.machines))
        self.stock = Stock(hall, lesson)
        self._exchanges: dict[RangeKey, _Exchange] = {}
        self._exchanges_are_old = False
        self._gradients: list[tuple[nn.Parameter, Tensor | None]] = []
        """Of the update under way.  A stage drops them with the update, and strategies look at them after it."""
        self._group: asyncio.TaskGroup | None = None
        self._work: Background | None = None
        self._running = ""
        """What the pipeline is called that it is at work in."""
        self._is_first = False
        self._assembly: Assembly | None = None
        self._tested_at = 0
        self._probing: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self.updates = 0
        """Of all stages that it has been."""
        self._updated_once = asyncio.Event()
        self._resume: Saved = {}
        self.stage: StageModel | None = None
        self.pipeline: Pipeline | None = None
        self._settlement = None if world.is_late else first

    async def run(self) -> None:
        """Trains until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            background = Background(group)
            self.council.start(background, self)
            self.stock.start(background)
            if self._find:
                background(self._keep_looking())
                background(self._begin_alone())
            while True:
                self._changed.clear()
                if self._settlement is not None:
                    await self._follow(self._settlement)
                await self._changed.wait()

    async def reach(self, updates: int) -> None:
        """Returns when there have been so many updates."""
        while self.updates < updates:
            self._updated_once.clear()
            await self._updated_once.wait()

    @property
    def standing(self) -> Standing:
        """Where it stands now."""
        there = self._settlement.standing(self.world.name) if self._settlement else Standing()
        held, spare = tuple(self.stock.held), tuple(sorted(self.stock.spare.items()))
        return dataclasses.replace(there, held=held, spare=spare, facts=self._facts)

    @property
    def seats(self) -> dict[str, Seat]:
        """Everybody's, as far as this node knows."""
        return self._settlement.layout.seats if self._settlement else {}

    @property
    def place(self) -> tuple[int, int]:
        """Of its island among all, and how many there are."""
        settlement = self._settlement  # read once: any thread may ask
        seat = settlement.layout.seats.get(self.world.name) if settlement else None
        islands = list(settlement.layout.islands) if settlement else []
        return (islands.index(seat.island), len(islands)) if seat else (0, 1)

    async def _keep_looking(self) -> None:
        assert self._find is not None
        while True:
            await self.world.sleep(LOOK_EVERY_S)
            if not self.council.held:  # what it says of itself must not change while others decide by it
                self._facts = self._find()

    async def _begin_alone(self) -> None:
        """Who finds nobody makes the best of it; who finds somebody is taken in."""
        world = self.world
        while self._settlement is None:
            await world.sleep(ALONE_S)
            alone = not any(world.peer(name).reachable for name in world.peer_names)
            if self._settlement is None and alone and not self.council.held:
                self.installed(self.council.view, {world.name: self.summary()})

    async def collect(self, chain: nn.Sequential) -> None:
        """Puts the whole model as it is now into a chain like it, from those who hold it: of its own island, if it can
        be had there.
        """
        while self._settlement is None:
            await self.world.sleep(LOOK_EVERY_S)
        settlement = self._settlement
        own, spans = settlement.island_of(self.world.name), settlement.layout.spans

        def owners(layer: int) -> list[str]:
            found = [name for name, (start, stop) in spans.items() if start <= layer < stop and name != self.world.name]
            return sorted(found, key=lambda name: name not in own)

        await self.stock.copy({place: Held(layer, None) for place, layer in enumerate(chain)}, owners)

    # What all agree on ---

    def results(self) -> Summary:
        return [["settlement", self._settlement.digest if self._settlement else ""]]

    def compared(self, sender: str, results: Summary) -> bool:  # noqa: ARG002 - as a guest's
        return results == self.results()

    def summary(self) -> Summary:
        return [["islands", self._settlement.digest if self._settlement else ""], *self.standing.summary()]

    def stands(self, summary: Summary) -> bool:
        return summary == self.summary()

    def check(self, summary: Summary) -> None:
        """A standing that makes no sense is taken as none, by all alike (`Standing.read`)."""

    def are_together(self, summaries: Iterable[Summary]) -> bool:
        return bool(set.intersection(*(set(map(tuple, summary)) for summary in summaries)))

    def installed(self, view: View, summaries: dict[str, Summary]) -> None:
        standings = {name: Standing.read(summaries[name]) for name in view.members}
        about = hashlib.blake2b(json.dumps(summaries, sort_keys=True).encode(), digest_size=4).hexdigest()
        name = f"{view.name} {about}"  # numbers of views may come again after a checkpoint
        self._settlement = settle(name, standings, self._survey, self._settings, self._lesson.shards)
        if view.members[0] == self.world.name:
            self.world.record(self._settlement.layout.formed(at=self.world.now))
        if self._find and not self._settlement.layout.islands:
            log.warning("%s: %s; waiting for others", self.world.name, self._settlement.layout.survey.shortage)
        self._exchanges_are_old = True
        self._changed.set()

    # Taking a seat ---

    async def _follow(self, settlement: Settlement) -> None:
        """Does what a settlement says, unless there is a newer one before that is done."""
        scope = settlement.standing(self.world.name).scope
        if scope and scope == self._running:
            return  # exchanges follow at the next step boundary
        self._stop()
        if not scope:
            self._close_exchanges()
            await self._until_decided()
            if self._settlement is settlement:
                self.stock.use({})
                self._is_at_boundary()
                self._record_seat(None)
            return
        fetching = asyncio.create_task(self._fetch(settlement))
        changed = asyncio.create_task(self._changed.wait())
        try:
            await asyncio.wait({fetching, changed}, return_when=asyncio.FIRST_COMPLETED)
            if fetching.done():
                layers = fetching.result()
                # A pass of the old stage may still be under way where computing is done.
                await self.world.aside(lambda: forget(layers))
                await self._until_decided()
                if self._settlement is settlement:
                    self._begin(settlement, layers)
        finally:
            fetching.cancel()
            changed.cancel()

    async def _until_decided(self) -> None:
        """Where it stands must not change while others decide by it."""
        while self.council.held:
            await self.world.sleep(0.05)

    async def _fetch(self, settlement: Settlement) -> Layers:
        """All layers of the new seat: own ones, and what others know of the rest."""
        name, alike = self.world.name, self._lesson.alike
        wanted = range(*settlement.layout.spans[name])
        return await self.stock.fetch(wanted, lambda layer: settlement.sources(name, layer, alike=alike))

    def _stop(self) -> None:
        if self._work is not None:
            self._work.cancel()
        self._work, self._running = None, ""
        self._gradients = []
        self.stage = self.pipeline = None

    def _begin(self, settlement: Settlement, layers: Layers) -> None:
        assert self._group is not None
        world, settings, lesson = self.world, self._settings, self._lesson
        seat = settlement.layout.seats[world.name]
        self.stock.use(layers)
        held = nn.Sequential(*(each.module for each in layers.values()))
        self.stage = StageModel(
            held,
            [each.optimizer for each in layers.values() if each.optimizer],
            weights=settings.weights,
            recompute=settings.recompute,
            slower=settings.slower,
            memory_bytes=settlement.layout.survey.memory_of(world.name),
        )
        standing = settlement.standing(world.name)
        self.pipeline = Pipeline(
            Scoped(world, standing.scope),
            seat,
            self.stage,
            source=lesson.source(standing.shard, standing.scope) if seat.before is None else None,
            loss=lesson.loss if seat.after is None else None,
            recompute=settings.recompute,
            before_update=self._before_update,
            updated=self._updated,
        )
        self._tested_at = 0
        self._running, self._is_first = standing.scope, seat.before is None
        self._assembly = self._seated(world, standing.order, held)
        self._record_seat(seat)
        self._refresh_exchanges()
        self._work = Background(self._group)
        if lesson.exam:
            self._prober = Prober(
                Scoped(world, standing.scope),
                seat,
                self.stage,
                inputs=lesson.exam.inputs,
                measure=lesson.exam.measured,
                tested=self._record_test,
            )
            self._prober.start(self._work)
        self._go_on()
        self._work(self.pipeline.run(self._work))

    def _record_seat(self, seat: Seat | None) -> None:
        world, settlement = self.world, self._settlement
        start, stop = settlement.layout.spans[world.name] if settlement and seat else (0, 0)
        world.record(
            SeatTaken(
                at=world.now,
                node=world.name,
                island=seat.island if seat else "",
                stage=seat.stage if seat else 0,
                stages=len(settlement.island_of(world.name)) if settlement else 0,
                start=start,
                stop=stop,
            )
        )

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
        wanted = self._settlement.standing(self.world.name).ranges
        self._close_exchanges(wanted)
        for (first, last), (scope, members) in sorted(wanted.items()):
            held = {layer: self.stock.used[layer] for layer in range(first, last)}
            optimizers = {layer: each.optimizer for layer, each in held.items() if each.optimizer}
            if (first, last) in self._exchanges or len(members) < 2 or not optimizers:
                continue
            modules = nn.Sequential(*(each.module for each in held.values()))
            world = Scoped(self.world, scope, begins=True)
            replica = SpanReplica(
                world, members, modules, optimizers, loss=self._loss, before_change=self._keep_versions
            )
            background = Background(self._group)
            talk = self._strategy.start(replica)
            talk.start(background)
            self._exchanges[first, last] = _Exchange(scope, replica, talk, background)

    @property
    def _stays(self) -> bool:
        """Whether it keeps its seat in the settlement of now."""
        settlement = self._settlement
        return settlement is not None and settlement.standing(self.world.name).scope == self._running

    def _loss(self) -> float:
        return self.pipeline.loss if self.pipeline else math.nan

    def _keep_versions(self) -> None:
        if self.stage:
            self.stage.keep_versions()

    # Training ---

    async def _before_update(self) -> None:
        if self._strategy.uses_gradients:
            await asyncio.gather(*(each.talk.after_gradient() for each in self._exchanges.values()))
        modules = [held.module for held in self.stock.used.values()]
        self._gradients = [(each, each.grad) for module in modules for each in module.parameters()]

    async def _updated(self, samples: int) -> None:
        assert self.stage is not None
        self.updates += 1
        for held in self.stock.used.values():
            held.updates += 1
        if self._exchanges_are_old and self._stays:
            self._refresh_exchanges()
        for each in self._exchanges.values():
            each.replica.steps += 1
            each.replica.work[each.replica.rank] += samples
        merged = await self._after_step()
        exam = self._lesson.exam
        if exam and (merged or self.stage.updates - self._tested_at >= exam.every):
            self._test(exam.every)
        self._lesson.learned(self.updates, self._loss())
        self._is_at_boundary()
        self._updated_once.set()

    async def _after_step(self) -> bool:
        """Every exchange has its turn, with the gradients of the update in place, as with whole replicas."""
        gradients, self._gradients = self._gradients, []
        talks = [each.talk for each in self._exchanges.values()]
        for parameter, gradient in gradients:
            parameter.grad = gradient
        try:
            return any(await asyncio.gather(*(talk.after_step() for talk in talks if not talk.is_idle)))
        finally:
            for parameter, _ in gradients:
                parameter.grad = None

    def _test(self, every: int) -> None:
        """Where somebody sees the whole model, its last stage tests it; else test examples go through the stages."""
        assert self.stage is not None
        assert self._work is not None
        assembly = self._assembly
        if assembly is None and self._is_first:
            if self.stage.updates - self._tested_at >= every and (self._probing is None or self._probing.done()):
                self._tested_at = self.stage.updates
                self._probing = self._work(self._prober.begin())
        elif assembly is not None and assembly.nodes[-1] == self.world.name and assembly.is_whole:
            self._tested_at = self.stage.updates
            self._record_test(assembly.test(), assembly.sent_bytes)

    def _record_test(self, measure: float, sent_bytes: int | None = None) -> None:
        exam = self._lesson.exam
        if self.stage is None or exam is None:
            return
        if not math.isfinite(measure):
            measure = 0.0 if exam.rising else 1e9
        self.world.record(
            Tested(
                at=self.world.now,
                node=self.world.name,
                steps=self.stage.updates,
                measure=measure,
                sent_bytes=self.world.sent_bytes if sent_bytes is None else sent_bytes,
            )
        )

    # Checkpoints ---

    def _is_at_boundary(self) -> None:
        if self._at_boundary:
            self._at_boundary(self.save)

    def save(self) -> Saved:
        """All that it is, but for batches on their way, at a step boundary."""
        saved = {
            "layers": np.frombuffer(self.stock.pack(), dtype=np.uint8),
            "settlement": note(self._settlement.save() if self._settlement else None),
            "counts": note([self.updates, self.stage.updates if self.stage else 0, self._tested_at]),
            "world": np.frombuffer(self.world.save(), dtype=np.uint8),
            **under("lesson", self._lesson.save()),
        }
        for (first, last), each in self._exchanges.items():
            saved |= under(f"range {first} {last}/replica", each.replica.save())
            saved |= under(f"range {first} {last}/talk", each.talk.save())
        return saved

    def load(self, saved: Saved) -> None:
        """Goes on from what `save` gave; to be called before it runs."""
        found = read_note(saved["settlement"])
        self._settlement = Settlement.load(found, self._survey, self._settings) if found else None
        self.stock.shelve(saved["layers"].tobytes())
        self.stock.take_from_shelf()
        self.world.load(saved["world"].tobytes())
        self._resume = saved

    def _go_on(self) -> None:
        """What a checkpoint says of the seat that it takes first."""
        saved, self._resume = self._resume, {}
        if not saved:
            return
        assert self.stage is not None
        self.updates, self.stage.updates, self._tested_at = read_note(saved["counts"])
        self._lesson.load(part("lesson", saved))
        for (first, last), each in self._exchanges.items():
            each.replica.load(part(f"range {first} {last}/replica", saved))
            each.talk.load(part(f"range {first} {last}/talk", saved))

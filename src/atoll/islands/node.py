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

import numpy as np
from torch import nn

from atoll.islands import Pipeline, StageModel, StageSeat
from atoll.islands.assembly import Assembly
from atoll.islands.curriculum import Curriculum
from atoll.islands.examine import Examination
from atoll.islands.exchanges import RangeTalks
from atoll.islands.layers import LayerStore
from atoll.islands.layout import Facts, Survey
from atoll.islands.settings import IslandSettings
from atoll.islands.settlement import IslandStanding, Settlement, settle
from atoll.islands.span import Held, Layers, drop_gradients
from atoll.membership import Group, Summary, View
from atoll.state import Saved, note, read_note, section, under
from atoll.strategies import Strategy
from atoll.trace import SeatTaken
from atoll.training.drive import Background, drive
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


class IslandNode:
    """One node.

    Args:
        world: where it is.
        survey: what is known of layers, machines and links.
        settings: how islands train.
        curriculum: what is learned.
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
        curriculum: Curriculum,
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
        self._curriculum = curriculum
        self._find = find
        self._facts = find() if find else None
        self._seated = seated
        self._at_boundary = at_boundary
        hall = Scoped(world, "islands", alone=find is not None)
        self.council = Group(hall, tuple(machine.name for machine in survey.machines))
        self.store = LayerStore(hall, curriculum)
        self._exchanges = RangeTalks(world, strategy, loss=self._loss, before_change=self._keep_versions)
        self._exchanges_are_old = False
        self._group: asyncio.TaskGroup | None = None
        self._work: Background | None = None
        self._running = ""
        """What the pipeline is called that it is at work in."""
        self._examination: Examination | None = None
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
            self.store.start(background)
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
    def standing(self) -> IslandStanding:
        """Where it stands now."""
        there = self._settlement.standing(self.world.name) if self._settlement else IslandStanding()
        spare = tuple(sorted(self.store.spare.items()))
        return dataclasses.replace(there, held=tuple(self.store.held), spare=spare, facts=self._facts)

    @property
    def seats(self) -> dict[str, StageSeat]:
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
        """Puts the whole model as it is now into a chain like it, from those who hold it; its own island first."""
        while self._settlement is None:
            await self.world.sleep(LOOK_EVERY_S)
        settlement = self._settlement
        own, spans = settlement.island_of(self.world.name), settlement.layout.spans

        def owners(layer: int) -> list[str]:
            found = [name for name, (start, stop) in spans.items() if start <= layer < stop and name != self.world.name]
            return sorted(found, key=lambda name: name not in own)

        await self.store.copy({place: Held(layer, None) for place, layer in enumerate(chain)}, owners)

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
        """A standing that makes no sense is taken as none, by all alike (`IslandStanding.read`)."""

    def are_together(self, summaries: Iterable[Summary]) -> bool:
        return bool(set.intersection(*(set(map(tuple, summary)) for summary in summaries)))

    def installed(self, view: View, summaries: dict[str, Summary]) -> None:
        standings = {name: IslandStanding.read(summaries[name]) for name in view.members}
        about = hashlib.blake2b(json.dumps(summaries, sort_keys=True).encode(), digest_size=4).hexdigest()
        name = f"{view.name} {about}"  # numbers of views may come again after a checkpoint
        self._settlement = settle(name, standings, self._survey, self._settings, self._curriculum.shards)
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
            self._exchanges.close()
            await self._until_decided()
            if self._settlement is settlement:
                self.store.use({})
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
                await self.world.aside(lambda: drop_gradients(layers))
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
        name, alike = self.world.name, self._curriculum.alike
        wanted = range(*settlement.layout.spans[name])
        return await self.store.fetch(wanted, lambda layer: settlement.sources(name, layer, alike=alike))

    def _stop(self) -> None:
        if self._work is not None:
            self._work.cancel()
        self._work, self._running = None, ""
        self._exchanges.forget()
        self.stage = self.pipeline = None

    def _begin(self, settlement: Settlement, layers: Layers) -> None:
        assert self._group is not None
        world, settings, curriculum = self.world, self._settings, self._curriculum
        seat = settlement.layout.seats[world.name]
        self.store.use(layers)
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
            source=curriculum.source(standing.shard, standing.scope) if seat.before is None else None,
            loss=curriculum.loss if seat.after is None else None,
            recompute=settings.recompute,
        )
        self._running = standing.scope
        assembly = self._seated(world, standing.order, held)
        self._record_seat(seat)
        self._refresh_exchanges()
        self._work = Background(self._group)
        self._examination = None
        if curriculum.exam:
            self._examination = Examination(
                world, seat, self.stage, curriculum.exam, scope=standing.scope, assembly=assembly
            )
            self._examination.start(self._work)
        self._go_on()
        self._work(self._train(self.pipeline, self._work))

    def _record_seat(self, seat: StageSeat | None) -> None:
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

    # Training ---

    async def _train(self, pipeline: Pipeline, background: Background) -> None:
        pipeline.start(background)

        async def boundary(merged: bool) -> None:  # noqa: FBT001 - the shape of a boundary
            if self._examination:
                self._examination.updated(merged=merged)
            self._curriculum.learned(self.updates, self._loss())
            self._is_at_boundary()
            self._updated_once.set()

        await drive(self, self._exchanges, background, goes_on=lambda: True, boundary=boundary)

    async def gradient(self) -> None:
        """Works as a stage of its island until the gradient of an update is there."""
        assert self.pipeline is not None
        await self.pipeline.gradient()

    async def update(self) -> None:
        """Updates the weights that it holds."""
        assert self.pipeline is not None
        await self.pipeline.update()
        self.updates += 1
        for held in self.store.used.values():
            held.updates += 1
        if self._exchanges_are_old and self._stays:
            self._refresh_exchanges()
        self._exchanges.count(self.pipeline.samples)

    def _refresh_exchanges(self) -> None:
        """Takes part in the exchanges of the settlement, and in no others."""
        assert self._settlement is not None
        assert self._group is not None
        self._exchanges_are_old = False
        wanted = self._settlement.standing(self.world.name).ranges
        self._exchanges.follow(wanted, self.store.used, self._group)

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

    # Checkpoints ---

    def _is_at_boundary(self) -> None:
        if self._at_boundary:
            self._at_boundary(self.save)

    def save(self) -> Saved:
        """All that it is, but for batches on their way, at a step boundary."""
        updates = self.stage.updates if self.stage else 0
        tested_at = self._examination.tested_at if self._examination else 0
        saved = {
            "layers": np.frombuffer(self.store.pack(), dtype=np.uint8),
            "settlement": note(self._settlement.save() if self._settlement else None),
            "counts": note([self.updates, updates, tested_at]),
            "world": np.frombuffer(self.world.save(), dtype=np.uint8),
            **under("curriculum", self._curriculum.save()),
        }
        return saved | self._exchanges.save()

    def load(self, saved: Saved) -> None:
        """Goes on from what `save` gave; to be called before it runs."""
        found = read_note(saved["settlement"])
        self._settlement = Settlement.load(found, self._survey, self._settings) if found else None
        self.store.shelve(saved["layers"].tobytes())
        self.store.take_from_shelf()
        self.world.load(saved["world"].tobytes())
        self._resume = saved

    def _go_on(self) -> None:
        """What a checkpoint says of the seat that it takes first."""
        saved, self._resume = self._resume, {}
        if not saved:
            return
        assert self.stage is not None
        self.updates, self.stage.updates, tested_at = read_note(saved["counts"])
        if self._examination:
            self._examination.tested_at = tested_at
        self._curriculum.load(section("curriculum", saved))
        self._exchanges.load(saved)

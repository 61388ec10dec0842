"""The node program of islands: a stage of a model in its island's pipeline, and in the exchanges of its layers.

Nodes agree on the reachable nodes as strategies do (`atoll.membership`).  All members then know everybody's standing,
so each computes the same new settlement without more messages: complete islands stay as they are, the other nodes form
the best ones.  A node that needs layers that it does not hold asks for them: first nodes of its old island, then other
owners.  An exchange continues if its owners are the same, or fewer.
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
from atoll.state import AtBoundary, Saved, note, read_note, section, under
from atoll.strategies import Strategy
from atoll.trace import SeatTaken
from atoll.training.drive import Background, drive
from atoll.world.base import World
from atoll.world.scope import Scoped

__all__ = ["IslandNode", "Seated"]

log = logging.getLogger("atoll")

LOOK_EVERY_S = 1.0
"""How often a node updates its facts about itself and its links."""
ALONE_S = 2.0
"""How long the first node looks for others."""

Seated = Callable[[World, tuple[str, ...], nn.Module], Assembly | None]
"""Called when a node takes a seat, with its island and layers; returns the island's whole model, in simulation."""


class IslandNode:
    """One node.

    Args:
        world: the node's world.
        survey: what is known about layers, machines and links.
        settings: how islands train.
        curriculum: the model and its data.
        strategy: the communication strategy between islands.
        first: the settlement at the beginning, if it is agreed on beforehand.
        find: measures this machine, if its facts are not declared.
        seated: called when the node takes a seat.
        at_boundary: called after every step, with a function that returns the node's state at that moment.
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
        at_boundary: AtBoundary | None = None,
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
        """The scope of the pipeline that it works in."""
        self._examination: Examination | None = None
        self._changed = asyncio.Event()
        self.updates = 0
        """The updates of all its stages so far."""
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
        """Returns after this many updates."""
        while self.updates < updates:
            self._updated_once.clear()
            await self._updated_once.wait()

    @property
    def standing(self) -> IslandStanding:
        """Its current standing."""
        there = self._settlement.standing(self.world.name) if self._settlement else IslandStanding()
        spare = tuple(sorted(self.store.spare.items()))
        return dataclasses.replace(there, held=tuple(self.store.held), spare=spare, facts=self._facts)

    @property
    def seats(self) -> dict[str, StageSeat]:
        """The seats of all nodes, as far as this node knows."""
        return self._settlement.layout.seats if self._settlement else {}

    @property
    def place(self) -> tuple[int, int]:
        """The index of its island, and the number of islands."""
        settlement = self._settlement  # read once: any thread may ask
        seat = settlement.layout.seats.get(self.world.name) if settlement else None
        islands = list(settlement.layout.islands) if settlement else []
        return (islands.index(seat.island), len(islands)) if seat else (0, 1)

    async def _keep_looking(self) -> None:
        assert self._find is not None
        while True:
            await self.world.sleep(LOOK_EVERY_S)
            if not self.council.held:  # its standing must not change while others use it
                self._facts = self._find()

    async def _begin_alone(self) -> None:
        """Starts alone if no other node is reachable; otherwise the others admit this node."""
        world = self.world
        while self._settlement is None:
            await world.sleep(ALONE_S)
            alone = not any(world.peer(name).reachable for name in world.peer_names)
            if self._settlement is None and alone and not self.council.held:
                self.installed(self.council.view, {world.name: self.summary()})

    async def collect(self, chain: nn.Sequential) -> None:
        """Copies the whole model, in its current state, into a chain of the same shape; from its own island first."""
        while self._settlement is None:
            await self.world.sleep(LOOK_EVERY_S)
        settlement = self._settlement
        own, spans = settlement.island_of(self.world.name), settlement.layout.spans

        def owners(layer: int) -> list[str]:
            found = [name for name, (start, stop) in spans.items() if start <= layer < stop and name != self.world.name]
            return sorted(found, key=lambda name: name not in own)

        await self.store.copy({place: Held(layer, None) for place, layer in enumerate(chain)}, owners)

    # Membership ---

    def results(self) -> Summary:
        return [["settlement", self._settlement.digest if self._settlement else ""]]

    def compared(self, sender: str, results: Summary) -> bool:  # noqa: ARG002 - as a guest's
        return results == self.results()

    def summary(self) -> Summary:
        return [["islands", self._settlement.digest if self._settlement else ""], *self.standing.summary()]

    def stands(self, summary: Summary) -> bool:
        return summary == self.summary()

    def check(self, summary: Summary) -> None:
        """Accepts everything: a malformed standing counts as empty, on all nodes alike (`IslandStanding.read`)."""

    def are_together(self, summaries: Iterable[Summary]) -> bool:
        return bool(set.intersection(*(set(map(tuple, summary)) for summary in summaries)))

    def installed(self, view: View, summaries: dict[str, Summary]) -> None:
        standings = {name: IslandStanding.read(summaries[name]) for name in view.members}
        about = hashlib.blake2b(json.dumps(summaries, sort_keys=True).encode(), digest_size=4).hexdigest()
        name = f"{view.name} {about}"  # view numbers may repeat after a checkpoint
        self._settlement = settle(name, standings, self._survey, self._settings, self._curriculum.shards)
        if view.members[0] == self.world.name:
            self.world.record(self._settlement.layout.formed(at=self.world.now))
        if self._find and not self._settlement.layout.islands:
            log.warning("%s: %s; waiting for others", self.world.name, self._settlement.layout.survey.shortage)
        self._exchanges_are_old = True
        self._changed.set()

    # Taking a seat ---

    async def _follow(self, settlement: Settlement) -> None:
        """Follows a settlement, unless a newer one replaces it before that is done."""
        scope = settlement.standing(self.world.name).scope
        if scope and scope == self._running:
            return  # exchanges follow at the next step boundary
        self._stop()
        if not scope:
            self._exchanges.close()
            await self._until_decided()
            if self._settlement is settlement:
                self.store.use({})
                await self._is_at_boundary()
                self._record_seat(None)
            return
        fetching = asyncio.create_task(self._fetch(settlement))
        changed = asyncio.create_task(self._changed.wait())
        try:
            await asyncio.wait({fetching, changed}, return_when=asyncio.FIRST_COMPLETED)
            if fetching.done():
                layers = fetching.result()
                # A pass of the old stage may still be running.
                await self.world.aside(lambda: drop_gradients(layers))
                await self._until_decided()
                if self._settlement is settlement:
                    self._begin(settlement, layers)
        finally:
            fetching.cancel()
            changed.cancel()

    async def _until_decided(self) -> None:
        """Waits while a decision is under way: the standing must not change while others use it."""
        while self.council.held:
            await self.world.sleep(0.05)

    async def _fetch(self, settlement: Settlement) -> Layers:
        """Fetches all layers of the new seat: its own ones, and the rest from other nodes."""
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
            await self._is_at_boundary()
            self._updated_once.set()

        await drive(self, self._exchanges, background, goes_on=lambda: True, boundary=boundary)

    async def gradient(self) -> None:
        """Works as a stage of its island until the gradient of an update is ready."""
        assert self.pipeline is not None
        await self.pipeline.gradient()

    async def update(self) -> None:
        """Updates the weights of its layers."""
        assert self.pipeline is not None
        await self.pipeline.update()
        self.updates += 1
        for held in self.store.used.values():
            held.updates += 1
        if self._exchanges_are_old and self._stays:
            self._refresh_exchanges()
        self._exchanges.count(self.pipeline.samples)

    def _refresh_exchanges(self) -> None:
        """Takes part in the exchanges of the settlement only."""
        assert self._settlement is not None
        assert self._group is not None
        self._exchanges_are_old = False
        wanted = self._settlement.standing(self.world.name).ranges
        self._exchanges.follow(wanted, self.store.used, self._group)

    @property
    def _stays(self) -> bool:
        """Whether it keeps its seat in the current settlement."""
        settlement = self._settlement
        return settlement is not None and settlement.standing(self.world.name).scope == self._running

    def _loss(self) -> float:
        return self.pipeline.loss if self.pipeline else math.nan

    def _keep_versions(self) -> None:
        if self.stage:
            self.stage.keep_versions()

    # Checkpoints ---

    async def _is_at_boundary(self) -> None:
        if self._at_boundary and (pause := self._at_boundary(self.save)):
            await pause

    async def save(self) -> Saved:
        """Its whole state at a step boundary, except batches in flight."""
        await self._exchanges.settle()
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
        """Resumes from the output of `save`; call it before `run`."""
        found = read_note(saved["settlement"])
        self._settlement = Settlement.load(found, self._survey, self._settings) if found else None
        self.store.shelve(saved["layers"].tobytes())
        self.store.take_from_shelf()
        self.world.load(saved["world"].tobytes())
        self._resume = saved

    def _go_on(self) -> None:
        """Restores the state of a checkpoint at the first seat."""
        saved, self._resume = self._resume, {}
        if not saved:
            return
        assert self.stage is not None
        self.updates, self.stage.updates, tested_at = read_note(saved["counts"])
        if self._examination:
            self._examination.tested_at = tested_at
        self._curriculum.load(section("curriculum", saved))
        self._exchanges.load(saved)

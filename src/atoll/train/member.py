"""A member of a live run: this machine trains together with others that join and leave as they like.

A run has a number of seats, each with a name.  Whoever begins it takes the first; who joins is given one that is free,
with the run's card, which says what is learned and how nodes talk.
"""

import asyncio
import contextlib
import dataclasses
import logging
import os
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch

from atoll.errors import InvitationError
from atoll.strategy import parse_strategy
from atoll.trace import Event, RunEnded, RunStarted, Trace
from atoll.train.islands import parse_islands
from atoll.train.lesson import TaskLesson
from atoll.train.liveisland import Shelf, at_work, open_node
from atoll.train.node import train
from atoll.train.parts import Parts
from atoll.train.replica import TrainedReplica
from atoll.train.run import check_device
from atoll.train.task import Examples, Task
from atoll.train.tasks import load_task
from atoll.version import VERSION
from atoll.world.live.guest import Seat, ask_for_seat
from atoll.world.live.host import best_congestion
from atoll.world.live.keys import Address, Identity, Invitation
from atoll.world.live.world import LiveWorld

__all__ = ["Card", "Machine", "Member", "begin_run", "join_run", "take_part"]

log = logging.getLogger("atoll")

SETTLE_S = 1.5
"""How long a node that joins waits for others to say that its seat is taken."""
TRIES = 5


@dataclass(frozen=True, kw_only=True)
class Card:
    """What a run is about."""

    task: str
    strategy: str
    shards: str = "seldp"
    seed: int = 0
    seats: int = 16
    islands: str = ""
    """How islands hold the model (`parse_islands`); empty: every node holds all of it."""
    parameters: int = 0
    """How many values a script's model has; 0 where that is not known, or not said."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"n{place}" for place in range(self.seats))

    @classmethod
    def read(cls, found: dict[str, Any]) -> "Card":
        try:
            card = cls(**found)
        except TypeError as error:
            raise InvitationError(f"the run's card is not understood ({error})") from None
        card.check()
        return card

    def check(self) -> None:
        """Refuses what cannot be."""
        parse_strategy(self.strategy)
        if not isinstance(self.seats, int) or not 2 <= self.seats <= 250:
            raise InvitationError(f"a run has from 2 to 250 seats, not {self.seats!r}")
        if self.islands and parse_islands(self.islands).islands:
            raise InvitationError(f"islands {self.islands!r}: nodes that come and go form them: expected auto")


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What this machine brings."""

    data: Path | None
    device: str
    listen: Address | None
    """Where it can be dialled; `None`: it only dials."""
    public: Sequence[Address]
    """What to tell others to dial, if that is another address."""
    out: Path | None
    """Where its trace goes; `None`: nowhere."""
    task: str | None = None
    """The task that its user has named."""
    key: Path | None = None
    """Where its key is kept; `None`: nowhere."""
    memory: float | None = None
    """Bytes that an island may use of it; `None`: what the run says, or what is free."""
    checkpoint: Path | None = None
    """Where it keeps what it holds of an island's model."""


class Member:
    """This machine's part in a run."""

    def __init__(self, world: LiveWorld, card: Card, invitation: Invitation, machine: Machine) -> None:
        self.world = world
        self.card = card
        self._invitation = invitation
        self._machine = machine

    @property
    def invitation(self) -> Invitation:
        """For others: this node's addresses first, then those of the others."""
        known = [*self.world.host.own_addresses]
        for addresses in self.world.host.addresses.values():
            known += addresses
        return dataclasses.replace(self._invitation, addresses=tuple(dict.fromkeys(known))[:8])

    async def train(self, *, steps: int | None = None, save: Path | None = None) -> None:
        """Trains until cancelled, or for so many steps; then leaves as one should.

        Args:
            steps: how many.
            save: where the model goes at the end.
        """
        card, world = self.card, self.world
        if card.islands:
            await self._hold(steps, save)
            return
        task, parts, replica = await world.aside(self._prepare)
        world.record(parts.started(card.strategy, replica.size, at=world.now))
        try:
            await train(replica, task, parse_strategy(card.strategy), steps=steps)
        finally:
            if save:
                safetensors.torch.save_model(replica.model, str(save))

    def _prepare(self) -> tuple[Task, Parts, TrainedReplica]:
        """What takes a while, away from the loop."""
        card = self.card
        task = load_task(card.task, self._machine.data).to(check_device(self._machine.device))
        parts = Parts(task, card.names, shards=card.shards, seed=card.seed)
        return task, parts, parts.replica(self.world)

    async def _hold(self, updates: int | None, save: Path | None) -> None:
        """The same where islands hold the model."""
        card, world, machine = self.card, self.world, self._machine
        task = (await world.aside(lambda: load_task(card.task, machine.data))).to(check_device(machine.device))
        parts = Parts(task, card.names, shards=card.shards, seed=card.seed)
        lesson = TaskLesson(task, parts, seed=card.seed)
        example = Examples(task.train.inputs[: task.batch], task.train.targets[: task.batch])
        strategy, settings = parse_strategy(card.strategy), parse_islands(card.islands)
        node = await open_node(world, lesson, example, settings, strategy, memory=machine.memory)
        world.record(parts.started(card.strategy, lesson.size, at=world.now))
        shelf = Shelf(machine.checkpoint, {"task": card.task, "seed": card.seed}) if machine.checkpoint else None
        async with at_work(node, shelf) as working:
            try:
                await working.until(updates)
            finally:
                if save:
                    model = lesson.build()
                    await node.collect(model)
                    safetensors.torch.save_model(model, str(save))


class _Watched:
    """A trace that somebody looks at as it is written."""

    def __init__(self, trace: Trace, watch: Callable[[Event], None]) -> None:
        self._trace = trace
        self._watch = watch

    def record(self, event: Event) -> None:
        self._trace.record(event)
        self._watch(event)

    def flush(self) -> None:
        self._trace.flush()


@contextlib.asynccontextmanager
async def begin_run(card: Card, machine: Machine, watch: Callable[[Event], None]) -> AsyncIterator[Member]:
    """Begins a run: this machine takes the first seat."""
    card.check()
    invitation = Invitation.new(())
    identity = Identity(invitation.secret, machine.key)
    seat = Seat(card.names[0], dataclasses.asdict(card), {}, 0.0)
    async with _sit(seat, invitation, identity, machine, watch) as member:
        yield member


@contextlib.asynccontextmanager
async def join_run(invitation: Invitation, machine: Machine, watch: Callable[[Event], None]) -> AsyncIterator[Member]:
    """Joins a run: takes a seat that is free, and another one if somebody else has it after all."""
    identity = Identity(invitation.secret, machine.key)
    for _ in range(TRIES):
        seat = await ask_for_seat(invitation, identity)
        card = Card.read(seat.card)
        if ":" in card.task and machine.task != card.task:  # others shall not choose what code runs here
            raise InvitationError(
                f"the run's task is {card.task!r}, code on this machine: say --task {card.task} if you want it run"
            )
        if seat.name not in card.names:
            raise InvitationError(f"the run gave a seat that it does not have: {seat.name!r}")
        async with _sit(seat, invitation, identity, machine, watch) as member:
            await asyncio.sleep(SETTLE_S)
            if not member.world.host.conflict:
                yield member
                return
            log.info("seat %s is taken (%s); asking for another", seat.name, member.world.host.conflict)
    raise InvitationError("every seat that was given turned out to be taken: try again")


def take_part(
    what: Card | Invitation, machine: Machine, watch: Callable[[Event], None]
) -> contextlib.AbstractAsyncContextManager[Member]:
    """Begins a run, or joins the one that an invitation is for."""
    return begin_run(what, machine, watch) if isinstance(what, Card) else join_run(what, machine, watch)


@contextlib.asynccontextmanager
async def _sit(
    seat: Seat, invitation: Invitation, identity: Identity, machine: Machine, watch: Callable[[Event], None]
) -> AsyncIterator[Member]:
    """Takes a seat."""
    card = Card.read(seat.card)
    if machine.out:
        machine.out.mkdir(parents=True, exist_ok=True)
    with Trace(machine.out / f"{seat.name}.jsonl" if machine.out else Path(os.devnull)) as trace:
        loop = asyncio.get_running_loop()
        world = LiveWorld(
            seat.name,
            card.names,
            invitation,
            identity,
            trace=_Watched(trace, watch),
            seed=card.seed,
            begin_at=loop.time() - seat.age_s,
            congestion=best_congestion(),
            is_late=True,  # nobody is here yet whom this node could have begun with
        )
        world.host.desk.card = seat.card
        try:
            if machine.listen:
                world.host.listen_at(machine.listen, machine.public)
            for name, addresses in seat.addresses.items():
                if name in world.host.sessions and addresses:
                    world.host.addresses[name] = addresses
            world.record(
                RunStarted(
                    at=world.now,
                    atoll=VERSION,
                    world="live",
                    network="live",
                    nodes=card.names,
                    links=(),
                    seed=card.seed,
                )
            )
            yield Member(world, card, invitation, machine)
        finally:
            await world.close()
            trace.record(RunEnded(at=world.now, reason="left"))

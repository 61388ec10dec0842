"""A member of a live run: this machine trains together with others that join and leave as they like.

A run has a number of seats, each with a name.  Whoever begins it takes the first; who joins is given one that is free,
with the run's card, which says what is learned and by which communication strategy.
"""

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

from atoll.errors import InvitationError
from atoll.runs.card import Card, LocalMachine
from atoll.runs.node import Kit, build_node, until_the_end
from atoll.trace import Event, RunEnded, RunStarted
from atoll.version import VERSION
from atoll.world.live.host import Host, best_congestion
from atoll.world.live.join import Refused, Seat, ask_for_seat
from atoll.world.live.journal import Journal
from atoll.world.live.keyfile import KeyFile, KnownPeer, Remembered, began_at, hold_key
from atoll.world.live.keys import Identity, Invitation
from atoll.world.live.registry import KEY_IN_USE
from atoll.world.live.world import LiveWorld

__all__ = ["Card", "LocalMachine", "Member", "begin_run", "join_run", "take_part"]

log = logging.getLogger("atoll")

SETTLE_S = 1.5
"""How long a node that joins waits for others to say that its seat is taken."""
TRIES = 5
IN_USE_S = 12.0
"""How long a key may seem to be in use by a process that is gone: the others miss it in a few seconds."""
TRY_EVERY_S = 0.5
ASK_S = 6.0
"""How long a machine that remembers its seat waits for somebody to give it one."""
REMEMBER_EVERY_S = 10.0


class Member:
    """This machine's part in a run."""

    def __init__(
        self, world: LiveWorld, card: Card, invitation: Invitation, machine: LocalMachine, trace: Path | None
    ) -> None:
        self.world = world
        self.card = card
        self.trace = trace
        """Where its trace goes; `None`: nowhere."""
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
        config, machine, world = self.card.config(self._machine), self._machine, self.world
        if self.card.task.startswith("script "):
            script = self.card.task.removeprefix("script ")
            raise InvitationError(f"this run trains {script}: write your copy of it behind the invitation")
        kit = await world.aside(lambda: Kit(config, self.card.names))
        node = await world.aside(lambda: build_node(world, kit, keep=machine.checkpoint, memory=machine.memory))
        if machine.checkpoint and machine.checkpoint.exists():
            log.warning("goes on from the checkpoint %s", machine.checkpoint)
        if self.trace:
            config.write(self.trace.with_suffix(".toml"))
        for event in node.opening(at=world.now):
            world.record(event)
        await until_the_end(node, steps=steps, save=save)


class _Watched:
    """A trace that somebody looks at as it is written."""

    def __init__(self, trace: Journal, watch: Callable[[Event], None]) -> None:
        self._trace = trace
        self._watch = watch

    def record(self, event: Event) -> None:
        self._trace.record(event)
        self._watch(event)

    def flush(self) -> None:
        self._trace.flush()


@dataclass(frozen=True)
class _Entrant:
    """Who wants a seat."""

    invitation: Invitation
    identity: Identity
    machine: LocalMachine
    watch: Callable[[Event], None]
    kept: KeyFile | None
    is_founder: bool = False
    """Whether the run begins with what it holds."""


@contextlib.asynccontextmanager
async def begin_run(card: Card, machine: LocalMachine, watch: Callable[[Event], None]) -> AsyncIterator[Member]:
    """Begins a run: this machine takes the first seat.  A machine that can be dialled and has a key file goes on with
    the run that it was in.
    """
    card.check()
    with hold_key(machine.key) as kept:
        remembered = kept.recall() if kept and machine.listen else None
        if kept and remembered:
            theirs = Card.read(remembered.card)
            if machine.task and machine.task != theirs.task:
                raise InvitationError(
                    f"{kept.run_path} remembers a run of {theirs.task!r}, and --task is {machine.task!r}: "
                    "remove that file to begin another run, or leave out --task to go on with it"
                )
            told = f"{theirs.task}, {theirs.strategy}, {theirs.shards} shards, seed {theirs.seed}"
            log.warning(
                "goes on as %s with run %s (%s), which %s remembers; to begin another run, remove that file",
                *(remembered.name, remembered.invitation.run_id, told, kept.run_path),
            )
            async with _join(remembered.invitation, machine, watch, kept, remembered) as member:
                yield member
            return
        invitation = Invitation.new(())
        entrant = _Entrant(invitation, Identity(invitation.secret, machine.key), machine, watch, kept, is_founder=True)
        async with _sit(Seat(card.names[0], dataclasses.asdict(card), {}, 0.0), entrant) as member:
            yield member


@contextlib.asynccontextmanager
async def join_run(
    invitation: Invitation, machine: LocalMachine, watch: Callable[[Event], None]
) -> AsyncIterator[Member]:
    """Joins a run: takes a seat that is free, and another one if somebody else has it after all."""
    with hold_key(machine.key) as kept:
        remembered = kept.recall() if kept else None
        if remembered and remembered.secret != invitation.secret:
            remembered = None
        async with _join(invitation, machine, watch, kept, remembered) as member:
            yield member


@contextlib.asynccontextmanager
async def _join(
    invitation: Invitation,
    machine: LocalMachine,
    watch: Callable[[Event], None],
    kept: KeyFile | None,
    remembered: Remembered | None,
) -> AsyncIterator[Member]:
    """Takes a seat in a run that there is, or was: if nobody answers, the one that this machine remembers."""
    if remembered:
        known = dict.fromkeys([*invitation.addresses, *remembered.invitation.addresses])
        invitation = dataclasses.replace(invitation, addresses=tuple(known))
    for _ in range(TRIES):
        entrant = _Entrant(invitation, Identity(invitation.secret, machine.key), machine, watch, kept)
        seat = await _find_seat(entrant, remembered)
        card = Card.read(seat.card)
        if ":" in card.task and machine.task != card.task:  # others shall not choose what code runs here
            raise InvitationError(
                f"the run's task is {card.task!r}, code on this machine: say --task {card.task} if you want it run"
            )
        if seat.name not in card.names:
            raise InvitationError(f"the run gave a seat that it does not have: {seat.name!r}")
        async with _sit(seat, entrant, remembered) as member:
            conflict = await _settle(member.world.host)
            if not conflict:
                yield member
                return
            if KEY_IN_USE in conflict:
                raise _key_in_use(machine, conflict)
            log.warning("seat %s is taken (%s); asking for another", seat.name, conflict)
            invitation = member.invitation  # with everybody who was met
            remembered = None
    raise InvitationError("every seat that was given turned out to be taken: try again")


async def _find_seat(entrant: _Entrant, remembered: Remembered | None) -> Seat:
    """Asks for a seat; if nobody answers, the one that is remembered."""
    loop = asyncio.get_running_loop()
    until = loop.time() + IN_USE_S
    while True:
        try:
            async with asyncio.timeout(ASK_S if remembered else None):
                return await ask_for_seat(entrant.invitation, entrant.identity, remembered.name if remembered else "")
        except Refused as error:
            if KEY_IN_USE not in str(error):
                raise
            if loop.time() > until:
                raise _key_in_use(entrant.machine, str(error)) from None
            await asyncio.sleep(TRY_EVERY_S)  # the process before this one may not be missed yet
        except (InvitationError, TimeoutError) as error:
            if remembered is None:
                raise
            log.warning(
                "no other node of run %s answers (%s): takes its old seat, %s, and waits for them",
                *(entrant.invitation.run_id, str(error) or "too slow", remembered.name),
            )
            known = {name: peer.addresses for name, peer in remembered.peers.items()}
            return Seat(remembered.name, remembered.card, known, remembered.age_s())


async def _settle(host: Host) -> str:
    """Waits for others to say that the seat is taken; says why this machine cannot have it.  That its key is in use may
    be about the process before this one, which the others miss in a few seconds.
    """
    await asyncio.sleep(SETTLE_S)
    for _ in range(round(IN_USE_S / TRY_EVERY_S)):
        if KEY_IN_USE not in host.conflict:
            break
        await asyncio.sleep(TRY_EVERY_S)
    return host.conflict


def _key_in_use(machine: LocalMachine, why: str) -> InvitationError:
    return InvitationError(
        f"key file {machine.key}: {why}: another machine takes part with a copy of it; "
        "name another file (--key) for this one"
    )


def take_part(
    what: Card | Invitation, machine: LocalMachine, watch: Callable[[Event], None]
) -> contextlib.AbstractAsyncContextManager[Member]:
    """Begins a run, or joins the one that an invitation is for."""
    return begin_run(what, machine, watch) if isinstance(what, Card) else join_run(what, machine, watch)


@contextlib.asynccontextmanager
async def _sit(seat: Seat, entrant: _Entrant, remembered: Remembered | None = None) -> AsyncIterator[Member]:
    """Takes a seat."""
    card = Card.read(seat.card)
    invitation, machine = entrant.invitation, entrant.machine
    with Journal(machine.out / f"{seat.name}.jsonl" if machine.out else None, seat.name) as trace:
        loop = asyncio.get_running_loop()
        world = LiveWorld(
            seat.name,
            card.names,
            invitation,
            entrant.identity,
            trace=_Watched(trace, entrant.watch),
            seed=card.seed,
            begin_at=loop.time() - seat.age_s,
            congestion=best_congestion(),
            is_late=True,  # nobody is here yet whom this node could have begun with
            is_founder=entrant.is_founder,
        )
        host = world.host
        host.registry.card = seat.card
        try:
            if machine.listen:
                host.listener.listen_at(machine.listen, machine.public)
            for name, addresses in seat.addresses.items():
                if name in host.sessions and addresses:
                    host.addresses[name] = addresses
            for name, peer in (remembered.peers if remembered else {}).items():
                if name in host.sessions and peer.id:
                    host.sessions[name].id = peer.id  # who had that seat gets it back
            world.record(
                RunStarted(
                    at=world.now,
                    atoll=VERSION,
                    world="live",
                    network="live",
                    nodes=card.names,
                    links=(),
                    seed=card.seed,
                    run=invitation.run_id,
                )
            )
            member = Member(world, card, invitation, machine, trace.path)
            async with _remembering(entrant.kept, world, invitation):
                yield member
        finally:
            await world.close()
            trace.record(RunEnded(at=world.now, reason="left"))


@contextlib.asynccontextmanager
async def _remembering(kept: KeyFile | None, world: LiveWorld, invitation: Invitation) -> AsyncIterator[None]:
    """Keeps the run beside the machine's key, now, every now and then, and at the end."""
    if kept is None:
        yield
        return
    began = began_at(world.now)

    def remember() -> None:
        host = world.host
        peers = {
            name: KnownPeer(id=session.id or "", addresses=host.addresses.get(name, []))
            for name, session in host.sessions.items()
            if session.id or host.addresses.get(name)
        }
        kept.remember(
            Remembered(secret=invitation.secret, name=world.name, card=host.registry.card, began=began, peers=peers)
        )

    async def keep() -> None:
        while True:
            await asyncio.sleep(REMEMBER_EVERY_S)
            remember()

    remember()
    keeping = asyncio.create_task(keep(), name="keeping the run")
    try:
        yield
    finally:
        keeping.cancel()
        remember()

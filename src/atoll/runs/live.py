"""A member of a live run: this machine trains together with others that join and leave at any time.

A run has a number of seats, each with a name.  The node that begins it takes the first; a node that joins gets a free
one, with the run's card, which names the task and the communication strategy.
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
"""How long a key may seem in use by a process that has ended: the others notice that in a few seconds."""
TRY_EVERY_S = 0.5
ASK_S = 6.0
"""How long a machine that remembers its seat waits for another node to give it one."""
REMEMBER_EVERY_S = 10.0


class Member:
    """This machine's part in a run."""

    def __init__(
        self, world: LiveWorld, card: Card, invitation: Invitation, machine: LocalMachine, trace: Path | None
    ) -> None:
        self.world = world
        self.card = card
        self.trace = trace
        """The file of its trace; `None`: none."""
        self._invitation = invitation
        self._machine = machine

    @property
    def invitation(self) -> Invitation:
        """An invitation for others: this node's addresses first, then those of the others."""
        known = [*self.world.host.own_addresses]
        for addresses in self.world.host.addresses.values():
            known += addresses
        return dataclasses.replace(self._invitation, addresses=tuple(dict.fromkeys(known))[:8])

    async def train(self, *, steps: int | None = None, save: Path | None = None) -> None:
        """Trains until cancelled, or for this many steps; then leaves the run properly.

        Args:
            steps: the number of steps.
            save: the file for the model at the end.
        """
        config, machine, world = self.card.config(self._machine), self._machine, self.world
        if self.card.task.startswith("script "):
            script = self.card.task.removeprefix("script ")
            raise InvitationError(f"this run trains {script}: add your copy of it after the invitation")
        kit = await world.aside(lambda: Kit(config, self.card.names))
        node = await world.aside(lambda: build_node(world, kit, keep=machine.checkpoint, memory=machine.memory))
        if machine.checkpoint and machine.checkpoint.exists():
            log.warning("resumes from the checkpoint %s", machine.checkpoint)
        if self.trace:
            config.write(self.trace.with_suffix(".toml"))
        for event in node.opening(at=world.now):
            world.record(event)
        await until_the_end(node, steps=steps, save=save)


class _Watched:
    """A trace whose events are also passed to a callback."""

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
    """A machine that wants a seat."""

    invitation: Invitation
    identity: Identity
    machine: LocalMachine
    watch: Callable[[Event], None]
    kept: KeyFile | None
    is_founder: bool = False
    """Whether the run begins with its model."""


@contextlib.asynccontextmanager
async def begin_run(card: Card, machine: LocalMachine, watch: Callable[[Event], None]) -> AsyncIterator[Member]:
    """Begins a run: this machine takes the first seat.  A machine that accepts connections and has a key file resumes
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
                    "remove that file to begin another run, or leave out --task to resume it"
                )
            told = f"{theirs.task}, {theirs.strategy}, {theirs.shards} shards, seed {theirs.seed}"
            log.warning(
                "resumes as %s in run %s (%s), which %s remembers; to begin another run, remove that file",
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
    """Joins a run: takes a free seat, or another one if that turns out to be taken."""
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
    """Takes a seat in a run; if no node answers, the one that this machine remembers."""
    if remembered:
        known = dict.fromkeys([*invitation.addresses, *remembered.invitation.addresses])
        invitation = dataclasses.replace(invitation, addresses=tuple(known))
    for _ in range(TRIES):
        entrant = _Entrant(invitation, Identity(invitation.secret, machine.key), machine, watch, kept)
        seat = await _find_seat(entrant, remembered)
        card = Card.read(seat.card)
        if ":" in card.task and machine.task != card.task:  # others must not choose the code that runs here
            raise InvitationError(
                f"the run's task is {card.task!r}, code on this machine: add --task {card.task} to run it"
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
            invitation = member.invitation  # with all nodes that were met
            remembered = None
    raise InvitationError("every seat that was offered is taken: try again")


async def _find_seat(entrant: _Entrant, remembered: Remembered | None) -> Seat:
    """Asks for a seat; if no node answers, returns the remembered one."""
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
            await asyncio.sleep(TRY_EVERY_S)  # the others may not have noticed yet that the previous process ended
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
    """Waits for others to say that the seat is taken; returns why this machine cannot have it.  "Key in use" may refer
    to the previous process: the others notice in a few seconds that it has ended.
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
            is_late=True,  # no other node began together with this one
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
                    host.sessions[name].id = peer.id  # that key keeps its seat
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
    """Saves the run beside the machine's key: now, regularly, and at the end."""
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

"""How a script joins a run: `atoll.join()`."""

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

from atoll.errors import InvitationError
from atoll.runs.live import Card, LocalMachine, Member, take_part
from atoll.script.agent import NO_TARGET, Agent
from atoll.script.inside import Inside
from atoll.script.launch import Launch, launched, parse_for_script
from atoll.script.lines import Lines, say
from atoll.script.run import Run
from atoll.strategies import DEFAULT_STRATEGY, parse_strategy
from atoll.trace import Event
from atoll.world.live.keys import Invitation, parse_address
from atoll.world.live.world import LiveWorld

__all__ = ["join", "launch_member"]


def join(
    strategy: str = DEFAULT_STRATEGY,
    *,
    invitation: str | None = None,
    listen: str | None = None,
    target: float | None = None,
    rising: bool = True,
    seed: int = 0,
    seats: int = 16,
    sharded: bool = False,
    out: Path | str | None = None,
    key: Path | str | None = None,
) -> Run:
    """Joins a run: that of the launcher (`atoll run`, `atoll node`), that of an invitation, or a new one; without any
    of these the script trains alone.

    From then on SIGTERM ends the script as `sys.exit` does, so that its node leaves properly; the script's own handler,
    if it has set one, stays.

    Args:
        strategy: the communication strategy, as in `atoll strategies`; the launcher's `--strategy` has priority, and so
            has the strategy of the run that is joined.
        invitation: an invitation to a run.
        listen: HOST:PORT to accept connections at; without an invitation this begins a run (see `run.invitation`).
        target: the target of `run.measure`.
        rising: whether the measure rises towards the target (an accuracy) or falls (a loss).
        seed: the seed of the data order, the same on all nodes.
        seats: the largest number of machines at one time.
        sharded: under torchrun, whether each process has a part of the model (FSDP2) and exchanges it itself; each then
            listens at its own port, counted from `listen` on.
        out: a folder for the trace; default: no trace.
        key: a file for this machine's key and, beside it, the run: a script that is restarted takes its old seat, and
            one that listens resumes its run (docs/deploy.md).
    """
    parse_strategy(strategy)
    inside = Inside.find()
    launch, begins = launched(), False
    if launch is None:
        address = parse_address(listen, "listen") if listen else None
        place = Path(out) if out else None
        own = Path(key) if key else None
        if sharded and inside:
            invitation = _of_process(invitation, inside) if invitation else None
            address = (address[0], address[1] + inside.rank) if address and address[1] else address
            place = place / str(inside.rank) if place else None
            own = own.with_name(f"{own.name}.{inside.rank}") if own else None
        machine = LocalMachine(data=None, device="cpu", listen=address, public=[], out=place, key=own)
        if invitation is None:
            parse_for_script(strategy)
        begins = invitation is None and listen is not None
        card = Card(task="script", strategy=strategy, seed=seed, seats=seats)
        lines = Lines() if inside is None or inside.speaks else None
        launch = launch_member(Invitation.parse(invitation) if invitation else card, machine, lines=lines)
    agent = None
    if inside is None or inside.speaks or sharded:
        agent = Agent(launch, strategy, NO_TARGET if target is None else target, rising=rising)
    run = Run(launch, agent, inside, sharded=sharded)
    if begins and (inside is None or inside.speaks):
        say("%s begins a run with %s; its invitation is %s", run.name, run.strategy, run.invitation)
    return run


def _of_process(invitation: str, inside: Inside) -> str:
    """The invitation for this process: in a sharded group each has its own."""
    found = invitation.split(",")
    if len(found) != inside.size:
        raise InvitationError(
            f"the run's nodes are groups of {len(found)} processes, and this is one of {inside.size}: "
            f"--nproc-per-node {len(found)}, so that each has the same part of the model"
        )
    return found[inside.rank]


def launch_member(
    what: Card | Invitation,
    machine: LocalMachine,
    watch: Callable[[Event], None] = lambda _: None,
    *,
    lines: Lines | None = None,
) -> Launch:
    """Prepares a seat in a run over real links: in a new one, or in that of an invitation.

    Args:
        what: the run to begin, with the script's strategy if the card names none; or an invitation.
        machine: the resources of this machine.
        watch: called with every event.
        lines: prints lines about the node; `None`: the caller does.
    """
    members: list[Member] = []

    def see(event: Event) -> None:
        watch(event)
        if lines:
            lines.watch(event)

    @contextlib.asynccontextmanager
    async def open_world(strategy: str) -> AsyncIterator[LiveWorld]:
        run = replace(what, strategy=what.strategy or strategy) if isinstance(what, Card) else what
        async with take_part(run, machine, see) as member:
            members.append(member)
            try:
                yield member.world
            finally:
                if lines:
                    lines.end()

    return Launch(
        open_world=open_world,
        alone=isinstance(what, Card) and machine.listen is None,
        invitation=lambda: str(members[0].invitation) if members else "",
    )

"""How a script takes part in a run: `atoll.join()`."""

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
    """Takes part in a run: the one that the launcher is for (`atoll run`, `atoll node`), the one that an invitation is
    for, or a new one; without any of these the script trains alone.

    From then on SIGTERM ends the script as `sys.exit` does, so that its node leaves in order; a handler that the script
    has set itself stays.

    Args:
        strategy: how nodes communicate, as in `atoll strategies`; `--strategy` of the launcher goes first, and so does
            what was said where the run began.
        invitation: to a run.
        listen: HOST:PORT to be dialled at; without an invitation this begins a run, and `run.invitation` is for others.
        target: what `run.measure` should come to.
        rising: whether it rises towards that (an accuracy) or falls (a loss).
        seed: of the order of the data, the same on all nodes.
        seats: how many machines may take part at one time.
        sharded: under torchrun, whether each process has a part of the model (FSDP2) and speaks for that; it listens at
            its own port then, counted from `listen` on.
        out: a folder for the trace; none if left out.
        key: a file that keeps this machine's key and, beside it, the run: a script that is started again takes its old
            seat, and one that listens goes on with its run (docs/deploy.md).
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
    """Every process of a group that is sharded has an invitation of its own."""
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
    """A place in a run over real links: in a new one, or in the one that an invitation is for.

    Args:
        what: the run to begin, with the script's strategy if the card names none; or an invitation to one.
        machine: what this machine brings.
        watch: sees every event.
        lines: says what happens to the node; `None`: somebody else does.
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

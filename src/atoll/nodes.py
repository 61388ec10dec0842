"""`atoll node`: this machine takes part in a run and shows its progress."""

import asyncio
import contextlib
import dataclasses
import signal
from collections.abc import AsyncIterator
from pathlib import Path

from rich.console import Console
from rich.live import Live

from atoll.errors import InvitationError
from atoll.report.board import Board
from atoll.runs.live import Card, LocalMachine, Member, take_part
from atoll.script.joining import launch_member
from atoll.script.launch import launch, parse_for_script
from atoll.script.lines import Lines
from atoll.script.process import run_script
from atoll.world.live.keys import Invitation
from atoll.world.live.world import LiveWorld

__all__ = ["run_node", "run_script_node"]

LINE_EVERY_S = 10.0


def run_node(
    what: Card | Invitation,
    machine: LocalMachine,
    console: Console,
    *,
    steps: int | None = None,
    save: Path | None = None,
) -> None:
    """Takes part until Ctrl-C, or for a number of steps.

    Args:
        what: the run to begin, or an invitation to one.
        machine: the resources and options of this machine.
        console: shows the progress.
        steps: the number of steps; `None`: no limit.
        save: the file for the model at the end.
    """
    for option, path in (("--save", save), ("--checkpoint", machine.checkpoint)):
        if path and not path.parent.is_dir():
            raise InvitationError(f"{option} {path}: there is no folder {path.parent}")
    asyncio.run(_run(what, machine, console, steps, save))


async def _run(
    what: Card | Invitation,
    machine: LocalMachine,
    console: Console,
    steps: int | None,
    save: Path | None,
) -> None:
    board = Board()
    async with take_part(what, machine, board.watch) as member:
        board.world = member.world
        _introduce(member, console)
        training = asyncio.ensure_future(member.train(steps=steps, save=save))
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, training.cancel)
        showing = asyncio.create_task(_show(board, console))
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await training
        finally:
            showing.cancel()
            await asyncio.wait([showing])
            for number in (signal.SIGINT, signal.SIGTERM):  # leaving takes a moment; a second signal is ignored
                asyncio.get_running_loop().remove_signal_handler(number)
                signal.signal(number, signal.SIG_IGN)
    told = f"Left. The trace is {member.trace}." if member.trace else "Left."
    console.print(told, highlight=False, soft_wrap=True)
    if save:
        console.print(f"The model is {save}.", highlight=False, soft_wrap=True)


def _introduce(member: Member, console: Console) -> None:
    card = member.card
    console.print(f"{member.world.name}: {card.task}, {card.strategy}, {card.shards} shards", highlight=False)
    if member.world.host.own_addresses or member.world.host.addresses:
        console.print("To join, on any machine:", highlight=False)
        console.print(f"atoll node --join {member.invitation}", highlight=False, soft_wrap=True)


async def _show(board: Board, console: Console) -> None:
    if console.is_terminal:
        with Live(board, console=console, refresh_per_second=2, transient=True):
            await asyncio.Event().wait()
    while True:
        await asyncio.sleep(LINE_EVERY_S)
        console.print(board.line(), highlight=False, soft_wrap=True)


def run_script_node(what: Card | Invitation, machine: LocalMachine, console: Console, script: list[str]) -> None:
    """Runs a script whose `atoll.join()` takes this machine's seat in a run; Ctrl-C and SIGTERM leave the run."""
    if not Path(script[0]).is_file():
        raise InvitationError(f"there is no script {script[0]}")
    if isinstance(what, Card) and what.strategy:
        parse_for_script(what.strategy)
    if machine.checkpoint:
        raise InvitationError("--checkpoint: a script saves by itself: call run.checkpoint(path) and run.resume(path)")
    board = Board()
    place = launch_member(what, machine, board.watch, lines=None if console.is_terminal else Lines())

    @contextlib.asynccontextmanager
    async def open_world(strategy: str) -> AsyncIterator[LiveWorld]:
        async with place.open_world(strategy) as world:
            board.world = world
            console.print(f"{world.name}: {Path(script[0]).name}", highlight=False)
            if place.invitation():
                console.print("To join, on any machine:", highlight=False)
                told = f"atoll node --join {place.invitation()} {' '.join(script)}"
                console.print(told, highlight=False, soft_wrap=True)
            yield world

    launch(dataclasses.replace(place, open_world=open_world, task=f"script {Path(script[0]).name}", alone=False))
    showing = Live(board, console=console, refresh_per_second=2, transient=True) if console.is_terminal else None
    with showing or contextlib.nullcontext():
        try:
            run_script(script[0], script[1:])
        except KeyboardInterrupt:
            console.print("Left.", highlight=False)

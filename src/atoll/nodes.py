"""`atoll node`: this machine takes part in a run, and shows how it gets on."""

import asyncio
import contextlib
import signal
from pathlib import Path

from rich.console import Console
from rich.live import Live

from atoll.errors import InvitationError
from atoll.report.board import Board
from atoll.train.member import Card, Machine, Member, begin_run, join_run
from atoll.world.live.keys import Address, Invitation

__all__ = ["parse_address", "run_node"]

LINE_EVERY_S = 10.0


def run_node(
    what: Card | Invitation,
    machine: Machine,
    console: Console,
    *,
    steps: int | None = None,
    save: Path | None = None,
) -> None:
    """Takes part until Ctrl-C, or for so many steps.

    Args:
        what: the run to begin, or an invitation to one.
        machine: what this machine brings.
        console: where to show it.
        steps: how many.
        save: where the model goes at the end.
    """
    if save and not save.parent.is_dir():
        raise InvitationError(f"--save {save}: there is no folder {save.parent}")
    asyncio.run(_run(what, machine, console, steps, save))


async def _run(
    what: Card | Invitation,
    machine: Machine,
    console: Console,
    steps: int | None,
    save: Path | None,
) -> None:
    board = Board()
    if isinstance(what, Invitation):
        taking_part = join_run(what, machine, board.watch)
    else:
        taking_part = begin_run(what, machine, board.watch)
    async with taking_part as member:
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
            for number in (signal.SIGINT, signal.SIGTERM):  # leaving takes a moment; once more does not make it faster
                asyncio.get_running_loop().remove_signal_handler(number)
                signal.signal(number, signal.SIG_IGN)
    console.print(
        f"Left. The trace is {machine.out / (member.world.name + '.jsonl')}.", highlight=False, soft_wrap=True
    )
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


def parse_address(text: str, option: str) -> Address:
    """What a user wrote for an address."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or not 0 <= int(port) < 65536:
        raise InvitationError(f"{option}: expected HOST:PORT, not {text!r}")
    return host.strip("[]"), int(port)

"""`atoll node`: this machine takes part in a run, and shows how it gets on."""

import asyncio
import contextlib
import signal
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.live import Live

from atoll.errors import InvitationError
from atoll.report.board import Board
from atoll.train.member import Card, Machine, Member, begin_run, join_run
from atoll.world.live.keys import Address, Invitation

__all__ = ["NodeOptions", "run_node"]

LINE_EVERY_S = 10.0


@dataclass(frozen=True, kw_only=True)
class NodeOptions:
    """What the command line says."""

    listen: str | None
    join: str | None
    task: str
    data: Path | None
    strategy: str
    shards: str
    seed: int
    seats: int
    device: str
    public: list[str]
    key: Path | None
    steps: int | None
    save: Path | None
    out: Path


def run_node(options: NodeOptions, console: Console) -> None:
    """Takes part until Ctrl-C, or for so many steps."""
    asyncio.run(_run(options, console))


async def _run(options: NodeOptions, console: Console) -> None:
    machine = Machine(
        data=options.data,
        device=options.device,
        listen=_address(options.listen, "--listen") if options.listen else None,
        public=[_address(each, "--public") for each in options.public],
        out=options.out,
    )
    board = Board()
    if options.join:
        taking_part = join_run(Invitation.parse(options.join), machine, options.key, board.watch)
    else:
        card = Card(
            task=options.task,
            strategy=options.strategy,
            shards=options.shards,
            seed=options.seed,
            seats=options.seats,
        )
        taking_part = begin_run(card, machine, options.key, board.watch)
    async with taking_part as member:
        board.world = member.world
        _introduce(member, console)
        training = asyncio.ensure_future(member.train(steps=options.steps, save=options.save))
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
        f"Left. The trace is {options.out / (member.world.name + '.jsonl')}.", highlight=False, soft_wrap=True
    )
    if options.save:
        console.print(f"The model is {options.save}.", highlight=False, soft_wrap=True)


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


def _address(text: str, option: str) -> Address:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or not 0 <= int(port) < 65536:
        raise InvitationError(f"{option}: expected HOST:PORT, not {text!r}")
    return host.strip("[]"), int(port)

"""Islands of machines that come and go, over loopback: what they are like is found out, and nobody plans for them."""

import asyncio
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

from atoll.errors import InvitationError
from atoll.islands import profile
from atoll.islands.live import free_memory, speed_of
from atoll.report.board import Board
from atoll.runs.live import Card, LocalMachine, Member, begin_run, join_run
from atoll.trace import Event, SeatTaken, Tested
from atoll.training import Examples, Task


def deep() -> Task:
    """A model of 0.3 MB, four times that with AdamW; three machines of 0.8 MB can hold it."""
    draw = torch.Generator().manual_seed(1)
    inputs = torch.randn(600, 16, generator=draw)
    targets = (inputs @ torch.randn(16, 4, generator=draw)).argmax(1)
    return Task(
        name="deep",
        model=lambda: nn.Sequential(*_blocks(), nn.Linear(128, 4)),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        target=0.95,
        batch=20,
        train=Examples(inputs[:500], targets[:500]),
        test=Examples(inputs[500:], targets[500:]),
        labels=targets[:500],
    )


def _blocks() -> list[nn.Module]:
    return [layer for i in range(6) for layer in (nn.Linear(128 if i else 16, 128), nn.Tanh())]


NAME = "tests.islands.test_live:deep"
CARD = Card(task=NAME, strategy="allreduce:every=4,overlap", seats=4, islands="auto:memory=800kB")


def machine(folder: Path, name: str) -> LocalMachine:
    kept = folder / f"{name}.kept"
    return LocalMachine(
        data=None, device="cpu", listen=("127.0.0.1", 0), public=[], out=folder / name, task=NAME, checkpoint=kept
    )


def test_machines_form_an_island_and_it_outlives_them(tmp_path: Path) -> None:
    seats: list[SeatTaken] = []
    tests: list[Tested] = []
    boards = [Board() for _ in range(3)]

    def watch(place: int, event: Event) -> None:
        boards[place].watch(event)
        if isinstance(event, SeatTaken):
            seats.append(event)
        if isinstance(event, Tested):
            tests.append(event)

    async def until(what: str, enough: object) -> None:
        async with asyncio.timeout(30):
            while not enough():  # type: ignore[operator]  # noqa: ASYNC110 - events are counted
                await asyncio.sleep(0.05)

    async def stay(member: Member, **more: object) -> "asyncio.Task[None]":
        return asyncio.create_task(member.train(**more))  # type: ignore[arg-type]

    async def run() -> None:
        async with begin_run(CARD, machine(tmp_path, "a"), lambda event: watch(0, event)) as first:
            one = await stay(first)
            await until("alone", lambda: seats)
            assert not seats[0].island, "one machine cannot hold it"
            assert "does not fit" in boards[0]._pulse.told(0.0)
            async with join_run(first.invitation, machine(tmp_path, "b"), lambda event: watch(1, event)) as second:
                two = await stay(second)
                async with join_run(first.invitation, machine(tmp_path, "c"), lambda event: watch(2, event)) as third:
                    three = await stay(third, steps=60, save=tmp_path / "model.safetensors")
                    await three
                assert {event.stages for event in seats if event.island} == {3}
                assert "of 3 of island" in "".join(board._pulse.told(0.0) for board in boards)
                await until("no island any more", lambda: not seats[-1].island)
                # Its layers are gone, but for what it has kept: it comes back with that.
                async with join_run(first.invitation, machine(tmp_path, "c"), lambda event: watch(2, event)) as again:
                    three = await stay(again)
                    since = len(tests)
                    await until("learning again", lambda: len(tests) > since + 2)
                    three.cancel()
                    await asyncio.wait([three])
                two.cancel()
                await asyncio.wait([two])
            one.cancel()
            await asyncio.wait([one])

    asyncio.run(run())
    model = deep().model()
    safetensors.torch.load_model(model, tmp_path / "model.safetensors")
    assert deep().test_model(model) > 0.5, "the whole of it, from those who held it"
    last = [event.measure for event in tests if event.steps <= 30][-1]
    assert last > 0.5, "what was learned before is not lost"


def test_islands_of_machines_that_come_and_go_have_no_names() -> None:
    with pytest.raises(InvitationError, match="expected auto"):
        Card(task="digits", strategy="none", islands="n0+n1").check()


def test_what_a_machine_is_like() -> None:
    links, inputs = deep().model(), deep().train.inputs[:20]
    assert isinstance(links, nn.Sequential)
    layers = profile(links, inputs)
    ticks = iter(range(1000))
    speed = speed_of(links, layers, inputs, lambda: float(next(ticks)))
    expected = 3 * 20 * sum(layer.flops for layer in layers) / len(layers)
    assert speed == pytest.approx(expected), "each layer took a second, by that clock"
    assert free_memory("cpu") > 1e6

"""Pipelines on simulated nodes: the same as one process where nothing overtakes, and whole in any weather."""

import asyncio
import itertools
import math
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn
from torch.optim import SGD

from atoll.codecs import Dense, parse_codec
from atoll.islands import Given, Pipeline, StageModel, StageSeat
from atoll.islands.wire import pack_tensors
from atoll.network import Network, parse_network
from atoll.strategies.talk import Talk
from atoll.trace import Computed, Event, StageReported, Trace, read_trace
from atoll.training.drive import Background, drive
from atoll.world import Simulation
from atoll.world.faults import parse_faults
from atoll.world.sim.world import SimWorld

NAMES = ("0", "1", "2")
ENDS = (0, 2, 4, 5)


def network(latency_ms: float = 5.0, step_s: str = "1.0") -> Network:
    return parse_network(
        f'[[node]]\ncount = 3\nstep_s = {step_s}\n[[link]]\namong = "*"\nlatency_ms = {latency_ms}\nrate_mbps = 100',
        name="three",
    )


def make() -> nn.Sequential:
    torch.random.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))


def batches() -> Callable[[], Given]:
    numbers = itertools.count()

    def give() -> Given:
        draw = torch.Generator().manual_seed(next(numbers))
        return Given(torch.randn(8, 6, generator=draw), torch.randint(3, (8,), generator=draw))

    return give


def seats(holds: tuple[int, ...], flush: int = 0) -> list[StageSeat]:
    return [
        StageSeat(
            island="0",
            stage=place,
            before=NAMES[place - 1] if place else None,
            after=NAMES[place + 1] if place < 2 else None,
            holds=holds[place],
            share=1 / 3,
            flush=flush,
        )
        for place in range(3)
    ]


def train(
    path: Path,
    places: list[StageSeat],
    updates: int | None,
    *,
    links: Network | None = None,
    faults: str = "",
    limit_s: float = 1000.0,
) -> tuple[nn.Sequential, list[Pipeline], list[Event]]:
    """Trains on three nodes; the whole model, the pipelines, and what happened."""
    model = make()
    pipelines: dict[str, Pipeline] = {}

    async def program(world: SimWorld) -> None:
        place = NAMES.index(world.name)
        layers = model[ENDS[place] : ENDS[place + 1]]
        stage = StageModel(layers, [SGD(layers.parameters(), lr=0.1, momentum=0.9)])
        pipelines[world.name] = Pipeline(
            world,
            places[place],
            stage,
            source=batches() if place == 0 else None,
            loss=nn.functional.cross_entropy if place == 2 else None,
        )
        async with asyncio.TaskGroup() as group:
            background = Background(group)
            pipelines[world.name].start(background)
            await drive(
                pipelines[world.name],
                Talk(),
                Background(group),
                goes_on=lambda: updates is None or stage.updates < updates,
            )
            await world.sleep(1.0)
            background.cancel()

    net = links or network()
    with Trace(path) as trace:
        simulation = Simulation(net, seed=0, trace=trace, faults=parse_faults(faults, net.node_names))
        simulation.run(program, limit_s=limit_s)
    return model, [pipelines[name] for name in NAMES], list(read_trace(path))


def alone(updates: int) -> nn.Sequential:
    model, give = make(), batches()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(updates):
        given = give()
        optimizer.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(model(given.inputs), given.targets))
        optimizer.step()
    return model


def test_one_batch_in_flight_is_what_one_process_does(tmp_path: Path) -> None:
    model, _, _ = train(tmp_path / "t.jsonl", seats((1, 1, 1)), 12)
    for one, other in zip(model.parameters(), alone(12).parameters(), strict=True):
        assert torch.equal(one, other)


def test_pieces_of_a_batch_come_to_the_same(tmp_path: Path) -> None:
    model, _, events = train(tmp_path / "t.jsonl", seats((4, 4, 4), flush=4), 12)
    for one, other in zip(model.parameters(), alone(12).parameters(), strict=True):
        torch.testing.assert_close(one, other)
    assert sum(isinstance(event, Computed) for event in events) == 12 * 4 * 5, "the last stage does both at once"


def test_batches_in_pieces_are_one_update_late_at_most(tmp_path: Path) -> None:
    places = [replace(seat, pieces=4) for seat in seats((3, 2, 1))]
    _, _, events = train(tmp_path / "t.jsonl", places, None, limit_s=61.0)
    reported = [event for event in events if isinstance(event, StageReported)]
    assert {event.stale_most for event in reported if event.stage < 2} == {1}
    busy = [event.at - event.since for event in events if isinstance(event, Computed) and event.node == "1"]
    assert sum(busy) > 0.85 * 60, "pieces are short, and links take time"
    one = [replace(seat, pieces=4) for seat in seats((1, 1, 1))]
    model, _, _ = train(tmp_path / "one.jsonl", one, 12)
    for value, expected in zip(model.parameters(), alone(12).parameters(), strict=True):
        torch.testing.assert_close(value, expected)


def test_an_update_may_learn_from_several_batches(tmp_path: Path) -> None:
    """One batch in flight, three an update: the same as one process that adds up three gradients."""
    places = [replace(seat, accumulate=3) for seat in seats((1, 1, 1))]
    model, _, _ = train(tmp_path / "t.jsonl", places, 5)
    expected, give = make(), batches()
    optimizer = SGD(expected.parameters(), lr=0.1, momentum=0.9)
    for _ in range(5):
        optimizer.zero_grad()
        for _ in range(3):
            given = give()
            torch.autograd.backward(nn.functional.cross_entropy(expected(given.inputs), given.targets) / 3)
        optimizer.step()
    for one, other in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_nobody_waits_for_anybody(tmp_path: Path) -> None:
    _, pipelines, events = train(tmp_path / "t.jsonl", seats((4, 3, 2)), None, limit_s=61.0)
    busy = dict.fromkeys(NAMES, 0.0)
    for event in events:
        if isinstance(event, Computed):
            busy[event.node] += min(event.at, 61.0) - event.since
    assert min(busy.values()) > 0.97 * 61, "from the first batch to the last"
    assert [pipeline.given_up for pipeline in pipelines] == [0, 0, 0]
    assert all(math.isfinite(pipeline.loss) for pipeline in pipelines), "the loss comes back with the gradients"


def test_the_same_bytes_each_time(tmp_path: Path) -> None:
    for name in ("a", "b"):
        train(tmp_path / name, seats((4, 3, 2)), None, limit_s=20.0)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_link_that_goes_away_costs_batches_and_nothing_else(tmp_path: Path) -> None:
    cut = '[[fault]]\nkind = "cut"\nbetween = ["1", "2"]\nat = 10.0\nuntil = 40.0\n'
    cut += '[[fault]]\nkind = "cut"\nbetween = ["0", "2"]\nat = 0.0\nuntil = 90.0\n'  # no way around
    _, pipelines, events = train(tmp_path / "t.jsonl", seats((3, 2, 1)), None, faults=cut, limit_s=90.0)
    assert pipelines[0].given_up > 0
    late = [event for event in events if isinstance(event, Computed) and event.node == "0" and event.since > 45]
    assert sum(event.at - event.since for event in late) > 0.9 * 45, "it is at work again"


def test_what_comes_twice_or_from_nowhere_is_dropped(tmp_path: Path) -> None:
    """The first stage is played by the test: batches twice, out of order, garbage, a gradient for nobody."""
    heard: list[int] = []
    place = replace(seats((1, 1, 1))[1], after=None, stage=1)

    async def program(world: SimWorld) -> None:
        if world.name == "1":
            layers = make()[2:]
            stage = StageModel(layers, [SGD(layers.parameters(), lr=0.1)])
            pipeline = Pipeline(world, place, stage, loss=nn.functional.cross_entropy)
            async with asyncio.TaskGroup() as group:
                background = Background(group)
                pipeline.start(background)
                await drive(pipeline, Talk(), Background(group), goes_on=lambda: stage.updates < 3)
                await world.sleep(5.0)
                background.cancel()
            assert stage.updates == 3
        elif world.name == "0":
            peer = world.peer("1")

            def body(number: int) -> bytes:
                draw = torch.Generator().manual_seed(number)
                values = pack_tensors(torch.randn(4, 8, generator=draw), Dense(), number)
                return safetensors.torch.save({**values, "t": torch.tensor([0, 1, 2, 0])})

            for number in (1, 0, 1, 0, 2):
                await peer.send("forward", struct.pack("<QI", number, 4), body(number))
            await peer.send("forward", b"?", b"garbage")
            spoilt = {**pack_tensors(torch.full((4, 8), math.nan), Dense(), 0), "t": torch.tensor([0, 1, 2, 0])}
            await peer.send("forward", struct.pack("<QI", 7, 4), safetensors.torch.save(spoilt))
            for _ in range(3):
                message = await peer.receive("backward")
                heard.append(struct.unpack("<Qf", message.head)[0])
        else:
            await world.peer("1").send("forward", struct.pack("<QI", 9, 4), b"")

    with Trace(tmp_path / "t.jsonl") as trace:
        Simulation(network(), seed=0, trace=trace).run(program, limit_s=100.0)
    assert heard == [1, 0, 2]
    refused = [event for event in read_trace(tmp_path / "t.jsonl") if event.kind == "message_refused"]
    assert len(refused) == 3, "garbage, what is not finite, and what is empty"


@pytest.mark.parametrize("name", ["bf16", "fp16", "int8", "topk/0.5"])
def test_what_is_sent_may_be_rounded(tmp_path: Path, name: str) -> None:
    exact, _, before = train(tmp_path / "a", seats((1, 1, 1)), 5)
    wire = parse_codec(name)
    rounded, _, after = train(tmp_path / "b", [replace(seat, wire=wire) for seat in seats((1, 1, 1))], 5)
    sizes = [sum(event.bytes for event in events if event.kind == "transferred") for events in (before, after)]  # type: ignore[attr-defined]
    assert sizes[1] < sizes[0]
    for one, other in zip(exact.parameters(), rounded.parameters(), strict=True):
        assert not torch.equal(one, other)
        if "topk" not in name:
            torch.testing.assert_close(one, other, rtol=0.05, atol=0.02)

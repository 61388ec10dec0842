"""Several connections for one lane: in order, as many as make it faster, and opened again after one of them is lost."""

import asyncio
import os
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import FrameError
from atoll.world.base import Lane
from atoll.world.live import strands as strands_module
from atoll.world.live.carrier import Carrier, secure
from atoll.world.live.dialer import Dialer
from atoll.world.live.frames import Kind
from atoll.world.live.strands import MOST_STRANDS, Strand, StrandCount, Strands, StripedCarrier
from atoll.world.live.world import LiveWorld
from tests.world.live.loopback import nodes


@asynccontextmanager
async def both_ends(count: int) -> AsyncIterator[tuple[StripedCarrier, StripedCarrier]]:
    """A striped carrier, on both sides."""
    loop = asyncio.get_running_loop()
    dialled, accepted = list[Carrier](), list[Carrier]()
    with socket.create_server(("127.0.0.1", 0)) as server:
        for _ in range(count):
            one = socket.socket()
            one.settimeout(0)
            await loop.sock_connect(one, server.getsockname())
            other, _ = server.accept()
            other.settimeout(0)
            dialled.append((await secure(one, None, lane=Lane.BULK, dialled=True))[0])
            accepted.append((await secure(other, None, lane=Lane.BULK, dialled=False))[0])
    ends = StripedCarrier(dialled), StripedCarrier(accepted)
    try:
        yield ends
    finally:
        for end in ends:
            end.close()
        await asyncio.sleep(0.01)  # sockets are closed when the loop has let go of them


@pytest.mark.parametrize("count", [2, 5])
def test_frames_stay_in_order(count: int) -> None:
    draw = random.Random(count)
    sizes = [draw.choice([0, 1, 1000, 300_000]) for _ in range(200)]

    async def send(sender: StripedCarrier) -> None:
        for number, size in enumerate(sizes):
            if size == 1:
                sender.post(Kind.ACK, number, payload=b"x")
            else:
                await sender.send(Kind.PART, number, payload=[bytes([number % 251]) * size])

    async def run() -> None:
        async with asyncio.timeout(20), both_ends(count) as (sender, receiver):
            sending = asyncio.create_task(send(sender))
            for number, size in enumerate(sizes):
                head, payload = await receiver.receive()
                assert (head.number, head.size) == (number, size)
                assert size == 1 or bytes(payload) == bytes([number % 251]) * size
            await sending
            sender.close()
            with pytest.raises(ConnectionResetError):
                await sender.send(Kind.PART)

    asyncio.run(run())


def test_a_sender_that_gives_up_leaves_no_gap() -> None:
    """The receiver waits for each frame in its turn."""

    async def run() -> None:
        async with asyncio.timeout(20), both_ends(2) as (sender, receiver):
            large = bytes(4 << 20)
            sending = [asyncio.create_task(sender.send(Kind.PART, number, payload=[large])) for number in range(6)]
            await asyncio.sleep(0.05)
            sending[4].cancel()
            for number in range(6):
                head, _ = await receiver.receive()
                assert head.number == number

    asyncio.run(run())


def test_all_strands_end_with_one_of_them() -> None:
    async def run() -> None:
        async with asyncio.timeout(20), both_ends(3) as (sender, receiver):
            receiver.strands[1].close()

            async def send_much() -> None:
                while True:
                    await sender.send(Kind.PART, payload=[bytes(1 << 20)])

            with pytest.raises(OSError, match="."):  # noqa: RUF043 - whatever the system says
                await send_much()
            assert all(strand.closed for strand in sender.strands)

    asyncio.run(run())


@given(st.floats(1e3, 1e9), st.integers(1, 100), st.booleans())
def test_as_many_strands_as_make_it_faster(one: float, most: int, tolerates_loss: bool) -> None:  # noqa: FBT001
    """Each strand adds as much, until the path is full."""
    found, changes = StrandCount(), 0
    for _ in range(400):
        before = found.wanted
        rate = one * min(before, most)
        found.observe(0.125, int(rate * 0.125), count=before, round_trip_s=0.08, tolerates_loss=tolerates_loss)
        changes += found.wanted != before
    best = one * min(most, MOST_STRANDS)
    if not tolerates_loss:
        assert one * min(found.wanted, most) > best / 1.5
    assert found.wanted <= min(MOST_STRANDS, 2 * most)
    assert changes <= 6


def test_strands_are_counted_again_on_a_path_that_has_become_slower() -> None:
    """A connection is fast until it loses its first packet."""
    found = StrandCount()
    for second in range(200):
        rate = 1e7 if second < 8 else 3e5 * found.wanted
        found.observe(1.0, int(rate), count=found.wanted, round_trip_s=0.08, tolerates_loss=False)
    assert found.wanted == MOST_STRANDS


def test_what_has_once_made_it_faster_is_not_given_up_for_noise() -> None:
    found, draw = StrandCount(), random.Random(3)
    for _ in range(60):
        found.observe(1.0, int(3e5 * found.wanted), count=found.wanted, round_trip_s=0.08, tolerates_loss=False)
    for _ in range(600):
        rate = 3e5 * found.wanted * draw.uniform(0.6, 1.2)
        found.observe(1.0, int(rate), count=found.wanted, round_trip_s=0.08, tolerates_loss=False)
        assert found.wanted == MOST_STRANDS


@pytest.mark.parametrize(("round_trip_s", "tolerates_loss", "rate"), [(0.001, False, 1e6), (0.08, True, 12e6)])
def test_one_connection_is_enough(round_trip_s: float, tolerates_loss: bool, rate: float) -> None:  # noqa: FBT001
    """On a short path, or where losses do not matter and little is in flight."""
    found = StrandCount()
    for _ in range(100):
        found.observe(1.0, int(rate), count=1, round_trip_s=round_trip_s, tolerates_loss=tolerates_loss)
    assert found.wanted == 1


def test_a_long_fat_path_needs_several_whatever_they_tolerate() -> None:
    found = StrandCount()
    for _ in range(3):
        found.observe(1.0, 30_000_000, count=1, round_trip_s=0.2, tolerates_loss=True)
    assert found.wanted == 2
    found.fails(1)
    tried = []
    for second in range(200):
        found.observe(1.0, 30_000_000, count=1, round_trip_s=0.2, tolerates_loss=True)
        if found.wanted == 2:
            tried.append(second)
            found.fails(1)
    assert len(tried) == 3, "again and again, less and less often"


def test_strands_that_come_together_are_one_carrier() -> None:
    async def run() -> None:
        async with both_ends(3) as (_, accepted):
            strands, places = Strands(), Strand.some(3)
            found = [strands.add("a", places[place], accepted.strands[place], life=7) for place in (2, 0, 1)]
            assert found[:2] == [None, None]
            assert found[2] is not None
            assert found[2].strands == accepted.strands
            assert strands.add("a", Strand(), accepted.strands[0], life=7) is accepted.strands[0]

    asyncio.run(run())


def test_strands_whose_others_do_not_come_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strands_module, "COMPLETE_S", 0.05)

    async def run() -> None:
        async with both_ends(5) as (_, accepted):
            strands, carriers = Strands(), accepted.strands
            places = Strand.some(3)
            strands.add("a", places[0], carriers[0], life=7)
            strands.add("a", places[1], carriers[1], life=7)
            await asyncio.sleep(0.1)
            assert [each.closed for each in carriers] == [True, True, False, False, False]
            strands.add("a", places[2], carriers[2], life=7)
            with pytest.raises(FrameError, match="does not fit"):
                strands.add("a", places[2], carriers[3], life=7)
            assert carriers[2].closed
            strands.add("a", places[0], carriers[3], life=7)
            with pytest.raises(FrameError, match="does not fit"):
                strands.add("a", Strand(1, 2, places[0].together), carriers[4], life=7)
            strands.close()

    asyncio.run(run())


def test_a_peer_has_few_groups_of_strands() -> None:
    async def run() -> None:
        async with both_ends(6) as (_, accepted):
            strands = Strands()
            for carrier in accepted.strands:
                strands.add("a", Strand.some(2)[0], carrier, life=7)
            assert [each.closed for each in accepted.strands] == [True] * 4 + [False] * 2
            strands.close()
            assert all(each.closed for each in accepted.strands)

    asyncio.run(run())


def test_strands_that_cannot_be_opened_are_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """One connection is better than none."""
    connect = Dialer._connect

    async def at_most_one(dialer: Dialer, opened: list[Carrier], *rest: Any) -> str | None:
        if len(rest[-1]) > 1:
            raise ConnectionRefusedError("no more")
        return await connect(dialer, opened, *rest)

    async def run() -> None:
        async with nodes(("a", "b")) as worlds, asyncio.timeout(30):
            await worlds["a"].host.wait_straight("b", Lane.BULK)
            await _striped(worlds, 4)
            monkeypatch.setattr(Dialer, "_connect", at_most_one)
            carrier = worlds["b"].host.sessions["a"].direct(Lane.BULK)
            assert carrier is not None
            carrier.close()
            await worlds["a"].peer("b").send("x", body=bytes(1_000_000))
            assert len((await worlds["b"].peer("a").receive("x")).body) == 1_000_000
            await asyncio.sleep(1.5)
            counts = [world.host.sessions[other].wanted_strands(Lane.BULK) for world, other in _pairs(worlds)]
            assert 1 in counts, "the node that dials has given up"

    asyncio.run(run())


def test_many_nodes_open_many_strands_at_a_time() -> None:
    """More than a node takes strangers."""

    async def run() -> None:
        names = [f"{number}" for number in range(7)]
        async with nodes(names) as worlds, asyncio.timeout(60):
            hub = worlds["0"].host
            for name in names[1:]:
                await hub.wait_straight(name, Lane.BULK)
                for session in (hub.sessions[name], worlds[name].host.sessions["0"]):
                    session._ways[Lane.BULK].strand_count.wanted = 16
            for name in names[1:]:
                while len(getattr(hub.sessions[name].direct(Lane.BULK), "strands", ())) != 16:
                    await hub.sessions[name].changed.wait()
            counts = [len(getattr(each.direct(Lane.BULK), "strands", ())) for each in hub.sessions.values()]
            assert counts == [16] * 6

    asyncio.run(run())


def _pairs(worlds: dict[str, LiveWorld]) -> list[tuple[LiveWorld, str]]:
    return [(worlds["a"], "b"), (worlds["b"], "a")]


async def _striped(worlds: dict[str, LiveWorld], count: int) -> None:
    """Returns when bulk goes over so many connections."""
    for world, other in _pairs(worlds):
        session = world.host.sessions[other]
        session._ways[Lane.BULK].strand_count.wanted = count
        while len(getattr(session.direct(Lane.BULK), "strands", ())) != count:
            await session.changed.wait()


@pytest.mark.parametrize("encrypted", [True, False])
def test_bulk_goes_over_several_connections_and_goes_on_when_one_is_lost(encrypted: bool) -> None:  # noqa: FBT001
    async def run() -> None:
        async with nodes(("a", "b"), encrypted=encrypted) as worlds, asyncio.timeout(30):
            await worlds["a"].host.wait_straight("b", Lane.BULK)
            for count in (4, 1, 3):
                await _striped(worlds, count)
                bodies = [os.urandom(size) for size in (30_000_000, 10, 3_000_000)]
                sending = [
                    asyncio.create_task(worlds[one].peer(other).send("x", body=body))
                    for one, other in (("a", "b"), ("b", "a"))
                    for body in bodies
                ]
                await asyncio.sleep(0.02)
                carrier = worlds["b"].host.sessions["a"].direct(Lane.BULK)
                assert carrier is not None
                carrier.strands[-1].close()
                for one, other in (("a", "b"), ("b", "a")):
                    for body in bodies:
                        assert bytes((await worlds[one].peer(other).receive("x")).body) == body
                await asyncio.gather(*sending)
                await worlds["a"].host.wait_straight("b", Lane.BULK)

    asyncio.run(run())

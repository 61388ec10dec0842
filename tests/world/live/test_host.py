import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from atoll.trace import ReachChanged
from atoll.world.base import Lane
from atoll.world.live.carrier import TcpCarrier, secure
from atoll.world.live.host import best_congestion
from atoll.world.live.world import LiveWorld
from tests.world.live.loopback import Cable, Events, introduce, make_node, nodes


@asynccontextmanager
async def cabled(*names: str, encrypted: bool = True) -> AsyncIterator[tuple[dict[str, LiveWorld], dict[str, Cable]]]:
    """Nodes each of which is dialled through cables of its own: `cables["ab"]` is between a and b."""
    worlds = {name: make_node(name, names, encrypted=encrypted) for name in names}
    cables = {}
    for one in names:
        for other in names:
            if one < other:
                cable = cables[one + other] = Cable(worlds[other].host.own_addresses[0])
                worlds[one].host.addresses[other] = [cable.address]
    for world in worlds.values():
        world.host.own_addresses = []  # nobody goes around the cables
    try:
        async with asyncio.timeout(20):
            for world in worlds.values():
                for name in world.peer_names:
                    await world.peer(name).wait_until(reachable=True)
                    await world.host.wait_straight(name, Lane.BULK)
        yield worlds, cables
    finally:
        await asyncio.gather(*(world.close(flush_s=0.0) for world in worlds.values()))
        await asyncio.gather(*(cable.close() for cable in cables.values()))


def test_a_cable_is_pulled_and_plugged_in_again() -> None:
    """The transfer goes on where it stopped, soon after the link is back; little is sent twice."""

    async def run() -> None:
        async with cabled("a", "b") as (worlds, cables), asyncio.timeout(30):
            cable = cables["ab"]
            cable.bytes_a_second = 4e6
            body = os.urandom(6_000_000)
            sending = asyncio.create_task(worlds["a"].peer("b").send("model", body=body))
            await asyncio.sleep(0.7)
            assert not sending.done()
            cable.is_pulled = True
            await worlds["a"].peer("b").wait_until(reachable=False)
            await worlds["b"].peer("a").wait_until(reachable=False)
            await asyncio.sleep(1.0)
            cable.is_pulled = False
            back = time.monotonic()
            await worlds["a"].peer("b").wait_until(reachable=True)
            assert time.monotonic() - back < 1.5
            message = await worlds["b"].peer("a").receive("model")
            await sending
            assert bytes(message.body) == body
            window = 4e6 * 0.06
            assert cable.carried < len(body) * 1.01 + window + (1 << 17)

    asyncio.run(run())


def test_a_short_outage_loses_nothing() -> None:
    async def run() -> None:
        async with cabled("a", "b") as (worlds, cables), asyncio.timeout(30):

            async def pull() -> None:
                for _ in range(4):
                    await asyncio.sleep(0.15)
                    cables["ab"].is_pulled = True
                    await asyncio.sleep(0.2)
                    cables["ab"].is_pulled = False
                    await asyncio.sleep(0.8)

            async def send(one: str, other: str) -> None:
                for number in range(40):
                    await worlds[one].peer(other).send("x", head=b"%d" % number, body=bytes(10_000 * (number % 5)))
                    await asyncio.sleep(0.02)

            async def receive(one: str, other: str) -> None:
                for number in range(40):
                    message = await worlds[one].peer(other).receive("x")
                    assert (message.head, len(message.body)) == (b"%d" % number, 10_000 * (number % 5))

            await asyncio.gather(pull(), send("a", "b"), send("b", "a"), receive("a", "b"), receive("b", "a"))

    asyncio.run(run())


def test_a_third_node_relays() -> None:
    """While their own link is away two nodes talk through a third, which knows that it reaches both."""

    async def run() -> None:
        async with cabled("a", "b", "c") as (worlds, cables), asyncio.timeout(30):
            await asyncio.sleep(0.3)
            cables["ac"].is_pulled = True
            await asyncio.sleep(1.5)
            assert worlds["a"].peer("c").reachable
            assert worlds["a"].host.sessions["c"].direct(Lane.CONTROL) is None
            body = os.urandom(2_000_000)
            before = cables["ab"].carried
            sending = asyncio.create_task(worlds["a"].peer("c").send("model", body=body))
            message = await worlds["c"].peer("a").receive("model")
            await sending
            assert bytes(message.body) == body
            assert cables["ab"].carried - before > len(body)
            await worlds["c"].peer("a").send("thanks", lane=Lane.CONTROL)
            await worlds["a"].peer("c").receive("thanks")

            cables["ac"].is_pulled = False
            await worlds["a"].host.wait_straight("c", Lane.BULK)
            await worlds["a"].peer("c").send("again", body=body)
            assert bytes((await worlds["c"].peer("a").receive("again")).body) == body

    asyncio.run(run())


def test_a_message_under_way_goes_on_through_a_third_node() -> None:
    async def run() -> None:
        async with cabled("a", "b", "c") as (worlds, cables), asyncio.timeout(30):
            await asyncio.sleep(0.3)
            cables["ac"].bytes_a_second = 2e6
            body = os.urandom(4_000_000)
            sending = asyncio.create_task(worlds["a"].peer("c").send("model", body=body))
            await asyncio.sleep(0.8)
            before = cables["ab"].carried
            cables["ac"].is_pulled = True
            message = await worlds["c"].peer("a").receive("model")
            await sending
            assert bytes(message.body) == body
            assert cables["ab"].carried - before < 3_800_000, "what had arrived was not sent again"

    asyncio.run(run())


def test_a_node_that_begins_anew() -> None:
    """It is met as a new one: what waits for it arrives from the beginning."""

    async def run() -> None:
        names = ("a", "b")
        async with nodes(names) as worlds, asyncio.timeout(30):
            await worlds["a"].peer("b").send("x", body=b"1")
            await worlds["b"].receive("x")
            where = worlds["b"].host.own_addresses
            await worlds["b"].close(flush_s=0.0)
            await worlds["a"].peer("b").wait_until(reachable=False)
            waiting = asyncio.create_task(worlds["a"].peer("b").send("x", body=b"2"))
            worlds["b"] = make_node("b", names)
            assert worlds["b"].host.own_addresses != where, "another port"
            worlds["b"].host.addresses["a"] = worlds["a"].host.own_addresses
            message = await worlds["b"].receive("x")
            assert bytes(message.body) == b"2"
            await waiting

    asyncio.run(run())


def test_a_process_that_restarts_before_it_is_missed_gets_back_in() -> None:
    """Its machine lost power: nobody was told that the old process is gone."""

    async def run() -> None:
        names = ("a", "b")
        async with cabled(*names) as (worlds, cables), asyncio.timeout(30):
            cables["ab"].is_pulled = True
            began = time.monotonic()
            back = make_node("b", names, identity=worlds["b"].host.identity)
            back.host.addresses["a"] = [worlds["a"].host.listener._listening[0].getsockname()[:2]]
            await back.peer("a").wait_until(reachable=True)
            assert worlds["a"].host.sessions["b"].life == back.host.life
            assert time.monotonic() - began < 8
            await back.close(flush_s=0.0)

    asyncio.run(run())


def test_of_two_processes_with_one_key_the_first_stays() -> None:
    """Whoever of them dials, and whoever is dialled: the first notices nothing, the second is told why."""

    async def run(*, second_dials: bool) -> None:
        names = ("a", "b")
        async with nodes(names) as worlds, asyncio.timeout(30):
            trace = worlds["a"]._trace
            assert isinstance(trace, Events)
            copy = make_node("b", names, identity=worlds["b"].host.identity)
            listening = worlds["a"].host.listener._listening[0].getsockname()[:2]
            if second_dials:
                copy.host.addresses["a"] = [listening]
            else:  # as if the first were reached through a third node only, and so still dialled
                await _introduce(worlds["a"], copy)
            await asyncio.sleep(1.5)
            assert not copy.peer("a").reachable
            if second_dials:
                assert "the key is in use by another process" in copy.host.conflict
            assert worlds["a"].host.sessions["b"].life == worlds["b"].host.life
            assert [event for event in trace.all if isinstance(event, ReachChanged)][1:] == []
            await worlds["b"].peer("a").send("x", body=b"1")
            await worlds["a"].receive("x")
            await worlds["b"].close()
            if second_dials:
                await copy.peer("a").wait_until(reachable=True)  # when the first has left
                await asyncio.sleep(2.2)
                assert not copy.host.conflict
            await copy.close(flush_s=0.0)

    asyncio.run(run(second_dials=True))
    asyncio.run(run(second_dials=False))


async def _introduce(one: LiveWorld, other: LiveWorld) -> None:
    sock = socket.create_connection(other.host.own_addresses[0])
    sock.settimeout(0)
    carrier, identity = await secure(sock, one.host.identity.context(server=False), lane=Lane.CONTROL, dialled=True)
    await one.host.greet(one.host.sessions[other.name], carrier)
    assert not await one.host.introduce(one.host.sessions[other.name], carrier, identity)
    await asyncio.sleep(0.2)
    assert "the key is in use by another process" in other.host.conflict
    carrier.close()


def test_leaving_is_noticed_at_once() -> None:
    async def run() -> None:
        async with nodes(("a", "b")) as worlds, asyncio.timeout(10):
            began = time.monotonic()
            await worlds["b"].close()
            await worlds["a"].peer("b").wait_until(reachable=False)
            assert time.monotonic() - began < 0.4
            trace = worlds["a"]._trace
            assert isinstance(trace, Events)
            reaches = [event.reachable for event in trace.all if isinstance(event, ReachChanged)]
            assert reaches == [True, False]

    asyncio.run(run())


def test_congestion_control_can_be_chosen() -> None:
    """Where the system allows another than its own, connections that were made and accepted have it."""
    chosen = best_congestion() or "reno"

    async def run() -> None:
        worlds = {name: make_node(name, ("a", "b"), congestion=chosen) for name in ("a", "b")}
        introduce(list(worlds.values()))
        try:
            async with asyncio.timeout(10):
                await worlds["a"].host.wait_straight("b", Lane.BULK)
                await worlds["b"].host.wait_straight("a", Lane.BULK)
            for world, other in (("a", "b"), ("b", "a")):
                carrier = worlds[world].host.sessions[other].direct(Lane.BULK)
                assert isinstance(carrier, TcpCarrier)
                found = carrier._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
                assert found.rstrip(b"\0").decode() == chosen
                assert carrier.limits_its_queue == (chosen == "bbr")
        finally:
            await asyncio.gather(*(world.close(flush_s=0.0) for world in worlds.values()))

    asyncio.run(run())

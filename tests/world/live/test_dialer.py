"""Dialling: nodes that come back elsewhere are found, and strangers at an old address are left alone."""

import asyncio
import logging

import pytest

from atoll.world.base import Lane
from atoll.world.live.keys import Identity, Invitation
from atoll.world.live.world import LiveWorld
from tests.world.live.loopback import Events, make_node, nodes


def test_another_run_at_an_old_address_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """Not twice a second for good."""

    async def run() -> None:
        other = Invitation.new(())
        stranger = LiveWorld("a", ("a", "b"), other, Identity(other.secret), trace=Events())
        stranger.host.listener.listen_at(("127.0.0.1", 0))
        own = make_node("b", ("a", "b"))
        own.host.addresses["a"] = stranger.host.own_addresses
        await asyncio.sleep(3.0)
        await asyncio.gather(own.close(flush_s=0.0), stranger.close(flush_s=0.0))

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    assert 1 <= len(caplog.messages) <= 2, caplog.messages  # each side says it


def test_a_new_address_spreads() -> None:
    """c was at one address and is at another; it dials a, and b learns of it from a."""

    async def run() -> None:
        names = ("a", "b", "c")
        async with nodes(names) as worlds, asyncio.timeout(30):
            old = worlds["c"].host.own_addresses
            await worlds["c"].close(flush_s=0.0)
            for name in ("a", "b"):
                await worlds[name].peer("c").wait_until(reachable=False)
            worlds["a"].host.own_addresses = []  # nobody tells c of b, nor where b is
            back = worlds["c"] = make_node("c", names)
            back.host.addresses["a"] = [worlds["a"].host.listener._listening[0].getsockname()[:2]]
            worlds["b"].host.own_addresses = []
            worlds["a"].host.addresses.pop("b", None)
            await worlds["b"].host.wait_straight("c", Lane.CONTROL)
            assert back.host.own_addresses[0] != old[0]
            assert worlds["b"].host.addresses["c"][0] == back.host.own_addresses[0]

    asyncio.run(run())


def test_an_address_that_is_none_to_the_system_ends_nothing() -> None:
    async def run() -> None:
        async with nodes(("a", "b"), places=("a", "b", "c")) as worlds, asyncio.timeout(20):
            worlds["a"].host.addresses["c"] = [("x" * 100 + ".example", 7), ("a\0b", 80), ("127.0.0.1", 99999)]
            await asyncio.sleep(1.2)
            back = make_node("c", ("a", "b", "c"))
            worlds["a"].host.addresses["c"] += back.host.own_addresses
            await worlds["a"].host.wait_straight("c", Lane.BULK)
            assert worlds["a"].peer("c").reachable
            await back.close(flush_s=0.0)

    asyncio.run(run())

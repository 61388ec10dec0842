"""Relays: while a link is away, messages go through a third node."""

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.network import Network
from atoll.trace import Event, Transferred
from atoll.world import IDEAL, Lane, Simulation
from atoll.world.sim.peer import Order
from atoll.world.sim.world import SimWorld
from tests.world.networks import network, sized

RELAYED = dataclasses.replace(IDEAL, relays=True)

TRIANGLE = """
[[node]]
count = 3
[[link]]
between = ["0", "1"]
latency_ms = 30
rate_mbps = 10
{weather}
[[link]]
between = ["0", "2"]
latency_ms = 20
rate_mbps = 10
[[link]]
between = ["1", "2"]
latency_ms = 20
rate_mbps = 10
"""


class Seen:
    def __init__(self) -> None:
        self.legs: list[tuple[str, str]] = []

    def record(self, event: Event) -> None:
        if isinstance(event, Transferred):
            self.legs.append((event.sender, event.receiver))

    def flush(self) -> None:
        """Nothing is written."""


def run(net: Network, program: Callable[[SimWorld], Coroutine[Any, Any, Any]], seen: Seen | None = None) -> Any:
    return Simulation(net, physics=RELAYED, trace=seen).run(program)


def told_at(size: int, after_s: float) -> Callable[[SimWorld], Coroutine[Any, Any, float]]:
    """Node 0 tells node 1 so much after a while; returns when each was done."""

    async def program(world: SimWorld) -> float:
        if world.name == "0":
            await world.sleep(after_s)
            await world.peer("1").send("x", b"", sized(size))
        elif world.name == "1":
            message = await world.peer("0").receive("x")
            assert message.sender == "0"
        return world.now

    return program


def test_what_is_sent_while_the_link_is_away_goes_round() -> None:
    seen = Seen()
    times = run(network(TRIANGLE.format(weather="outages = [[1, 60]]")), told_at(125_000, 5), seen)
    assert seen.legs == [("0", "2"), ("2", "1")]
    assert times["1"] == pytest.approx(5 + 2 * (0.1 + 0.02), rel=1e-3)
    assert times["0"] == pytest.approx(5 + 0.1, rel=1e-3)


def test_what_was_under_way_goes_round_when_the_outage_is_noticed() -> None:
    """Half a second of silence, then the whole message again, twice 10 seconds at 10 Mbit/s."""
    times = run(network(TRIANGLE.format(weather="outages = [[1, 60]]")), told_at(1_250_000, 0.5))
    assert times["1"] == pytest.approx(1.5 + 2 * (1.0 + 0.02), abs=0.05)


def test_what_had_left_and_not_arrived_is_not_lost() -> None:
    """All of it is in the air when the link breaks."""
    seen = Seen()
    times = run(network(TRIANGLE.format(weather="outages = [[1, 60]]")), told_at(1000, 0.98), seen)
    assert times["0"] < 1
    assert times["1"] == pytest.approx(1.5, abs=0.1)
    assert seen.legs == [("0", "2"), ("2", "1")]


def test_what_had_left_goes_round_as_soon_as_there_is_a_way() -> None:
    """All of it is in the air when its link breaks, and then nobody else is in reach for a while."""
    cut_off = TRIANGLE.format(weather="outages = [[1, 60]]").replace(
        'between = ["0", "2"]\nlatency_ms = 20', 'between = ["0", "2"]\nlatency_ms = 20\noutages = [[0.99, 10]]'
    )
    seen = Seen()
    times = run(network(cut_off), told_at(1000, 0.98), seen)
    assert times["0"] < 1
    assert times["1"] == pytest.approx(10.1, abs=0.1)
    assert seen.legs == [("0", "2"), ("2", "1")]


def test_a_short_outage_that_nobody_notices_is_waited_for() -> None:
    seen = Seen()
    run(network(TRIANGLE.format(weather="outages = [[1, 1.4]]")), told_at(1_250_000, 0.5), seen)
    assert seen.legs == [("0", "1")]


def test_nobody_relays_where_the_network_has_another_path() -> None:
    hubs = network(
        'hubs = ["h", "g"]\n[[node]]\ncount = 3\n[[link]]\nbetween = ["*", "h"]\nlatency_ms = 5\noutages = [[1, 60]]\n'
        '[[link]]\nbetween = ["*", "g"]\nlatency_ms = 10'
    )
    seen = Seen()
    run(hubs, told_at(1000, 5), seen)
    assert seen.legs == [("0", "1")]


def test_a_send_that_is_cancelled_on_its_way_round_is_taken_back() -> None:
    async def program(world: SimWorld) -> list[bytes]:
        peer = world.peer("1") if world.name == "0" else None
        if peer:
            await world.sleep(5)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await peer.send("x", b"long", sized(1_250_000))
            await peer.send("x", b"short")
        return [(await world.peer("0").receive("x")).head] if world.name == "1" else []

    assert run(network(TRIANGLE.format(weather="outages = [[1, 60]]")), program)["1"] == [b"short"]


def test_who_is_reached_through_others_is_reachable() -> None:
    async def program(world: SimWorld) -> list[float]:
        if world.name != "0":
            return []
        assert not world.simulation.links.routes.find("0", "1") or world.now < 1
        await world.peer("1").wait_until(reachable=False)
        lost = world.now
        await world.peer("1").wait_until(reachable=True)
        return [lost, world.now]

    two_cuts = TRIANGLE.format(weather="outages = [[1, 90]]").replace(
        'between = ["0", "2"]\nlatency_ms = 20', 'between = ["0", "2"]\nlatency_ms = 20\noutages = [[20, 40]]'
    )
    lost, back = run(network(two_cuts), program)["0"]
    assert lost == pytest.approx(20.5, abs=0.2)
    assert back == pytest.approx(40, abs=0.2)


def test_who_no_longer_waits_for_a_peer_disturbs_nobody() -> None:
    async def program(world: SimWorld) -> float:
        if world.name == "0":
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(2):
                    await world.peer("2").wait_until(reachable=False)
            await world.peer("1").send("x", b"", sized(1_250_000))
        elif world.name == "1":
            await world.receive("x")
        return world.now

    assert run(network(TRIANGLE.format(weather="outages = [[1, 60]]")), program)["1"] < 10


@settings(max_examples=30, deadline=None)
@given(
    st.integers(0, 100),
    st.lists(
        st.tuples(st.sampled_from([50, 300, 20_000, 200_000]), st.sampled_from(list(Lane))), min_size=1, max_size=25
    ),
)
def test_each_once_and_in_order_in_any_weather(seed: int, messages: list[tuple[int, Lane]]) -> None:
    link = 'among = "*"\nlatency_ms = 20\njitter_ms = 5\nrate_mbps = 4\nup_s = 3\ndown_s = 3'
    flapping = network(f"[[node]]\ncount = 4\n[[link]]\n{link}")

    async def program(world: SimWorld) -> list[tuple[int, Lane]]:
        if world.name == "0":
            async with asyncio.TaskGroup() as group:
                for number, (size, lane) in enumerate(messages):
                    head = bytes([number, lane is Lane.BULK])
                    group.create_task(world.peer("1").send("x", head, sized(size), lane=lane))
        if world.name != "1":
            return []
        came = [(await world.receive("x")).head for _ in messages]
        await world.sleep(100)
        return [(head[0], Lane.BULK if head[1] else Lane.CONTROL) for head in came]

    came = Simulation(flapping, seed=seed, physics=dataclasses.replace(RELAYED, jitter=True)).run(program)["1"]
    for lane in Lane:
        expected = [number for number, (_, sent) in enumerate(messages) if sent is lane]
        assert [number for number, on in came if on is lane] == expected


@given(st.permutations(list(range(8))), st.sets(st.integers(0, 7)), st.lists(st.integers(0, 7), max_size=5))
def test_order_delivers_each_once_in_order(arrivals: list[int], void: set[int], again: list[int]) -> None:
    order = Order()
    assert [order.number() for _ in range(8)] == list(range(8))
    out: list[object] = []
    for number in [*arrivals, *again]:
        out += order.arrived(number, None if number in void else number)  # type: ignore[arg-type]
    assert out == [number for number in range(8) if number not in void]

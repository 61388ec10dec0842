"""Node programs that must do the same in every world.  Each returns what it found, as JSON can say it."""

import asyncio
import hashlib
from functools import partial
from typing import Any

from atoll.collectives import SendLog
from atoll.errors import UnknownPeer
from atoll.world.base import Lane, World


async def in_order(world: World) -> list[str]:
    """Messages of one lane arrive in the order in which they were sent, whole, once."""
    for peer in world.peer_names:
        for number in range(20):
            body = bytes([number]) * (1 + 7000 * number)
            await world.peer(peer).send("parcel", head=f"{number}".encode(), body=body)
    found = []
    for peer in world.peer_names:
        for number in range(20):
            message = await world.peer(peer).receive("parcel")
            assert message.sender == peer
            assert message.head == f"{number}".encode()
            assert bytes(message.body) == bytes([number]) * (1 + 7000 * number)
            found.append(f"{peer} {number}")
    return found


async def buffers_are_free_again(world: World) -> list[str]:
    """What was sent is what was in the buffer when it was sent, whatever becomes of the buffer."""
    buffer = bytearray(300_000)
    for number in range(5):
        buffer[:] = bytes([number]) * len(buffer)
        for peer in world.peer_names:
            await world.peer(peer).send("buffer", body=memoryview(buffer))
    digests = []
    for peer in world.peer_names:
        for _ in range(5):
            message = await world.peer(peer).receive("buffer")
            digests.append(hashlib.blake2b(message.body, digest_size=8).hexdigest())
    return digests


async def first_come_first_served(world: World) -> int:
    """A receive from anybody takes what has come, and one that is cancelled takes nothing."""
    for peer in world.peer_names:
        await world.peer(peer).send("hall", body=world.name.encode())
    waiting = asyncio.ensure_future(world.receive("nothing comes here"))
    await world.sleep(0.05)
    waiting.cancel()
    senders = {(await world.receive("hall")).sender for _ in world.peer_names}
    assert senders == set(world.peer_names)
    return len(senders)


async def taken_back(world: World) -> list[str]:
    """A send that is cancelled is taken back, unless all of it has left; what follows arrives."""
    first, second, *_ = sorted([world.name, *world.peer_names])
    if world.name == first:
        body = bytes(3_000_000)
        sending = asyncio.ensure_future(world.peer(second).send("large", body=bytearray(body)))
        await asyncio.sleep(0)
        sending.cancel()
        await asyncio.wait([sending])
        await world.peer(second).send("after", body=b"x")
        return []
    if world.name == second:
        return [(await world.receive("after")).channel]
    return []


async def urgent_overtakes(world: World) -> bool:
    """Control does not wait behind bulk."""
    first, second, *_ = sorted([world.name, *world.peer_names])
    if world.name == first:
        bulk = asyncio.ensure_future(world.peer(second).send("bulk", body=bytes(20_000_000)))
        await world.sleep(0.001)
        await world.peer(second).send("urgent", lane=Lane.CONTROL)
        await bulk
    if world.name == second:
        arrived: list[str] = []

        async def wait_for(channel: str) -> None:
            await world.receive(channel)
            arrived.append(channel)

        await asyncio.gather(wait_for("bulk"), wait_for("urgent"))
        return arrived == ["urgent", "bulk"]
    return True


async def computing(world: World) -> list[int]:
    """A node computes one thing at a time, and other things go on meanwhile."""
    began = world.now
    order: list[int] = []
    await asyncio.gather(*(world.compute(partial(order.append, number)) for number in range(3)))
    assert world.now > began
    order.append(await world.aside(lambda: 7))
    order.append(await world.offload(lambda: 8))
    return order


async def strangers(world: World) -> str:
    """Who is not there is named, with a hint."""
    try:
        world.peer("nobody")
    except UnknownPeer as error:
        return str(error).split(";")[0].replace(world.name, "NODE")
    return ""


PROGRAMS = [
    in_order,
    buffers_are_free_again,
    first_come_first_served,
    taken_back,
    urgent_overtakes,
    computing,
    strangers,
]


async def all_programs(world: World, settings: dict[str, Any]) -> dict[str, Any]:
    """What each finds, one after the other."""
    return {program.__name__: await program(world) for program in PROGRAMS}


async def look_around(world: World, settings: dict[str, Any]) -> dict[str, Any]:
    """Says every now and then whom it reaches, and how far they are."""
    seen: list[Any] = []
    while world.now < settings["until_s"]:
        reached = [name for name in world.peer_names if world.peer(name).reachable]
        seen.append([round(world.now, 3), reached])
        await world.sleep(0.05)
    return {"seen": seen, "round_trips_s": {name: world.peer(name).round_trip_s for name in world.peer_names}}


async def eat_memory(world: World, settings: dict[str, Any]) -> int:
    """Node 0 holds more and more."""
    held = []
    while world.now < settings["until_s"]:
        if world.name == "0":
            held.append(bytearray(b"x") * 20_000_000)
        await world.sleep(0.1)
    return len(held)


async def send_much(world: World, settings: dict[str, Any]) -> dict[str, float]:
    """How long so many bytes take from the first node to the second, and how many seconds a byte small messages say
    that they took.
    """
    first, second = world.name, "1"
    took: dict[str, float] = {}
    log = SendLog()

    async def send_small() -> None:
        began = world.now
        await world.peer(second).send("small", body=bytes(16_000), left=lambda at: log.add(began, at, 16_000))

    for size in settings["sizes"]:
        if first == "0":
            began = world.now
            await world.peer(second).send("much", body=bytes(size))
            await world.peer(second).receive("thanks")
            took[str(size)] = world.now - began
        elif first == second:
            await world.peer("0").receive("much")
            await world.peer("0").send("thanks", lane=Lane.CONTROL)
    if first == "0":
        await asyncio.gather(*(send_small() for _ in range(30)))
    elif first == second:
        for _ in range(30):
            await world.peer("0").receive("small")
    await world.sleep(0.5)
    return took | {"small": log.seconds_a_byte(1) or 0.0}

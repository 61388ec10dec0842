"""Who has no business here is refused or bounded, and costs the run nothing."""

import asyncio
import json
import os
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from atoll.errors import FrameError
from atoll.trace import MessageRefused
from atoll.world.base import Lane
from atoll.world.live import listener as listener_module
from atoll.world.live.carrier import TcpCarrier, secure
from atoll.world.live.frames import HEAD_BYTES, Kind, head_of
from atoll.world.live.keys import Identity
from atoll.world.live.world import LiveWorld
from tests.world.live.loopback import INVITATION, Events, nodes

Attack = Callable[[tuple[str, int]], Awaitable[None]]


async def _connect(address: tuple[str, int]) -> socket.socket:
    sock = socket.socket()
    sock.settimeout(0)
    await asyncio.get_running_loop().sock_connect(sock, address)
    return sock


async def _say(address: tuple[str, int], data: bytes) -> bytes:
    """Says something, and returns all that is answered until the other side has had enough."""
    loop = asyncio.get_running_loop()
    sock = await _connect(address)
    answered = b""
    try:
        await loop.sock_sendall(sock, data)
        while data := await loop.sock_recv(sock, 4096):
            answered += data
    except OSError:
        pass
    finally:
        sock.close()
    return answered


async def random_bytes(address: tuple[str, int]) -> None:
    for size in (1, 27, 28, 1000, 100_000):
        await _say(address, os.urandom(size) + b"\0" * 64)


async def without_a_key(address: tuple[str, int]) -> None:
    """TLS, but not from the run's invitation."""
    with pytest.raises(OSError):  # noqa: PT011 - either side may be the first to say no
        await _greet(address, Identity(bytes(32)))


async def _greet(address: tuple[str, int], identity: Identity | None, **changes: object) -> TcpCarrier:
    """Says hello as a node of the run would, but for some changes."""
    sock = await _connect(address)
    context = identity.context(server=False) if identity else None
    try:
        carrier, _ = await secure(sock, context, lane=Lane.CONTROL, dialled=True)
    except FrameError as error:
        sock.close()
        raise ConnectionError(str(error)) from None
    hello = {
        "run": INVITATION.run_id,
        "name": "c",
        "id": identity.id if identity else "x",
        "lane": "control",
        "life": 7,
        "your_life": 0,
        "have": [0, 0],
        "listen": [],
        **changes,
    }
    try:
        await carrier.send(Kind.HELLO, payload=[json.dumps(hello).encode()])
        await carrier.receive()
    except OSError:
        carrier.close()
        raise
    return carrier


async def in_the_clear(address: tuple[str, int]) -> None:
    hello = b'{"run":"x"}'
    await _say(address, head_of(Kind.HELLO, 0, 0, [hello], encrypted=False) + hello + bytes(64))


async def wrong_hellos(address: tuple[str, int]) -> None:
    """With the key, but not as one should."""
    identity = Identity(INVITATION.secret)
    wrong: list[dict[str, object]] = [
        {"run": "another"},
        {"name": "nobody"},
        {"id": "somebody else"},
        {"life": -1},
        {"life": "x"},
        {"have": [0]},
        {"have": [-1, 0]},
        {"lane": "express"},
        {"listen": 3},
    ]
    for changes in wrong:
        with pytest.raises(OSError):  # noqa: PT011
            await _greet(address, identity, **changes)


async def a_node_that_misbehaves(address: tuple[str, int]) -> None:
    """It was let in, and then says what may not be said: it is dropped each time."""
    identity = Identity(INVITATION.secret)
    frames: list[tuple[Kind, int, int, bytes]] = [
        (Kind.HELLO, 0, 0, b"{}"),
        (Kind.PART, 0, 0, b"x" * 10),
        (Kind.OPEN, 5, 0, b"x" * 30),
        (Kind.OPEN, 0, 0, b"x"),
        (Kind.ACK, 2**60, 0, b"\1"),
        (Kind.ACK, 0, 0, b""),
        (Kind.NEWS, 0, 0, b"[]"),
        (Kind.NEWS, 0, 0, b'{"reaches": 3, "addresses": {}, "links": {}}'),
        (Kind.RELAY, 0, 0, b"x"),
        (Kind.SEAT, 0, 0, b"{}"),
    ]
    for life, (kind, number, offset, payload) in enumerate(frames, 10):
        carrier = await _greet(address, identity, life=life)
        await carrier.send(kind, number, offset, [payload])
        with pytest.raises(OSError):  # noqa: PT011, PT012
            while True:
                await carrier.receive()
        carrier.close()


async def too_long(address: tuple[str, int]) -> None:
    """Two gigabytes are announced, with the key."""
    identity = Identity(INVITATION.secret)
    sock = await _connect(address)
    carrier, _ = await secure(sock, identity.context(server=False), lane=Lane.CONTROL, dialled=True)
    head = bytearray(head_of(Kind.HELLO, 0, 0, [], encrypted=True))
    head[4:8] = (2 << 30).to_bytes(4, "big")
    await carrier._stream.write([head])
    with pytest.raises(OSError):  # noqa: PT011
        await carrier.receive()
    carrier.close()


async def half_a_frame(address: tuple[str, int]) -> None:
    """It stops in the middle of a head, and of a payload."""
    for size in (5, HEAD_BYTES + 3):
        identity = Identity(INVITATION.secret)
        sock = await _connect(address)
        carrier, _ = await secure(sock, identity.context(server=False), lane=Lane.CONTROL, dialled=True)
        await carrier._stream.write([(head_of(Kind.HELLO, 0, 0, [b"x" * 9], encrypted=True) + b"x" * 9)[:size]])
        carrier.close()


async def a_replay(address: tuple[str, int]) -> None:
    """What a node has said once is of no use to who has listened."""
    said: list[bytes] = []
    loop = asyncio.get_running_loop()
    sock = await _connect(address)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = Identity(INVITATION.secret).context(server=False).wrap_bio(incoming, outgoing)
    for _ in range(3):
        try:
            tls.do_handshake()
            break
        except ssl.SSLWantReadError:
            said.append(outgoing.read())
            await loop.sock_sendall(sock, said[-1])
            incoming.write(await loop.sock_recv(sock, 65536))
    tls.write(head_of(Kind.HELLO, 0, 0, [], encrypted=True))
    said.append(outgoing.read())
    sock.close()
    await _say(address, b"".join(said))


async def a_thousand_at_once(address: tuple[str, int]) -> None:
    """Connections that say nothing: they are accepted a few at a time, and given up."""
    socks = []
    for _ in range(1000):
        sock = socket.socket()
        sock.settimeout(0)
        with suppress(BlockingIOError):
            sock.connect(address)
        socks.append(sock)
    await asyncio.sleep(1.0)
    for sock in socks:
        sock.close()


@asynccontextmanager
async def three() -> AsyncIterator[dict[str, LiveWorld]]:
    """Nodes a and b, and a place for c."""
    async with nodes(("a", "b"), places=("a", "b", "c")) as worlds:
        yield worlds


@pytest.mark.parametrize(
    "attack",
    [
        random_bytes,
        without_a_key,
        in_the_clear,
        wrong_hellos,
        a_node_that_misbehaves,
        too_long,
        half_a_frame,
        a_replay,
        a_thousand_at_once,
    ],
    ids=lambda attack: attack.__name__,
)
def test_it_costs_the_run_nothing(attack: Attack, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it goes on, messages between nodes arrive as before."""
    monkeypatch.setattr(listener_module, "HANDSHAKE_S", 1.0)

    async def run() -> None:
        async with three() as worlds, asyncio.timeout(40):
            took: list[float] = []

            async def talk() -> None:
                loop = asyncio.get_running_loop()
                while True:
                    began = loop.time()
                    await worlds["a"].peer("b").send("x", body=bytes(100_000))
                    await worlds["b"].peer("a").receive("x")
                    took.append(loop.time() - began)
                    await asyncio.sleep(0.01)

            talking = asyncio.create_task(talk())
            await asyncio.sleep(0.2)
            await attack(worlds["a"].host.own_addresses[0])
            await asyncio.sleep(0.2)
            assert not talking.done()
            talking.cancel()
            assert len(took) > 10
            assert max(took) < 1.0
            assert worlds["a"].peer("b").reachable
            assert worlds["a"].host.sent_bytes > 0

    asyncio.run(run())


def test_who_was_refused_is_in_the_trace() -> None:
    async def run() -> None:
        async with three() as worlds:
            await random_bytes(worlds["a"].host.own_addresses[0])
            trace = worlds["a"]._trace
            assert isinstance(trace, Events)
            refused = [event for event in trace.all if isinstance(event, MessageRefused)]
            assert refused
            assert "127.0.0.1" in refused[0].sender

    asyncio.run(run())


def test_a_reader_that_stops_holds_nobody_up() -> None:
    """What is under way to a peer that does not read is bounded, and others are served as before."""

    async def run() -> None:
        async with three() as worlds, asyncio.timeout(30):
            identity = Identity(INVITATION.secret)
            carrier = await _greet(worlds["a"].host.own_addresses[0], identity)
            bulk = await _greet(worlds["a"].host.own_addresses[0], identity, lane="bulk")
            assert worlds["a"].peer("c").reachable
            sending = asyncio.create_task(worlds["a"].peer("c").send("x", body=bytes(50_000_000)))
            await asyncio.sleep(0.3)
            assert not sending.done()
            assert worlds["a"].host.sessions["c"].under_way < 1_000_000
            await worlds["a"].peer("b").send("y", body=bytes(1_000_000))
            await worlds["b"].peer("a").receive("y")
            sending.cancel()
            carrier.close()
            bulk.close()

    asyncio.run(run())

"""Control frames with any content: they close their own connection at most, and the node goes on.

Every field of every frame is replaced by values of wrong types and sizes, and by random ones.
"""

import asyncio
import gc
import json
import logging
import random
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, suppress
from typing import Any

import pytest

from atoll.errors import FrameError, InvitationError
from atoll.world.base import Lane
from atoll.world.live import dialer as dialer_module
from atoll.world.live.carrier import TcpCarrier, secure
from atoll.world.live.frames import HEAD_BYTES, Kind, head_of
from atoll.world.live.join import ask_for_report, ask_for_seat
from atoll.world.live.keys import Identity, Invitation
from atoll.world.live.tunnel import pack_names
from atoll.world.live.world import LiveWorld
from tests.world.live.loopback import INVITATION, make_node, nodes

LONG = "x" * 600_000
WRONG: list[Any] = [
    *(None, True, -1, 0, 2**63, 2**64, 10**400, 1e308, -0.5, float("inf"), float("nan")),
    *("", "x", "\0", "\ud800", LONG, [], {}, [[]], [["h", 1]], [[LONG, 1]], [["h", 2**64]], [["a\0b", 1]]),
    *({"b": LONG}, {"b": float("nan")}, {"b": [["h", -1]]}, {"b": {"rate": "x"}}, {"b": [[["x"] * 9]]}),
]
IDENTITY = Identity(INVITATION.secret)
HELLO: dict[str, Any] = {
    "run": INVITATION.run_id,
    "name": "c",
    "id": IDENTITY.id,
    "lane": "control",
    "life": 7,
    "your_life": 0,
    "have": [0, 0],
    "listen": [],
}
ASKED: dict[str, Any] = {"run": INVITATION.run_id, "id": IDENTITY.id, "seat": "c"}
NEWS: dict[str, Any] = {"reaches": {"b": 0.1}, "addresses": {"b": []}, "said": {}, "step_s": 0.1, "links": {}}
SEAT: dict[str, Any] = {"name": "c", "card": {}, "addresses": {"a": [["h", 1]]}, "age_s": 1.0}


def variants(good: dict[str, Any], draw: random.Random) -> Iterator[bytes]:
    """Frames that are like a good one but for something."""
    for key in good:
        for value in WRONG:
            yield json.dumps({**good, key: value}).encode()
        yield json.dumps({name: value for name, value in good.items() if name != key}).encode()
    for _ in range(20):
        yield json.dumps({key: draw.choice([value, *WRONG]) for key, value in good.items()}).encode()
    yield from (b"", b"[]", b"3", b"[" * 4000, b'{"a":' * 3000, b"\xff\xfe", b"{}", b"9" * 4090)


async def _connect(address: tuple[str, int]) -> TcpCarrier:
    loop = asyncio.get_running_loop()
    sock = socket.socket()
    sock.settimeout(0)
    await loop.sock_connect(sock, address)
    carrier, _ = await secure(sock, IDENTITY.context(server=False), lane=Lane.CONTROL, dialled=True)
    return carrier


async def _say(address: tuple[str, int], *frames: tuple[Kind, bytes]) -> None:
    """Says what it has, and reads what is answered for a moment."""
    carrier = await _connect(address)
    with suppress(OSError, FrameError, TimeoutError):
        async with asyncio.timeout(0.5):
            for kind, payload in frames:
                await carrier.send(kind, 0, 0, [payload])
                await carrier.receive()
    carrier.close()


@asynccontextmanager
async def goes_on(caplog: pytest.LogCaptureFixture) -> AsyncIterator[dict[str, LiveWorld]]:
    """Nodes a and b, with a place for c.  At the end all their tasks go on, and a good c can still join."""
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: failures.append(context))
    names = ("a", "b", "c")
    with caplog.at_level(logging.WARNING):
        async with nodes(("a", "b"), places=names) as worlds, asyncio.timeout(100):
            host = worlds["a"].host
            lasting = {"news", "listening"}
            for name in ("b", "c"):
                lasting |= {f"dialling {name}", f"dialling {name} for bulk", f"a way around to {name}"}
            yield worlds
            assert {task.get_name() for task in host._tasks if not task.done()} >= lasting
            host.sessions["c"].id = None
            host.addresses.pop("c", None)
            host.registry._reserved.clear()
            invitation = Invitation(INVITATION.secret, tuple(host.own_addresses))
            assert (await ask_for_report(invitation, Identity(INVITATION.secret)))["nodes"].keys() >= {"a", "b"}
            seat = await ask_for_seat(invitation, own := Identity(INVITATION.secret))
            assert seat.name == "c"
            good = make_node("c", names, identity=own)
            good.host.addresses["a"] = host.own_addresses
            for peer in ("a", "b"):
                await good.peer(peer).wait_until(reachable=True)
                await worlds[peer].peer("c").wait_until(reachable=True)
            await good.close(flush_s=0.0)
    gc.collect()
    assert not failures, "a task has ended with an exception"
    assert "has failed" not in caplog.text, "nothing but what was foreseen"


def test_first_frames(caplog: pytest.LogCaptureFixture) -> None:
    draw = random.Random(1)

    async def run() -> None:
        async with goes_on(caplog) as worlds:
            (address,) = worlds["a"].host.own_addresses
            for kind, good in ((Kind.HELLO, HELLO), (Kind.JOIN, ASKED), (Kind.PROBE, ASKED)):
                frames = [(kind, payload) for payload in variants(good, draw) if _fits(kind, payload)]
                for place in range(0, len(frames), 10):
                    await asyncio.gather(*(_say(address, frame) for frame in frames[place : place + 10]))

    asyncio.run(run())
    assert any("malformed HELLO frame: life is" in message for message in caplog.messages)
    assert all(message.startswith(("127.0.0.1 is refused", "c is refused")) for message in caplog.messages)


def _fits(kind: Kind, payload: bytes) -> bool:
    try:
        head_of(kind, 0, 0, [payload], encrypted=True)
    except FrameError:
        return False
    return True


def test_frames_of_a_node_that_was_let_in(caplog: pytest.LogCaptureFixture) -> None:
    draw = random.Random(2)
    frames = [(Kind.NEWS, payload) for payload in variants(NEWS, draw)]
    frame = head_of(Kind.HELLO, 0, 0, [b"{}"], encrypted=True) + b"{}"
    for sender, receiver in (("b", "a"), ("c", "a"), ("nobody", "a"), ("c", "b"), ("c", "nobody"), ("", "")):
        inside = (frame, frame[:HEAD_BYTES], bytes(HEAD_BYTES), draw.randbytes(HEAD_BYTES + 9))
        frames += [(Kind.RELAY, pack_names(sender, receiver) + each) for each in inside]
    frames += [(kind, draw.randbytes(size)) for kind in Kind for size in (0, 1, 60, 900)]
    frames = [each for each in frames if _fits(*each)]

    async def run() -> None:
        async with goes_on(caplog) as worlds:
            (address,) = worlds["a"].host.own_addresses
            host = worlds["a"].host
            for life, (kind, payload) in enumerate(frames, 1):
                while host.sessions["c"].reachable:  # noqa: ASYNC110 - the one before is let go
                    await asyncio.sleep(0.01)
                hello = json.dumps({**HELLO, "life": life}).encode()
                carrier = await _connect(address)
                await carrier.send(Kind.HELLO, payload=[hello])
                assert (await carrier.receive())[0].kind is Kind.WELCOME
                with suppress(OSError):
                    await carrier.send(kind, draw.choice([0, 1, 2**64 - 1]), draw.choice([0, 2**64 - 1]), [payload])
                    await carrier.send(Kind.BYE)
                    while True:
                        await carrier.receive()
                carrier.close()
            assert worlds["a"].peer("b").reachable

    asyncio.run(run())
    assert any(message.startswith("c is refused: malformed NEWS frame") for message in caplog.messages)


class Fake:
    """A listener that answers every first frame with the next of its payloads."""

    def __init__(self, kind: Kind, payloads: list[bytes]) -> None:
        self._kind = kind
        self.left = payloads
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._listening.settimeout(0)
        self.address: tuple[str, int] = self._listening.getsockname()[:2]
        self._task = asyncio.create_task(self._serve())

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        while self.left:
            sock, _ = await loop.sock_accept(self._listening)
            sock.settimeout(0)
            with closing(sock), suppress(OSError, FrameError):
                carrier, _ = await secure(sock, IDENTITY.context(server=True), lane=Lane.CONTROL, dialled=False)
                await carrier.receive()
                await carrier.send(self._kind, payload=[self.left.pop()])
                await carrier.receive()

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._listening.close()


def test_answers_to_who_dials(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialer_module, "DIAL_EVERY_S", 0.01)
    monkeypatch.setattr(dialer_module, "LATER_S", 0.01)
    monkeypatch.setattr(dialer_module, "REFUSED_S", 0.0)
    draw = random.Random(3)

    async def run() -> None:
        async with goes_on(caplog) as worlds:
            payloads = [each for each in variants({**HELLO, "name": "c"}, draw) if _fits(Kind.WELCOME, each)]
            fake = Fake(Kind.WELCOME, draw.sample(payloads, len(payloads) // 2))  # each takes a handshake
            worlds["a"].host.addresses["c"] = [fake.address]
            while fake.left:
                worlds["a"].host.addresses["c"] = [fake.address]  # a good answer may name others
                await asyncio.sleep(0.01)
            await fake.close()
            worlds["a"].host.addresses["c"] = []
            while worlds["a"].host.sessions["c"].reachable:  # noqa: ASYNC110 - a good answer is let in
                await asyncio.sleep(0.05)
            assert worlds["a"].peer("b").reachable

    asyncio.run(run())


def test_answers_to_who_asks_for_a_seat() -> None:
    draw = random.Random(4)

    async def run() -> None:
        payloads = [each for each in variants(SEAT, draw) if _fits(Kind.SEAT, each)]
        fake = Fake(Kind.SEAT, payloads)
        refused = 0
        invitation = Invitation(INVITATION.secret, (fake.address,))
        for _ in range(len(payloads)):
            try:
                seat = await ask_for_seat(invitation, Identity(INVITATION.secret))
            except InvitationError:
                refused += 1
            else:
                assert len(seat.name) <= 256
        await fake.close()
        assert refused > 60

    asyncio.run(run())


def test_a_large_piece_of_news_does_not_shut_the_door(caplog: pytest.LogCaptureFixture) -> None:
    """A NEWS frame of 600 kB was kept and told on, and no newcomer got an answer any more."""

    async def run() -> None:
        async with goes_on(caplog) as worlds:
            (address,) = worlds["a"].host.own_addresses
            wide = "é" * 300_000  # 600 kB here, and three times that where it is told on
            for key, value in (
                ("addresses", {"c": [[wide, 1]]}),
                ("addresses", {"b": [[LONG, 1]]}),
                ("links", {"b": LONG}),
                ("links", {"x": LONG}),
            ):
                await _say(
                    address,
                    (Kind.HELLO, json.dumps({**HELLO, "life": random.randrange(1, 1 << 40)}).encode()),
                    (Kind.NEWS, json.dumps({**NEWS, key: value}, ensure_ascii=False).encode()),
                )
                await worlds["a"].peer("c").wait_until(reachable=False)
            await asyncio.sleep(1.5)  # news are told on
            assert not any(LONG in str(each) for each in worlds["a"].host.addresses.values())
            assert len(json.dumps(worlds["a"].host.registry.report())) < 10_000

    asyncio.run(run())

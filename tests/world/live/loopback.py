"""Live nodes in one process, over loopback."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from atoll.trace import Event
from atoll.world.live.keys import Identity, Invitation
from atoll.world.live.world import LiveWorld

T = TypeVar("T")
INVITATION = Invitation(bytes(range(32)), ())


class Events:
    """A trace that is kept."""

    def __init__(self) -> None:
        self.all: list[Event] = []

    def record(self, event: Event) -> None:
        self.all.append(event)

    def flush(self) -> None:
        pass


def make_node(
    name: str,
    names: Sequence[str],
    *,
    encrypted: bool = True,
    step_s: float = 0.01,
    congestion: str = "",
    identity: Identity | None = None,
) -> LiveWorld:
    """A node that listens on a free port."""
    world = LiveWorld(
        name,
        names,
        INVITATION,
        identity or Identity(INVITATION.secret),
        trace=Events(),
        step_s=step_s,
        encrypted=encrypted,
        congestion=congestion,
    )
    listening = socket.create_server(("127.0.0.1", 0))
    world.host.own_addresses = [listening.getsockname()[:2]]
    world.host.listener.listen(listening)
    return world


def introduce(worlds: Sequence[LiveWorld]) -> None:
    """Tells all where all are."""
    for world in worlds:
        for other in worlds:
            if other is not world:
                world.host.addresses[other.name] = list(other.host.own_addresses)


@asynccontextmanager
async def nodes(
    names: Sequence[str], *, encrypted: bool = True, places: Sequence[str] = ()
) -> AsyncIterator[dict[str, LiveWorld]]:
    """Nodes that all reach each other; there may be places for more."""
    worlds = {name: make_node(name, places or names, encrypted=encrypted) for name in names}
    introduce(list(worlds.values()))
    try:
        async with asyncio.timeout(20):
            for world in worlds.values():
                for name in names:
                    if name != world.name:
                        await world.peer(name).wait_until(reachable=True)
        yield worlds
    finally:
        await asyncio.gather(*(world.close(flush_s=0.2) for world in worlds.values()))


def run_live(
    program: Callable[[LiveWorld], Awaitable[T]], names: Sequence[str], *, encrypted: bool = True
) -> dict[str, T]:
    """Runs a node program on all nodes; what each returns."""

    async def run() -> dict[str, T]:
        async with nodes(names, encrypted=encrypted) as worlds, asyncio.timeout(30):
            results = await asyncio.gather(*(program(world) for world in worlds.values()))
            return dict(zip(worlds, results, strict=True))

    return asyncio.run(run())


class Cable:
    """A cable that can be pulled: a port that leads to another one.  While it is pulled it swallows what comes, as a
    network that is down does, and nobody is told.
    """

    def __init__(self, to: tuple[str, int]) -> None:
        self._to = to
        self.is_pulled = False
        self.carried = 0
        """Bytes that got through, both ways."""
        self.bytes_a_second: float | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._sockets: list[socket.socket] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._listening.settimeout(0)
        self.address: tuple[str, int] = self._listening.getsockname()[:2]
        self._spawn(self._accept())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            near, _ = await loop.sock_accept(self._listening)
            near.settimeout(0)
            self._sockets.append(near)
            if not self.is_pulled:
                far = socket.socket()
                far.settimeout(0)
                self._sockets.append(far)
                await loop.sock_connect(far, self._to)
                self._spawn(self._carry(near, far))
                self._spawn(self._carry(far, near))

    async def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        cut = False
        try:
            while data := await loop.sock_recv(source, 1 << 16):
                if self.is_pulled:
                    cut = True
                if cut:
                    continue  # a connection that has lost bytes is of no use any more, and nobody knows
                if self.bytes_a_second:
                    await asyncio.sleep(len(data) / self.bytes_a_second)
                self.carried += len(data)
                await loop.sock_sendall(sink, data)
            if not cut:
                sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for sock in [self._listening, *self._sockets]:
            sock.close()

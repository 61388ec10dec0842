"""A carrier that is closed while it sends and receives."""

import asyncio
import socket
from typing import Any

import pytest

from atoll.world.base import Lane
from atoll.world.live.carrier import Carrier, secure
from atoll.world.live.frames import Kind


async def both_ends() -> tuple[Carrier, socket.socket]:
    """A carrier, and the other end of its connection, which reads nothing."""
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)  # or it takes in megabytes
    server.bind(("127.0.0.1", 0))
    server.listen()
    loop = asyncio.get_running_loop()
    dialled = socket.socket()
    dialled.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
    dialled.settimeout(0)
    await loop.sock_connect(dialled, server.getsockname())
    accepted, _ = server.accept()
    server.close()
    carrier, _ = await secure(dialled, None, lane=Lane.BULK, dialled=True)
    return carrier, accepted


@pytest.mark.parametrize("by", ["closing", "cancelling"])
def test_whoever_waits_is_woken_and_the_loop_complains_of_nothing(by: str) -> None:
    """Its socket was closed while the loop still watched it for reading and for writing."""
    complaints: list[dict[str, Any]] = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        for _ in range(20):
            carrier, other = await both_ends()
            reading = asyncio.create_task(carrier.receive())
            writing = asyncio.create_task(carrier.send(Kind.PART, payload=[bytes(1 << 22)]))
            await asyncio.sleep(0.01)
            assert not reading.done()
            assert not writing.done(), "the other end reads nothing"
            carrier.close()
            if by == "cancelling":
                reading.cancel()
                writing.cancel()
            async with asyncio.timeout(5):
                for task in (reading, writing):
                    with pytest.raises((OSError, asyncio.CancelledError)):
                        await task
            other.close()
        await asyncio.sleep(0.05)

    asyncio.run(run())
    assert complaints == []

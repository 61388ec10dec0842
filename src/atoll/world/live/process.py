"""A process that is one node: `python -m atoll.world.live.process FILE`.

The file holds the node's name, the addresses of its peers, and the program to run: `module:function`, a function of a
world and of settings that returns a coroutine.  The function is called before the run begins.  The process prints
`ready` when it is connected, reads the start time from stdin, and writes the program's result beside its trace.
SIGTERM cancels the program; the node then leaves the run cleanly.
"""

import asyncio
import contextlib
import importlib
import json
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from atoll.trace import Trace
from atoll.world.live.keys import Address, Identity, Invitation
from atoll.world.live.world import LiveWorld

__all__ = ["NodeFile", "open_world"]

CONNECT_S = 30.0


@dataclass(frozen=True, kw_only=True)
class NodeFile:
    """The input of a node process."""

    name: str
    names: tuple[str, ...]
    secret: str
    listen: Address
    addresses: dict[str, Address]
    """The addresses of its peers."""
    announces: bool = True
    """Whether it announces its address to other nodes."""
    program: str
    settings: dict[str, Any] = field(default_factory=dict)
    folder: str
    """The folder for its trace, its key and its result."""
    seed: int = 0
    step_s: float = 0.0
    encrypted: bool = True
    congestion: str = ""
    """The TCP congestion control; empty: the system's default."""
    begin_at: float | None = None
    """When the run began; `None`: the node reads it from stdin."""
    life: int = 0
    """How often it has restarted."""

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> "NodeFile":
        found = json.loads(path.read_text())
        found["names"] = tuple(found["names"])
        found["listen"] = tuple(found["listen"])
        found["addresses"] = {name: tuple(address) for name, address in found["addresses"].items()}
        return cls(**found)

    @property
    def trace(self) -> Path:
        return Path(self.folder) / f"node.{self.name}.{self.life}.jsonl"

    @property
    def result(self) -> Path:
        return Path(self.folder) / f"node.{self.name}.json"


@contextlib.asynccontextmanager
async def open_world(file: NodeFile) -> AsyncIterator[tuple[LiveWorld, Callable[[], Awaitable[None]]]]:
    """Yields the world of a node file, and a function that waits until the run has begun."""
    invitation = Invitation(bytes.fromhex(file.secret), ())
    identity = Identity(invitation.secret, Path(file.folder) / f"node.{file.name}.key")
    anew = file.begin_at is not None
    with Trace(file.trace) as trace:
        world = LiveWorld(
            file.name,
            file.names,
            invitation,
            identity,
            trace=trace,
            seed=file.seed,
            begin_at=file.begin_at,
            is_late=anew,
            step_s=file.step_s,
            encrypted=file.encrypted,
            congestion=file.congestion,
        )
        world.host.listener.listen(socket.create_server(file.listen))
        world.host.own_addresses = [file.listen] if file.announces else []
        for name, address in file.addresses.items():
            world.host.addresses[name] = [address]

        async def begin() -> None:
            if anew:
                return
            await _wait_for_all(world)
            print("ready", flush=True)  # noqa: T201 - read by the process that started this one
            line = await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
            world.begin_at = float(line)
            await asyncio.sleep(max(0.0, world.begin_at - time.monotonic()))

        try:
            yield world, begin
        finally:
            await world.close()


async def run_program(file: NodeFile) -> None:
    module, _, function = file.program.partition(":")
    program = getattr(importlib.import_module(module), function)
    async with open_world(file) as (world, begin):
        work = program(world, file.settings)
        await begin()
        running = asyncio.ensure_future(work)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            file.result.write_text(json.dumps(await running))


async def _wait_for_all(world: LiveWorld) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CONNECT_S):
            for name in world.peer_names:
                await world.peer(name).wait_until(reachable=True)


if __name__ == "__main__":
    asyncio.run(run_program(NodeFile.read(Path(sys.argv[1]))))

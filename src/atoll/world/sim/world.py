"""One node's interface to a simulation."""

import asyncio
import json
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from atoll.errors import UnknownPeer, nearest
from atoll.network import Node
from atoll.seeds import derive, stream
from atoll.trace import Computed, Event
from atoll.world.base import Lane, Message, World
from atoll.world.hearing import refuse
from atoll.world.inbox import Mailboxes, Waiter
from atoll.world.sim.peer import Order, SimPeer, SimulationView

__all__ = ["SimWorld"]

T = TypeVar("T")


class Gate:
    """Makes tasks wait while it is shut."""

    __slots__ = ("_shut", "_simulation")

    def __init__(self, simulation: SimulationView) -> None:
        self._simulation = simulation
        self._shut: asyncio.Future[None] | None = None

    def turn(self, *, shut: bool) -> None:
        if shut:
            self._shut = self._shut or self._simulation.loop.create_future()
        elif self._shut:
            opened, self._shut = self._shut, None
            opened.set_result(None)

    async def wait(self) -> None:
        while self._shut:
            await asyncio.wait([self._shut])


class SimWorld(World):
    """One node's view of a simulation."""

    __slots__ = (
        "_helper",
        "_hung",
        "_mailboxes",
        "_node",
        "_orders",
        "_peers",
        "_processor",
        "_random",
        "_sent_bytes",
        "_stalled",
        "_torch_states",
        "began_s",
        "simulation",
        "slowness",
    )

    def __init__(self, simulation: SimulationView, node: Node) -> None:
        self.simulation = simulation
        self._node = node
        self._mailboxes = Mailboxes(self._standing_still, lambda message: refuse(self, message))
        self._orders: dict[tuple[str, Lane], Order] = {}
        self._peers: dict[str, SimPeer] = {}
        self._processor: asyncio.Lock | None = None
        self._helper: asyncio.Lock | None = None
        self._random: random.Random | None = None
        self._sent_bytes = 0
        self._stalled = Gate(simulation)
        self._hung = Gate(simulation)
        self._torch_states: list[Any] = []
        self.slowness = 1.0
        self.began_s = 0.0

    @property
    def name(self) -> str:
        return self._node.name

    @property
    def now(self) -> float:
        return self.simulation.loop.time()

    @property
    def is_late(self) -> bool:
        return self.began_s > 0

    @property
    def random(self) -> random.Random:
        if self._random is None:
            self._random = stream(self.simulation.seed, "node", self.name)
        return self._random

    def save(self) -> bytes:
        torch_states = [bytes(state.numpy()).hex() for state in self._torch_states]
        state = {"random": self.random.getstate(), "torch": torch_states, "sent_bytes": self._sent_bytes}
        return json.dumps(state).encode()

    def load(self, saved: bytes) -> None:
        found = json.loads(saved)
        version, numbers, gauss = found["random"]
        self.random.setstate((version, tuple(numbers), gauss))
        torch = sys.modules["torch"]
        self._torch_states = [torch.frombuffer(bytearray.fromhex(each), dtype=torch.uint8) for each in found["torch"]]
        self._sent_bytes = found["sent_bytes"]

    @property
    def sent_bytes(self) -> int:
        return self._sent_bytes

    def hand_over(self, size: int) -> None:
        self._sent_bytes += size

    @property
    def peer_names(self) -> Sequence[str]:
        return [name for name in self.simulation.node_names if name != self.name]

    def peer(self, name: str) -> SimPeer:
        peer = self._peers.get(name)
        if peer is None:
            if name == self.name:
                raise UnknownPeer(f"{name!r} is this node itself, not one of its peers")
            if name not in self.simulation.worlds:
                raise UnknownPeer(f"{self.name} has no peer {name!r}; {nearest(name, self.peer_names)}")
            peer = self._peers[name] = SimPeer(self, name)
        return peer

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self._standing_still()

    def stall(self, *, on: bool) -> None:
        """Freezes the node at its next call to the world, or lets it resume."""
        self._stalled.turn(shut=on)

    def hang(self, *, on: bool) -> None:
        """Stops the node's computation, or lets it resume."""
        self._hung.turn(shut=on)

    async def _standing_still(self) -> None:
        await self._stalled.wait()

    def forget(self) -> None:
        """Prepares a restart of the node: messages that had arrived before are dropped."""
        self._mailboxes.clear()
        self._processor = self._helper = None
        self._torch_states = []

    async def compute(self, work: Callable[[], T], *, steps: float = 1.0) -> T:
        if self._processor is None:
            self._processor = asyncio.Lock()
        async with self._processor:
            since = self.now
            with self._own_torch_randomness():
                result = work()
            await asyncio.sleep(steps * self._node.step_s * self.slowness)
            await self._standing_still()
            await self._hung.wait()
            self.record(Computed(at=self.now, node=self.name, since=since, steps=steps))
            return result

    async def aside(self, work: Callable[[], T]) -> T:
        return work()

    async def offload(self, work: Callable[[], T], *, values: int = 0) -> T:
        if not (values and self._node.encode_s):
            return work()
        if self._helper is None:
            self._helper = asyncio.Lock()
        async with self._helper:  # one thread
            result = work()
            await asyncio.sleep(values * 1e-6 * self._node.encode_s * self.slowness)
            return result

    @contextmanager
    def _own_torch_randomness(self) -> Iterator[None]:
        """Puts the node's own random state of torch in place while it computes: nodes share a process, and torch has
        one random state for each process.
        """
        torch = sys.modules.get("torch")
        if torch is None:
            yield
            return
        generators = [torch.default_generator]
        if torch.cuda.is_initialized():
            generators += torch.cuda.default_generators
        outside = [each.get_state() for each in generators]
        seed = derive(self.simulation.seed, "torch", self.name) % 2**63
        for place, generator in enumerate(generators):
            if place < len(self._torch_states):
                generator.set_state(self._torch_states[place])
            else:
                generator.manual_seed(seed)
        try:
            yield
        finally:
            self._torch_states = [each.get_state() for each in generators]
            for generator, state in zip(generators, outside, strict=True):
                generator.set_state(state)

    async def receive(self, channel: str) -> Message:
        return await self.receive_from(None, channel)

    async def receive_from(self, sender: str | None, channel: str) -> Message:
        return await self._mailboxes.receive(sender, channel)

    def order(self, sender: str, lane: Lane) -> Order:
        return self._orders.setdefault((sender, lane), Order())

    def deliver(self, message: Message) -> None:
        self._mailboxes.deliver(message)

    def messages_left(self) -> int:
        """How many messages have arrived and were not received."""
        return len(self._mailboxes)

    def waiters(self) -> list[Waiter]:
        return self._mailboxes.waiters()

    def record(self, event: Event) -> None:
        self.simulation.record(event)

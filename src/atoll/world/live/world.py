"""The world of a live node: real time and real links."""

import asyncio
import json
import math
import random
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from atoll.errors import UnknownPeer, nearest
from atoll.seeds import derive, stream
from atoll.trace import Computed, Event, MessageRefused, ReachChanged, Recorder, Transferred, WayMeasured
from atoll.world.base import Buffer, Lane, Message, Peer, World, frame_bytes
from atoll.world.hearing import refuse
from atoll.world.inbox import Mailboxes
from atoll.world.live.frames import Opening
from atoll.world.live.helpers import Helpers, helper_count
from atoll.world.live.host import Host
from atoll.world.live.keys import Identity, Invitation
from atoll.world.live.queues import Outgoing
from atoll.world.live.session import Session

__all__ = ["LivePeer", "LiveWorld"]

T = TypeVar("T")
FLUSH_S = 0.2
MEASURED_EVERY_S = 2.0
FEW_VALUES = 1 << 15


class LiveWorld(World):
    """One node's view of a run on real links.

    Args:
        name: the node's name.
        names: the names of all seats, in the same order on every node.
        invitation: the run's secret.
        identity: the node's key.
        trace: records the events.
        seed: the run's seed.
        begin_at: when the run began or begins, on this machine's monotonic clock.
        is_late: whether the run began before this node did.
        is_founder: whether the run starts from this node's state; by default true if the node is not late.
        step_s: the minimum duration of a training step: to imitate a slower machine, the node waits for the rest.
        encrypted: whether to use TLS.
        congestion: the TCP congestion control; empty: the system's default.
    """

    def __init__(
        self,
        name: str,
        names: Sequence[str],
        invitation: Invitation,
        identity: Identity,
        *,
        trace: Recorder,
        seed: int = 0,
        begin_at: float | None = None,
        is_late: bool = False,
        is_founder: bool | None = None,
        step_s: float = 0.0,
        encrypted: bool = True,
        congestion: str = "",
    ) -> None:
        self._name = name
        self._names = tuple(names)
        self._trace = trace
        self._recorded: deque[Event] = deque()
        self._seed = seed
        self.begin_at = time.monotonic() if begin_at is None else begin_at
        self._is_late = is_late
        self._is_founder = not is_late if is_founder is None else is_founder
        self.step_s = step_s
        self._random = stream(seed, "node", name)
        self._mailboxes = Mailboxes(_at_once, lambda message: refuse(self, message))
        self._computing = asyncio.Lock()
        self._loop, self._loop_thread = asyncio.get_running_loop(), threading.get_ident()
        self.slowness: Callable[[float], float] = lambda _now: 1.0
        """The factor by which this node is slowed down at a given time."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="training")
        self.helpers = Helpers(helper_count())
        self._is_torch_seeded = False
        self._sent_before = 0
        self.host = Host(
            name,
            names,
            invitation,
            identity,
            deliver=self._deliver,
            encrypted=encrypted,
            congestion=congestion,
            on_reach=self._reach_changed,
            on_refused=self._refused,
        )
        self.host.age = lambda: self.now
        self._telling = [
            asyncio.create_task(self._keep_flushing(), name="flushing the trace"),
            asyncio.create_task(self._keep_measuring(), name="recording ways"),
        ]
        self._peers = {each: LivePeer(self, self.host.sessions[each]) for each in names if each != name}

    @property
    def name(self) -> str:
        return self._name

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all seats."""
        return self._names

    @property
    def seed(self) -> int:
        """The run's seed."""
        return self._seed

    @property
    def now(self) -> float:
        return time.monotonic() - self.begin_at

    @property
    def is_late(self) -> bool:
        return self._is_late

    @property
    def is_founder(self) -> bool:
        return self._is_founder

    @property
    def random(self) -> random.Random:
        return self._random

    def save(self) -> bytes:
        torch = sys.modules.get("torch")
        states = [bytes(torch.default_generator.get_state().numpy()).hex()] if torch else []
        found = {"random": self._random.getstate(), "torch": states, "sent_bytes": self.sent_bytes}
        return json.dumps(found).encode()

    def load(self, saved: bytes) -> None:
        found = json.loads(saved)
        version, numbers, gauss = found["random"]
        self._random.setstate((version, tuple(numbers), gauss))
        torch = sys.modules["torch"]
        for state in found["torch"]:
            torch.default_generator.set_state(torch.frombuffer(bytearray.fromhex(state), dtype=torch.uint8))
            self._is_torch_seeded = True
        self._sent_before = found["sent_bytes"]

    @property
    def sent_bytes(self) -> int:
        return self._sent_before + self.host.sent_bytes

    @property
    def peer_names(self) -> Sequence[str]:
        return [name for name in self._names if name != self._name]

    def peer(self, name: str) -> "LivePeer":
        if name == self._name:
            raise UnknownPeer(f"{name!r} is this node itself, not one of its peers")
        if name not in self._peers:
            raise UnknownPeer(f"{self._name} has no peer {name!r}; {nearest(name, self.peer_names)}")
        return self._peers[name]

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def compute(self, work: Callable[[], T], *, steps: float = 1.0) -> T:
        async with self._computing:
            since = self.now
            self._seed_torch()
            result = await self.aside(work)
            left = since + steps * self.step_s * self.slowness(since) - self.now
            if left > 0:
                await asyncio.sleep(left)
            self.record(Computed(at=self.now, node=self._name, since=since, steps=steps))
            if steps > 0:
                a_step_s = (self.now - since) / steps
                self.host.step_s += (a_step_s - self.host.step_s) * (0.1 if self.host.step_s else 1.0)
            return result

    async def aside(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def offload(self, work: Callable[[], T], *, values: int = 0) -> T:
        if 0 < values < FEW_VALUES:  # faster than another thread
            return work()
        return await self.helpers.run(work)

    def _seed_torch(self) -> None:
        """Seeds torch once, with the node's own seed, which is the same in every world."""
        torch = sys.modules.get("torch")
        if torch is not None and not self._is_torch_seeded:
            torch.manual_seed(derive(self._seed, "torch", self._name) % 2**63)
            self._is_torch_seeded = True

    async def receive(self, channel: str) -> Message:
        return await self._mailboxes.receive(None, channel)

    async def receive_from(self, sender: str, channel: str) -> Message:
        return await self._mailboxes.receive(sender, channel)

    def record(self, event: Event) -> None:
        """May be called in a training thread; events are written only in the loop's thread."""
        self._recorded.append(event)
        if threading.get_ident() == self._loop_thread:
            self._write_events()

    def _write_events(self) -> None:
        while self._recorded:
            self._trace.record(self._recorded.popleft())

    async def close(self, *, flush_s: float = 1.0) -> None:
        """Leaves the run; first waits up to `flush_s` until reachable peers have received all messages."""
        await self.host.flush(flush_s)
        for task in self._telling:
            task.cancel()
        await self.host.close()
        self._thread.shutdown(wait=False, cancel_futures=True)
        await self.helpers.close()
        self._write_events()

    async def _keep_flushing(self) -> None:
        """Flushes the trace often, so that readers miss only the last moment, even if this process is killed."""
        while True:
            await asyncio.sleep(FLUSH_S)
            self._write_events()
            self._trace.flush()

    async def _keep_measuring(self) -> None:
        while True:
            await asyncio.sleep(MEASURED_EVERY_S)
            for session in self.host.sessions.values():
                carrier, bulk = session.carrier(Lane.CONTROL), session.carrier(Lane.BULK)
                if carrier is not None and session.reachable:
                    self.record(
                        WayMeasured(
                            at=self.now,
                            node=self._name,
                            peer=session.name,
                            via=carrier.via or "",
                            round_trip_s=session.round_trip_s,
                            rate=session.rate,
                            connections=len(bulk.strands) if bulk else 0,
                        )
                    )

    # Callbacks of the host ---

    def _deliver(self, message: Message, session: Session, since: float) -> None:
        began = since - self.begin_at
        self.record(
            Transferred(
                at=self.now,
                sender=session.name,
                receiver=self._name,
                channel=message.channel,
                bytes=frame_bytes(message.channel, message.head, message.body),
                since=began,
                began=began,
            )
        )
        self._mailboxes.deliver(message)

    def _reach_changed(self, name: str, reachable: bool) -> None:  # noqa: FBT001 - a callback
        self.record(ReachChanged(at=self.now, node=self._name, peer=name, reachable=reachable))

    def _refused(self, sender: str, why: str) -> None:
        self.record(MessageRefused(at=self.now, node=self._name, sender=sender, channel="", why=why))


class LivePeer(Peer):
    """A peer on a real link."""

    __slots__ = ("_session", "_world")

    def __init__(self, world: LiveWorld, session: Session) -> None:
        self._world = world
        self._session = session

    @property
    def name(self) -> str:
        return self._session.name

    @property
    def reachable(self) -> bool:
        return self._session.reachable

    @property
    def round_trip_s(self) -> float:
        return self._session.round_trip_s or math.inf

    async def wait_until(self, *, reachable: bool) -> None:
        while self.reachable != reachable:
            await self._world.host.wait_for_change()

    async def send(
        self,
        channel: str,
        head: bytes = b"",
        body: Buffer = b"",
        *,
        lane: Lane = Lane.BULK,
        left: Callable[[float], None] | None = None,
    ) -> None:
        opening = Opening(channel, head, memoryview(body).nbytes).pack()
        message = Outgoing(opening, body, asyncio.get_running_loop().create_future())
        if left is not None:
            message.arrived = partial(self._say_when, left)
        outbox = self._session.outbox(lane)
        outbox.put(message)
        try:
            await message.left
        except asyncio.CancelledError:
            outbox.take_back(message)
            raise

    def _say_when(self, left: Callable[[float], None]) -> None:
        """The acknowledgement of a message comes a round trip after its last byte has left."""
        left(self._world.now - self._session.least_round_trip_s)

    async def receive(self, channel: str) -> Message:
        return await self._world.receive_from(self.name, channel)


async def _at_once() -> None:
    """Returns at once: a live node is paused only when its process is."""

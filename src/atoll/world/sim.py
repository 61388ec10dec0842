"""The simulated world: many nodes in one process, on virtual time, over modelled links.

`Simulation` runs one node program on every node of a network until all have returned, and returns what they returned.
One seed gives one run, to the byte.  A run in which nothing can happen any more raises `Stalled` with a picture of who
waits for what.
"""

import asyncio
import gc
import itertools
import random
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import networkx as nx

from atoll.errors import Stalled, UnknownPeer, nearest
from atoll.network import Link, Network, Node
from atoll.seeds import derive, stream
from atoll.trace import Computed, Event, ReachChanged, Recorder, RunEnded, RunStarted, Transferred
from atoll.version import VERSION
from atoll.world.base import Buffer, Lane, Message, Peer, World, frame_bytes
from atoll.world.connection import Connection, Transfer
from atoll.world.links import Links
from atoll.world.loop import Timer, VirtualLoop
from atoll.world.physics import Physics, notice_s

__all__ = ["SimWorld", "Simulation"]

T = TypeVar("T")


class Simulation:
    """A network with nodes on it, ready to run once.

    Args:
        network: what to simulate.
        seed: where all randomness comes from.
        physics: which models of `atoll.world.physics` are in force.
        trace: where events go; nowhere if there is none.
    """

    def __init__(
        self, network: Network, *, seed: int = 0, physics: Physics | None = None, trace: Recorder | None = None
    ) -> None:
        self.network = network
        self.seed = seed
        self.physics = physics or Physics()
        self._trace = trace
        self.loop = VirtualLoop()
        self.links = Links(network, self.loop, seed=seed, physics=self.physics, record=self.record)
        self.node_names = network.node_names
        self.worlds = {node.name: SimWorld(self, node) for node in network.nodes}
        self._reaches: dict[str, dict[str, _Reach]] = {}
        self._stall: Stalled | None = None
        self._tasks: dict[str, asyncio.Task[Any]] = {}
        self._stopped: str | None = None
        self.loop.is_anyone_waiting = self._is_anyone_waiting
        self.links.on_change.append(self._look_around)

    @property
    def now(self) -> float:
        return self.loop.time()

    def record(self, event: Event) -> None:
        if self._trace:
            self._trace.record(event)

    def stop(self, reason: str) -> None:
        """Ends the run: nodes that still run are cancelled, and the trace says why."""
        self._stopped = self._stopped or reason
        for task in self._tasks.values():
            task.cancel()

    def run(
        self, program: Callable[["SimWorld"], Coroutine[Any, Any, T]], *, limit_s: float | None = None
    ) -> dict[str, T]:
        """Runs `program` on every node at once.

        Args:
            program: an async function of a node's `World`.
            limit_s: virtual seconds after which nodes that still run are stopped.  A run in which nothing can happen
            any more raises at once, limit or not.

        Returns:
            What each node's program returned, by node; a node that was stopped is not in it.

        Raises:
            Stalled: nothing can happen any more.
        """
        names, network = self.node_names, self.network
        links = tuple(link.name for link in network.links)
        self.record(
            RunStarted(
                at=0.0, atoll=VERSION, world="sim", network=network.name, nodes=names, links=links, seed=self.seed
            )
        )
        reason = "finished"
        collecting = gc.get_threshold()
        gc.set_threshold(
            20_000, 20, 20
        )  # many small objects and few cycles: looking for garbage would take a third of the time
        self.links.begin()
        try:
            results, finished = self.loop.run_until_complete(self._run_all(program, limit_s))
            reason = "finished" if finished else self._stopped or "stopped"
        except BaseException as error:
            reason = "stalled" if isinstance(error, Stalled) else f"failed: {type(error).__name__}"
            raise
        finally:
            gc.set_threshold(*collecting)
            self.record(RunEnded(at=self.now, reason=reason))
            if self._trace:
                self._trace.flush()
            self._clean_up()
        return results

    def _clean_up(self) -> None:
        """Ends what nodes have left running, and the loop."""
        left = asyncio.all_tasks(self.loop)
        for task in sorted(left, key=asyncio.Task.get_name):
            task.cancel()
        self.loop.on_stall = self.loop.stop
        self.loop.call_soon(self.loop.stop)
        self.loop.run_forever()
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    async def _run_all(
        self, program: Callable[["SimWorld"], Coroutine[Any, Any, T]], limit_s: float | None
    ) -> tuple[dict[str, T], bool]:
        tasks: dict[str, asyncio.Task[T]] = {}
        self._tasks = tasks

        def stall() -> None:
            if self._stall:
                raise self._stall  # somebody waits on, though cancelled
            self._stall = Stalled(self._picture())
            self.stop("stalled")

        self.loop.on_stall = stall
        if limit_s is not None:
            self.loop.at(limit_s, self.stop, "time limit", background=True)
        try:
            async with asyncio.TaskGroup() as group:
                for name, world in self.worlds.items():
                    tasks[name] = group.create_task(program(world), name=name)
        except* asyncio.CancelledError:
            pass
        except* BaseException as failures:  # noqa: BLE001 - the first failure is the one to tell
            raise _first(failures) from None
        if self._stall:
            raise self._stall
        results = {name: task.result() for name, task in tasks.items() if not task.cancelled()}
        return results, len(results) == len(tasks)

    # Who can be reached ---

    def reach(self, node: str, peer: str) -> "_Reach":
        mine = self._reaches.setdefault(node, {})
        if peer not in mine:
            mine[peer] = _Reach(self, node, peer)
            self._reaches.setdefault(peer, {})
        return mine[peer]

    def _all_reaches(self) -> Iterator["_Reach"]:
        for mine in self._reaches.values():
            yield from mine.values()

    def _look_around(self, link: Link) -> None:
        """A link has changed: those whose way it may be look again."""
        leaf = self.links.routes.leaf_of(link)
        concerned: Iterable[_Reach] = self._all_reaches()
        if leaf is not None:
            others = (mine[leaf] for mine in self._reaches.values() if leaf in mine)
            concerned = itertools.chain(self._reaches.get(leaf, {}).values(), others)
        for reach in concerned:
            reach.look()

    # When nothing happens ---

    def _is_anyone_waiting(self) -> bool:
        """Whether weather can still wake somebody."""
        return self.links.waits_for_weather() or any(reach.may_wake for reach in self._all_reaches())

    def _picture(self) -> str:
        """Who waits for what, drawn."""
        waits = [(world.name, waiter) for world in self.worlds.values() for waiter in world.waiters()]
        stuck = [connection for connection in self.links.busy if connection.queue]
        lines = [
            f"  {node} ◀── {waiter.sender or 'anyone'}: waits to receive {waiter.channel!r}, in {_place(waiter.task)}"
            for node, waiter in waits
        ]
        for each in stuck:
            why = "no path works" if each.state == "stranded" else "a link has no rate"
            size = sum(transfer.bytes for transfer in each.queue)
            lines.append(f"  {each.sender} ──▶ {each.receiver}: waits to send {size:,} bytes, {why}")
        lines += [
            f"  {reach.node} ··· {reach.peer}: waits until it can{'not' if reach.reachable else ''} be reached"
            for reach in self._all_reaches()
            if reach.waiting
        ]
        known = {waiter.task for _, waiter in waits}
        others = sorted(asyncio.all_tasks(self.loop) - known, key=asyncio.Task.get_name)
        lines += [f"  {task.get_name()}: is in {_place(task)}" for task in others if task.get_name() in self.worlds]
        graph = nx.DiGraph([(node, waiter.sender) for node, waiter in waits if waiter.sender])
        graph.add_edges_from((each.sender, each.receiver) for each in stuck)
        if not nx.is_directed_acyclic_graph(graph):
            circle = [edge[0] for edge in nx.find_cycle(graph)]
            lines.append("  a circle: " + " → ".join([*circle, circle[0]]))
        if len(lines) > 40:
            lines = [*lines[:39], f"  and {len(lines) - 39} more"]
        return "\n".join([f"nothing can happen any more at {self.now:.6f} s:", *lines])


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _place(task: "asyncio.Task[Any] | None") -> str:
    """Where a task waits: the innermost function of the program's own."""
    if task is None:
        return "an unknown task"
    frame: FrameType | None = None
    waiting: Any = task.get_coro()
    while waiting is not None and hasattr(waiting, "cr_await"):
        if waiting.cr_frame is not None and not waiting.cr_frame.f_code.co_filename.startswith(_LIBRARY):
            frame = waiting.cr_frame
        waiting = waiting.cr_await
    if frame is None:
        return f"task {task.get_name()!r}"
    return (
        f"{frame.f_code.co_qualname} ({Path(frame.f_code.co_filename).name}:{frame.f_lineno}), task {task.get_name()!r}"
    )


_LIBRARY = (str(Path(__file__).parent), str(Path(asyncio.__file__).parent))


class _Reach:
    """Whether one node has noticed that it can reach another."""

    __slots__ = ("_round_trip_s", "_simulation", "_timer", "_works", "node", "peer", "reachable", "waiting")

    def __init__(self, simulation: Simulation, node: str, peer: str) -> None:
        self._simulation = simulation
        self.node = node
        self.peer = peer
        self._timer: Timer | None = None
        self.waiting: list[asyncio.Future[None]] = []
        round_trip_s = simulation.links.round_trip_s(node, peer)
        self._round_trip_s = round_trip_s or 0.0
        self._works = self.reachable = round_trip_s is not None
        # What it would have noticed by now, had somebody asked before.
        since_s = simulation.links.changed_s(node, peer)
        if simulation.now < since_s + self._delay_s():
            self.reachable = not self._works
            self._timer = simulation.loop.at(since_s + self._delay_s(), self._notice, background=True)

    @property
    def may_wake(self) -> bool:
        """Whether somebody waits for a change that may yet come."""
        if not self.waiting:
            return False
        links = self._simulation.links
        may_change = links.may_close if self.reachable else links.may_open
        return self._timer is not None or may_change(self.node, self.peer)

    def _delay_s(self) -> float:
        return self._round_trip_s if self._works else notice_s(self._round_trip_s)

    def look(self) -> None:
        """A link has changed: in a while the node notices what that means for it."""
        simulation = self._simulation
        works = simulation.links.routes.find(self.node, self.peer) is not None
        if works == self._works:
            return
        self._works = works
        if works:
            self._round_trip_s = simulation.links.round_trip_s(self.node, self.peer) or 0.0
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if works != self.reachable:
            self._timer = simulation.loop.at(simulation.now + self._delay_s(), self._notice, background=True)

    def _notice(self) -> None:
        self._timer = None
        self.reachable = self._works
        self._simulation.record(
            ReachChanged(at=self._simulation.now, node=self.node, peer=self.peer, reachable=self.reachable)
        )
        waiting, self.waiting = self.waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def wait_until(self, *, reachable: bool) -> None:
        while self.reachable != reachable:
            future = self._simulation.loop.create_future()
            self.waiting.append(future)
            try:
                await future
            finally:
                if future in self.waiting:
                    self.waiting.remove(future)


class _Waiter:
    """A receive that has nothing to return yet."""

    __slots__ = ("channel", "sender", "task", "wake")

    def __init__(self, channel: str, sender: str | None, loop: VirtualLoop) -> None:
        self.channel = channel
        self.sender = sender
        self.wake: asyncio.Future[None] = loop.create_future()
        self.task = asyncio.current_task(loop)


class _Mailbox:
    """What has arrived on one channel and was not received yet, and who waits for more.

    A waiter is only woken: it takes its message itself when it runs.  So a receive that is cancelled after its message
    has come leaves the message where it was.
    """

    __slots__ = ("_arrived", "_order", "waiters")

    def __init__(self) -> None:
        self._arrived: dict[str, deque[tuple[int, Message]]] = {}
        self._order = 0
        self.waiters: list[_Waiter] = []

    @property
    def empty(self) -> bool:
        return not self._arrived and not self.waiters

    def put(self, message: Message) -> None:
        self._order += 1
        self._arrived.setdefault(message.sender, deque()).append((self._order, message))
        self.wake_one()

    def wake_one(self) -> None:
        """Wakes the first waiter that has something to take, for each that there is one."""
        for waiter in self.waiters:
            if not waiter.wake.done() and (self._arrived if waiter.sender is None else waiter.sender in self._arrived):
                waiter.wake.set_result(None)
                return

    def get(self, sender: str | None) -> Message | None:
        if sender is None:
            sender = min(self._arrived, key=lambda name: self._arrived[name][0][0], default=None)
        if sender is None or sender not in self._arrived:
            return None
        _, message = self._arrived[sender].popleft()
        if not self._arrived[sender]:
            del self._arrived[sender]
        return message


def _may_take(waiter: _Waiter, sender: str | None) -> bool:
    """Whether a waiter that was woken may be about to take what a receive from `sender` wants: first come, first
    served.
    """
    return waiter.wake.done() and (waiter.sender is None or sender is None or waiter.sender == sender)


class SimPeer(Peer):
    """A peer in the simulated world."""

    __slots__ = ("_bulk", "_control", "_name", "_world")

    def __init__(self, world: "SimWorld", name: str) -> None:
        self._world = world
        self._name = name
        self._bulk: Connection | None = None
        self._control: Connection | None = None

    @property
    def name(self) -> str:
        return self._name

    @property
    def reachable(self) -> bool:
        return self._world.simulation.reach(self._world.name, self._name).reachable

    async def wait_until(self, *, reachable: bool) -> None:
        await self._world.simulation.reach(self._world.name, self._name).wait_until(reachable=reachable)

    def _connection(self, lane: Lane) -> Connection:
        if lane is Lane.BULK:
            if self._bulk is None:
                self._bulk = Connection(self._world.name, self._name)
            return self._bulk
        if self._control is None:
            self._control = Connection(self._world.name, self._name)
        return self._control

    async def send(self, channel: str, head: bytes = b"", body: Buffer = b"", *, lane: Lane = Lane.BULK) -> None:
        world = self._world
        simulation = world.simulation
        connection = self._connection(lane)
        size = frame_bytes(channel, head, body)
        # The sender may use its buffer again as soon as this returns, so what travels is a copy; `bytes` cannot change.
        content = body if isinstance(body, bytes) else bytes(body)
        message = Message(world.name, channel, head, content)
        receiver = simulation.worlds[self._name]

        def deliver(transfer: Transfer) -> None:
            simulation.record(
                Transferred(
                    at=simulation.now,
                    sender=world.name,
                    receiver=receiver.name,
                    channel=channel,
                    bytes=transfer.bytes,
                    since=transfer.offered_s,
                    began=transfer.began_s,
                )
            )
            receiver.deliver(message)

        sent = simulation.loop.create_future()
        transfer = Transfer(size, simulation.physics.wire_bytes(size), sent, deliver, simulation.now)
        world.hand_over(size)
        simulation.links.offer(connection, transfer)
        try:
            await sent
        except asyncio.CancelledError:
            simulation.links.take_back(connection, transfer)
            raise

    async def receive(self, channel: str) -> Message:
        return await self._world.receive_from(self._name, channel)


class SimWorld(World):
    """One node's view of a simulation."""

    __slots__ = ("_mailboxes", "_node", "_peers", "_processor", "_random", "_sent_bytes", "_torch_state", "simulation")

    def __init__(self, simulation: Simulation, node: Node) -> None:
        self.simulation = simulation
        self._node = node
        self._mailboxes: dict[str, _Mailbox] = {}
        self._peers: dict[str, SimPeer] = {}
        self._processor: asyncio.Lock | None = None
        self._random: random.Random | None = None
        self._sent_bytes = 0
        self._torch_state: Any = None

    @property
    def name(self) -> str:
        return self._node.name

    @property
    def now(self) -> float:
        return self.simulation.loop.time()

    @property
    def random(self) -> random.Random:
        if self._random is None:
            self._random = stream(self.simulation.seed, "node", self.name)
        return self._random

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

    async def compute(self, work: Callable[[], T], *, steps: float = 1.0) -> T:
        if self._processor is None:
            self._processor = asyncio.Lock()
        async with self._processor:
            since = self.now
            with self._own_torch_randomness():
                result = work()
            await asyncio.sleep(steps * self._node.step_s)
            self.record(Computed(at=self.now, node=self.name, since=since, steps=steps))
            return result

    @contextmanager
    def _own_torch_randomness(self) -> Iterator[None]:
        """Nodes share a process, and torch has one random state a process: each node's own is put in place while it
        computes.
        """
        torch = sys.modules.get("torch")
        if torch is None:
            yield
            return
        outside = torch.get_rng_state()
        if self._torch_state is None:
            seed = derive(self.simulation.seed, "torch", self.name)
            self._torch_state = torch.Generator().manual_seed(seed % 2**63).get_state()
        torch.set_rng_state(self._torch_state)
        try:
            yield
        finally:
            self._torch_state = torch.get_rng_state()
            torch.set_rng_state(outside)

    async def receive(self, channel: str) -> Message:
        return await self.receive_from(None, channel)

    async def receive_from(self, sender: str | None, channel: str) -> Message:
        mailbox = self._mailboxes.get(channel)
        if mailbox is None:
            mailbox = self._mailboxes[channel] = _Mailbox()
        message = None if any(_may_take(waiter, sender) for waiter in mailbox.waiters) else mailbox.get(sender)
        place = len(mailbox.waiters)
        while message is None:
            waiter = _Waiter(channel, sender, self.simulation.loop)
            mailbox.waiters.insert(place, waiter)
            try:
                await waiter.wake
            except asyncio.CancelledError:
                mailbox.waiters.remove(waiter)
                mailbox.wake_one()  # if it was woken, the message is somebody else's now
                self._tidy(channel, mailbox)
                raise
            place = mailbox.waiters.index(waiter)
            del mailbox.waiters[place]
            message = mailbox.get(sender)
        mailbox.wake_one()
        self._tidy(channel, mailbox)
        return message

    def _tidy(self, channel: str, mailbox: _Mailbox) -> None:
        """Channels may be many and short-lived: an empty mailbox is not kept."""
        if mailbox.empty and self._mailboxes.get(channel) is mailbox:
            del self._mailboxes[channel]

    def deliver(self, message: Message) -> None:
        mailbox = self._mailboxes.get(message.channel)
        if mailbox is None:
            mailbox = self._mailboxes[message.channel] = _Mailbox()
        mailbox.put(message)

    def waiters(self) -> list[_Waiter]:
        return [waiter for mailbox in self._mailboxes.values() for waiter in mailbox.waiters]

    def record(self, event: Event) -> None:
        self.simulation.record(event)

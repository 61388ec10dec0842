"""The simulated world: many nodes in one process, on virtual time, over modelled links.

`Simulation` runs one node program on every node of a network until all have returned, and returns their results.  One
seed gives one run, to the byte.  If nothing can happen any more, it raises `Stalled` with a picture of which node waits
for what.
"""

import asyncio
import gc
import itertools
import logging
import math
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from atoll.errors import Stalled
from atoll.network import Link, Network
from atoll.seeds import stream
from atoll.trace import Event, FaultChanged, ReachChanged, Recorder, RunEnded, RunStarted
from atoll.version import VERSION
from atoll.world.faults import MESSAGE_KINDS, Fault
from atoll.world.sim.connection import Transfer
from atoll.world.sim.deadlock import draw_stall
from atoll.world.sim.links import Links
from atoll.world.sim.loop import VirtualLoop
from atoll.world.sim.peer import Flight, SimPeer
from atoll.world.sim.physics import Physics
from atoll.world.sim.reach import Reach
from atoll.world.sim.world import SimWorld

__all__ = ["Simulation"]

T = TypeVar("T")


class Simulation:
    """A network with nodes on it, ready to run once.

    Args:
        network: the network to simulate.
        seed: the seed of all randomness.
        physics: which models of `atoll.world.sim.physics` are switched on.
        trace: records the events; without one they are dropped.
        faults: the faults of nodes and links.
    """

    def __init__(
        self,
        network: Network,
        *,
        seed: int = 0,
        physics: Physics | None = None,
        trace: Recorder | None = None,
        faults: Sequence[Fault] = (),
    ) -> None:
        self.network = network
        self.seed = seed
        self.physics = physics or Physics()
        self._trace = trace
        self._faults = tuple(faults)
        self.loop = VirtualLoop()
        self.links = Links(network, self.loop, seed=seed, physics=self.physics, record=self.record)
        self.node_names = network.node_names
        self.worlds = {node.name: SimWorld(self, node) for node in network.nodes}
        self._reaches: dict[str, dict[str, Reach]] = {}
        self._reach_changed: asyncio.Future[None] | None = None
        self._waiting_for_reach = 0
        self._relaying: dict[asyncio.Task[None], None] = {}
        self.aloft: dict[tuple[SimPeer, Flight], tuple[str, Transfer] | None] = {}
        """Messages in flight, with their direct peer; and the relay that they were sent to if the link broke."""
        self._stall: Stalled | None = None
        self._tasks: dict[str, asyncio.Task[Any]] = {}
        self._begin_node: Callable[[str], None] = lambda _: None
        self._crashed: dict[str, int] = {}  # by how many faults
        self._stopped: str | None = None
        self._begin_s = 0.0
        self.is_unruly = any(fault.kind in MESSAGE_KINDS for fault in self._faults)
        """Whether messages may arrive twice, late or corrupt."""
        self._unruly: list[Fault] = []
        self._unruliness = stream(seed, "unruly messages")
        self.loop.is_anyone_waiting = self._is_anyone_waiting
        self.links.on_change.append(self._look_around)

    @property
    def now(self) -> float:
        return self.loop.time()

    def record(self, event: Event) -> None:
        if self._trace and event.at >= self._begin_s:
            self._trace.record(event)

    def relay(self, carrying: Coroutine[Any, Any, None], name: str) -> None:
        """Carries a relayed message in a task of its own."""
        task = self.loop.create_task(carrying, name=name)
        self._relaying[task] = None
        task.add_done_callback(self._relaying.pop)

    @property
    def crashed(self) -> frozenset[str]:
        """The nodes that are crashed now."""
        return frozenset(self._crashed)

    def stop(self, reason: str) -> None:
        """Ends the run: nodes that still run are cancelled, and the trace says why."""
        self._stopped = self._stopped or reason
        for task in self._tasks.values():
            task.cancel()

    def run(
        self,
        program: Callable[["SimWorld"], Coroutine[Any, Any, T]],
        *,
        limit_s: float | None = None,
        begin_s: float = 0.0,
    ) -> dict[str, T]:
        """Runs `program` on every node at once.

        Args:
            program: an async function of a node's `World`.
            limit_s: virtual seconds after which nodes that still run are stopped.  A stalled run raises at once, limit
                or not.
            begin_s: when nodes begin; weather and faults have begun before, and the trace begins then.

        Returns:
            What each node's program returned, by node; a node that was stopped is not in it.

        Raises:
            Stalled: nothing can happen any more.
        """
        names, network = self.node_names, self.network
        self._begin_s = begin_s
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
        )  # many small objects and few cycles: garbage collection would take a third of the time
        self.links.begin()
        for fault in self._faults:
            for time, on in ((fault.at, True), (fault.until, False)):
                if time < math.inf:
                    self.links.wiring.faults_to_come += 1
                    self.loop.at(time, self._change_fault, fault, on, background=True)
        try:
            with _quiet():
                results, finished = self.loop.run_until_complete(self._run_all(program, limit_s, begin_s))
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
        """Cancels tasks that nodes have left running, and closes the loop."""
        left = asyncio.all_tasks(self.loop)
        for task in sorted(left, key=asyncio.Task.get_name):
            task.cancel()
        self.loop.on_stall = self.loop.stop
        self.loop.call_soon(self.loop.stop)
        self.loop.run_forever()
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    async def _run_all(
        self, program: Callable[["SimWorld"], Coroutine[Any, Any, T]], limit_s: float | None, begin_s: float
    ) -> tuple[dict[str, T], bool]:
        tasks: dict[str, asyncio.Task[T]] = {}
        self._tasks = tasks

        def stall() -> None:
            if self._stall:
                raise self._stall  # a task still waits, though it was cancelled
            self._stall = Stalled(draw_stall(self))
            self.stop("stalled")

        self.loop.on_stall = stall
        if limit_s is not None:
            self.loop.at(limit_s, self.stop, "time limit", background=True)
        if begin_s:
            await asyncio.sleep(begin_s)
        try:
            async with asyncio.TaskGroup() as group:

                def begin(name: str) -> None:
                    self.worlds[name].began_s = self.now
                    tasks[name] = group.create_task(program(self.worlds[name]), name=name)

                self._begin_node = begin
                for name in self.worlds:
                    if name not in self._crashed:
                        begin(name)
        except* asyncio.CancelledError:
            pass
        except* BaseException as failures:  # noqa: BLE001 - the first failure is the one to report
            raise _first(failures) from None
        if self._stall:
            raise self._stall
        results = {name: task.result() for name, task in tasks.items() if not task.cancelled()}
        return results, len(results) == len(tasks) - len(self._crashed)

    # Faults ---

    def _change_fault(self, fault: Fault, on: bool) -> None:  # noqa: FBT001 - called by a timer
        self.links.wiring.faults_to_come -= 1
        running = [task for name, task in self._tasks.items() if name not in self._crashed]
        if self._stopped or (running and all(task.done() for task in running)):
            return
        self.record(FaultChanged(at=self.now, fault=str(fault), nodes=fault.nodes, on=on))
        if fault.kind in ("crash", "stall"):
            away = {
                pair for name in fault.nodes for other in self.node_names for pair in ((name, other), (other, name))
            }
            pairs = {(one, other) for one, other in away if one != other}
        else:
            pairs = set() if fault.kind in MESSAGE_KINDS else set(fault.pairs)
        if fault.kind in MESSAGE_KINDS:
            (self._unruly.append if on else self._unruly.remove)(fault)
        for name in fault.nodes if fault.kind == "crash" and on else ():
            self._crash(name)
        self.links.block(sorted(pairs), on=on)
        for reach in list(self.reaches()):
            if (reach.node, reach.peer) in pairs:
                reach.look()
        for name in fault.nodes:
            if fault.kind == "slow":
                self.worlds[name].slowness *= fault.factor if on else 1 / fault.factor
            elif fault.kind == "stall":
                self.worlds[name].stall(on=on)
            elif fault.kind == "hang":
                self.worlds[name].hang(on=on)
            elif fault.kind == "crash" and not on and name in self._crashed:
                self._crashed[name] -= 1
                if self._crashed[name] == 0:
                    del self._crashed[name]
                    self._begin_node(name)

    def _crash(self, name: str) -> None:
        """Crashes a node: its state and its unsent messages are lost."""
        if name in self._crashed:
            self._crashed[name] += 1
        task = self._tasks.get(name)
        if name in self._crashed or (task and task.done()):
            return
        self._crashed[name] = 1
        if task is None:  # it has not begun
            return
        task.cancel()
        for task in list(self._relaying):
            if task.get_name() == f"{name} relaying":
                task.cancel()
        self.worlds[name].forget()

    def fates(self, sender: str, receiver: str) -> Iterator[tuple[str, float]]:
        """The faults that apply to a message that arrives now, each with a delay in seconds."""
        for fault in self._unruly:
            if (sender, receiver) in fault.pairs and self._unruliness.random() < fault.share:
                yield fault.kind, fault.seconds * self._unruliness.random()

    # Reach ---

    def reach(self, node: str, peer: str) -> "Reach":
        mine = self._reaches.setdefault(node, {})
        if peer not in mine:
            mine[peer] = Reach(self.links, self.loop, self._noticed, node, peer)
            self._reaches.setdefault(peer, {})
        return mine[peer]

    def _noticed(self, event: ReachChanged) -> None:
        self.record(event)
        if self._reach_changed:
            self._reach_changed.set_result(None)
            self._reach_changed = None
        for (peer, flight), around in list(self.aloft.items()):
            self.aloft[peer, flight] = peer.look_after(flight, around)

    def reach_changed(self) -> "asyncio.Future[None]":
        """A future that is done at the next change of any node's reach."""
        if self._reach_changed is None:
            self._reach_changed = self.loop.create_future()
        return self._reach_changed

    @contextmanager
    def waiting_for_reach(self) -> Iterator[None]:
        """Keeps the run alive while a task waits for any such change and weather may bring one."""
        self._waiting_for_reach += 1
        try:
            yield
        finally:
            self._waiting_for_reach -= 1

    def relays(self, node: str, peer: str) -> bool:
        """Whether messages between two nodes may be relayed: only if they have a link of their own."""
        return self.physics.relays and self.links.routes.own_link(node, peer) is not None

    def way(self, node: str, peer: str, origin: str) -> str | None:
        """The next hop to `peer`: the peer itself, or the nearest third node that reaches both and is not the origin;
        `None` if there is no route.
        """
        if self.reach(node, peer).reachable:
            return peer
        thirds = [
            name
            for name in self.node_names
            if name not in (node, peer, origin)
            and self.reach(node, name).reachable
            and self.reach(name, peer).reachable
        ]
        return min(thirds, key=lambda name: self.length_s(node, name) + self.length_s(name, peer), default=None)

    def length_s(self, node: str, peer: str) -> float:
        """The round-trip time between two nodes now; infinite if there is no path."""
        found = self.links.round_trip_s(node, peer)
        return math.inf if found is None else found

    def reaches(self) -> Iterator["Reach"]:
        for mine in self._reaches.values():
            yield from mine.values()

    def _look_around(self, link: Link) -> None:
        """Called when a link has changed: updates the reach of pairs whose path may use it."""
        leaf = self.links.routes.leaf_of(link)
        concerned: Iterable[Reach] = self.reaches()
        if leaf is not None:
            others = (mine[leaf] for mine in self._reaches.values() if leaf in mine)
            concerned = itertools.chain(self._reaches.get(leaf, {}).values(), others)
        for reach in concerned:
            reach.look()

    # When nothing happens ---

    def _is_anyone_waiting(self) -> bool:
        """Whether weather can still wake a task."""
        if self.links.waits_for_weather() or any(reach.may_wake for reach in self.reaches()):
            return True
        return self.links.wiring.faults_to_come > 0 or (self._waiting_for_reach > 0 and self.links.wiring.may_change())


@contextmanager
def _quiet() -> Iterator[None]:
    """Switches off the log: a simulation would log the messages of thousands of nodes."""
    log = logging.getLogger("atoll")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error

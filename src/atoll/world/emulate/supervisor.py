"""The supervisor: a process that makes the network, starts a process for each node, and is the switch between them.

It is a process of its own because a process with threads may not make namespaces.  Callers use `Emulation` and
`emulate`.
"""

import math
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from atoll.errors import EmulationError
from atoll.network import Network, Node
from atoll.trace import FaultChanged, RunEnded, RunStarted, Trace
from atoll.version import VERSION
from atoll.world.emulate.namespaces import Tap, address_of, become_root_inside, make_tap, set_up_loopback
from atoll.world.emulate.proxy import HOST, Proxies, free_ports
from atoll.world.emulate.switch import Switch, SwitchStats
from atoll.world.faults import MESSAGE_KINDS, Fault
from atoll.world.live.keys import Address
from atoll.world.live.process import NodeFile

__all__ = ["Emulation", "Running", "emulate", "join_nodes"]

PORT = 7700
START_S = 180.0
"""The time that nodes may take to start: nine of them load torch on few cores."""
LEAVE_S = 30.0
MEMORY_EVERY_S = 0.5
CONGESTION = "cubic"
"""The default of most machines, and the one that simulations model; it must not depend on this machine's setting."""
SWITCH_TRACE = "switch.jsonl"
WAYS = ("tun", "veth", "proxy")


@dataclass(frozen=True, kw_only=True)
class Emulation:
    """The configuration of one emulation."""

    network: Network
    program: str
    """The program that nodes run (`atoll.world.live.process`)."""
    process: str = "atoll.world.live.process"
    """The module that runs the program; it gets a node file."""
    settings: dict[str, Any] = field(default_factory=dict)
    folder: Path
    """The folder for nodes' traces and results."""
    seed: int = 0
    faults: tuple[Fault, ...] = ()
    limit_s: float = 600.0
    congestion: str = CONGESTION
    """The congestion control of TCP."""
    by: str = ""
    """How nodes are joined to the switch, one of `WAYS`; if empty, the first that this system allows."""


class Running:
    """A running emulation."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.begin_at = math.inf
        self.stats: SwitchStats | None = None
        self._failure: str | None = None
        self._is_over = False

    def poll(self, seconds: float = 0.0) -> bool:
        """Whether it still runs, after waiting up to this long for news."""
        while not self._is_over and self._connection.poll(seconds):
            seconds = 0.0
            try:
                kind, value = self._connection.recv()
            except EOFError:
                kind, value = "failed", "the supervisor has died"
            if kind == "began":
                self.begin_at = value
            else:
                self._is_over = True
                if kind == "ended":
                    self.stats = value
                else:
                    self._failure = value
        if self._failure:
            raise EmulationError(self._failure)
        return not self._is_over

    @property
    def now(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self.begin_at

    def wait(self) -> SwitchStats:
        """Waits until all nodes have ended."""
        while self.poll(1.0):
            pass
        assert self.stats is not None
        return self.stats

    def stop(self) -> None:
        """Makes all nodes leave."""
        self._connection.send("stop")


@contextmanager
def emulate(what: Emulation) -> Iterator[Running]:
    """Runs an emulation until the end of the block."""
    what.folder.mkdir(parents=True, exist_ok=True)
    context = get_context("spawn")
    mine, theirs = context.Pipe()
    process = context.Process(target=_supervise, args=(what, theirs), name="atoll supervisor")
    process.start()
    theirs.close()
    running = Running(mine)
    try:
        yield running
    finally:
        mine.close()  # the supervisor notices this
        process.join(LEAVE_S + 5)
        if process.is_alive():
            process.kill()
            process.join()


def _supervise(what: Emulation, connection: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started it sends "stop"
    try:
        by, taps = join_nodes(what)
        _Supervisor(what, connection, by, taps).run()
    except EmulationError as error:
        _tell(connection, "failed", str(error))
    except OSError as error:
        _tell(connection, "failed", f"emulation: {error}")


def join_nodes(what: Emulation) -> tuple[str, dict[str, Tap]]:
    """Makes namespaces and devices, with the first method that is allowed."""
    refused = {}
    try:
        become_root_inside()
        set_up_loopback()
    except OSError as error:
        refused["tun"] = refused["veth"] = f"namespaces are not allowed ({error.strerror})"
    lossy = any(way.loss for link in what.network.links for way in (link.there, link.back))
    for by in [what.by] if what.by else [way for way in WAYS if way not in refused]:
        if by in refused:
            break
        if by == "proxy":
            return by, {}
        try:
            names = enumerate(what.network.node_names)
            return by, {name: make_tap(place, segments=not lossy, tunnel=by == "tun") for place, name in names}
        except OSError as error:
            refused[by] = f"{error.strerror} {error.filename or ''}".strip()
    raise EmulationError("; ".join(f"{by}: {why}" for by, why in refused.items()))


def _tell(connection: Connection, kind: str, value: Any) -> None:
    """Sends something to the process that started this one, if it still listens."""
    with suppress(OSError):
        connection.send((kind, value))


class _Supervisor:
    def __init__(self, what: Emulation, connection: Connection, by: str, taps: dict[str, Tap]) -> None:
        self._what = what
        self._connection = connection
        network = what.network
        self._taps = taps
        self._secret = os.urandom(32).hex()
        self._trace = Trace(what.folder / SWITCH_TRACE)
        self._switch = Switch(network, taps, seed=what.seed, trace=self._trace)
        self._switch.stats.by = by
        self._listen: dict[str, Address] = {}
        self._addresses: dict[tuple[str, str], Address] = {}
        self._place_all()
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        self._lives: Counter[str] = Counter()
        self._killed: set[str] = set()
        """Nodes that were killed on purpose."""
        self._returning: set[str] = set()
        """Killed nodes that will be restarted."""
        self._ready: set[str] = set()
        self._begin_at: float | None = None
        self._is_ending = False

    def _place_all(self) -> None:
        """Sets where every node listens, and where it finds each of the others."""
        names = self._what.network.node_names
        if self._taps:
            self._listen = {name: (address_of(place), PORT) for place, name in enumerate(names)}
            self._addresses = {(one, other): self._listen[other] for one in names for other in names if one != other}
            return
        if any(fault.kind in MESSAGE_KINDS for fault in self._what.faults):
            raise EmulationError(
                "packets cannot be corrupted or delayed without namespaces, which this system does not allow"
            )
        ports = dict(zip(names, free_ports(len(names)), strict=True))
        self._listen = {name: (HOST, port) for name, port in ports.items()}
        self._addresses = Proxies(self._switch, ports).addresses

    def run(self) -> None:
        network, what = self._what.network, self._what
        with self._trace:
            self._trace.record(
                RunStarted(
                    at=0.0,
                    atoll=VERSION,
                    world="emulate",
                    network=network.name,
                    nodes=network.node_names,
                    links=tuple(link.name for link in network.links),
                    seed=what.seed,
                )
            )
            for node in network.nodes:
                self._start(node)
            self._switch.watch(self._connection.fileno(), self._hear)
            self._switch.after(START_S, self._give_up)
            self._switch.after(MEMORY_EVERY_S, self._look_at_memory)
            try:
                self._switch.run()
            finally:
                for process in self._nodes.values():
                    process.kill()
            self._trace.record(RunEnded(at=max(0.0, self._switch.now), reason="finished"))
        _tell(self._connection, "ended", self._switch.stats)

    def _start(self, node: Node) -> None:
        what, name = self._what, node.name
        names = what.network.node_names
        file = NodeFile(
            name=name,
            names=names,
            secret=self._secret,
            listen=self._listen[name],
            announces=bool(self._taps),
            addresses={other: self._addresses[name, other] for other in names if other != name},
            program=what.program,
            settings=what.settings,
            folder=str(what.folder),
            seed=what.seed,
            step_s=node.step_s,
            congestion=self._what.congestion if self._taps else "",
            begin_at=self._begin_at,
            life=self._lives[name],
        )
        self._lives[name] += 1
        path = what.folder / f"node.{name}.start.json"
        file.write(path)
        python = sys.executable
        namespace = self._taps[name].namespace if self._taps else -1
        command = [python, "-m", "atoll.world.emulate.enter", str(namespace)]
        command += [python, "-m", what.process, str(path)]
        threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        with (what.folder / f"node.{name}.log").open("ab") as log:
            process = subprocess.Popen(  # noqa: S603 - this program, and files of its own
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                pass_fds=[namespace] if self._taps else [],
                env={**os.environ, **threads},
                start_new_session=True,  # Ctrl-C is for the process that started all this
            )
        self._nodes[name] = process
        assert process.stdout is not None
        self._switch.watch(process.stdout.fileno(), lambda: self._hear_node(name, process))

    # Events ---

    def _hear(self) -> None:
        try:
            self._connection.recv()
        except EOFError:
            self._switch.forget(self._connection.fileno())
        self._end()

    def _hear_node(self, name: str, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdout is not None
        if os.read(process.stdout.fileno(), 4096):
            self._ready.add(name)
            if len(self._ready) == len(self._nodes) and self._begin_at is None:
                self._begin()
            return
        self._switch.forget(process.stdout.fileno())
        status = process.wait()
        if self._nodes.get(name) is process:
            del self._nodes[name]
        if name not in self._killed and status != 0 and not self._is_ending:
            last = (self._what.folder / f"node.{name}.log").read_text(errors="replace").strip().splitlines()[-1:]
            raise EmulationError(f"node {name} has died with status {status}: {' '.join(last)}")
        if not self._nodes and not self._returning:
            self._switch.stop()

    def _begin(self) -> None:
        self._begin_at = time.monotonic() + 0.2
        self._switch.begin(self._begin_at)
        for process in self._nodes.values():
            assert process.stdin is not None
            process.stdin.write(f"{self._begin_at!r}\n".encode())
            process.stdin.flush()
        for fault in self._what.faults:
            for at, on in ((fault.at, True), (fault.until, False)):
                if at < math.inf:
                    self._switch.at(at, lambda fault=fault, on=on: self._change(fault, on=on))  # type: ignore[misc]
        self._switch.at(self._what.limit_s, self._end)
        _tell(self._connection, "began", self._begin_at)

    def _give_up(self) -> None:
        if self._begin_at is None:
            missing = sorted(set(self._what.network.node_names) - self._ready)
            raise EmulationError(f"after {START_S:.0f} s these nodes are not ready: {', '.join(missing)}")

    def _end(self) -> None:
        if self._is_ending:
            return
        self._is_ending = True
        if not self._nodes:
            self._switch.stop()
        for process in self._nodes.values():
            process.send_signal(signal.SIGCONT)
            process.terminate()
        self._returning.clear()
        self._switch.after(LEAVE_S, self._switch.stop)

    # Faults ---

    def _change(self, fault: Fault, *, on: bool) -> None:
        if self._is_ending:
            return
        self._trace.record(FaultChanged(at=self._switch.now, fault=str(fault), nodes=fault.nodes, on=on))
        if fault.pairs and fault.kind not in MESSAGE_KINDS:
            self._switch.block(fault, on=on)
        elif fault.kind in MESSAGE_KINDS:
            self._switch.disturb(fault, on=on)
        elif fault.kind == "crash":
            for name in fault.nodes:
                self._crash(name, fault, on=on)
        elif fault.kind == "stall":
            for name in fault.nodes:
                if name in self._nodes:
                    self._nodes[name].send_signal(signal.SIGSTOP if on else signal.SIGCONT)

    def _crash(self, name: str, fault: Fault, *, on: bool) -> None:
        if on and name in self._nodes:
            self._killed.add(name)
            if fault.until < math.inf:
                self._returning.add(name)
            self._nodes[name].kill()
        elif not on and name in self._returning:
            self._returning.discard(name)
            self._killed.discard(name)
            self._start(next(node for node in self._what.network.nodes if node.name == name))

    def _look_at_memory(self) -> None:
        """Ends a node that uses more memory than its machine has."""
        self._switch.after(MEMORY_EVERY_S, self._look_at_memory)
        if self._begin_at is None:
            return  # before the run begins there is no time to record
        for node in self._what.network.nodes:
            process = self._nodes.get(node.name)
            if node.memory_bytes is None or process is None:
                continue
            try:
                pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
            except (OSError, IndexError):
                continue
            if pages * os.sysconf("SC_PAGE_SIZE") > node.memory_bytes:
                self._killed.add(node.name)
                process.kill()
                fault = f"out of memory {node.name}"
                self._trace.record(FaultChanged(at=self._switch.now, fault=fault, nodes=(node.name,), on=True))

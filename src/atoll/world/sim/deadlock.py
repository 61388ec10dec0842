"""A picture of a stalled simulation: which node waits for what, in which function, and the cycle of waits, if any."""

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import networkx as nx

from atoll.world.sim.links import Links
from atoll.world.sim.loop import VirtualLoop
from atoll.world.sim.reach import Reach
from atoll.world.sim.world import SimWorld

__all__ = ["draw_stall"]


class Stuck(Protocol):
    """The part of a simulation that is drawn."""

    loop: VirtualLoop
    links: Links

    @property
    def now(self) -> float: ...

    @property
    def worlds(self) -> Mapping[str, SimWorld]: ...

    def reaches(self) -> Iterator[Reach]: ...


def draw_stall(simulation: Stuck) -> str:
    """Draws which node waits for what."""
    waits = [(world.name, waiter) for world in simulation.worlds.values() for waiter in world.waiters()]
    stuck = [connection for connection in simulation.links.busy if connection.queue]
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
        for reach in simulation.reaches()
        if reach.waiting
    ]
    known = {waiter.task for _, waiter in waits}
    others = sorted(asyncio.all_tasks(simulation.loop) - known, key=asyncio.Task.get_name)
    lines += [f"  {task.get_name()}: is in {_place(task)}" for task in others if task.get_name() in simulation.worlds]
    graph = nx.DiGraph([(node, waiter.sender) for node, waiter in waits if waiter.sender])
    graph.add_edges_from((each.sender, each.receiver) for each in stuck)
    if not nx.is_directed_acyclic_graph(graph):
        circle = [edge[0] for edge in nx.find_cycle(graph)]
        lines.append("  a circle: " + " → ".join([*circle, circle[0]]))
    if len(lines) > 40:
        lines = [*lines[:39], f"  and {len(lines) - 39} more"]
    return "\n".join([f"nothing can happen any more at {simulation.now:.6f} s:", *lines])


def _place(task: "asyncio.Task[Any] | None") -> str:
    """Where a task waits: its innermost function outside asyncio and the simulator."""
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


_LIBRARY = (str(Path(__file__).parents[1]), str(Path(asyncio.__file__).parent))

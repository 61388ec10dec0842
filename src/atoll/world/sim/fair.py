"""Max-min fair sharing: the rates of flows that share pipes.

An allocation is max-min fair if no flow can get more without taking from one that has no more than it.  Equivalently
(Bertsekas and Gallager, Data Networks, 6.5.2), every flow is at its own cap or has a *bottleneck*: a full pipe on which
no flow has a higher rate.  That condition is local, and so is the work done here: `rebalance` re-computes only the
flows that a change can affect, and then checks, pipe by pipe, that every flow next to them still has a bottleneck; one
that has none joins the computation.  Within it the rates are found by progressive filling: the tightest pipe or cap
fixes its flows, and so on.

Rates and capacities are in bytes a second.  Nothing here depends on time.
"""

import heapq
import math
from collections.abc import Iterable
from typing import Any

__all__ = ["Flow", "Pipe", "rebalance"]

_TOLERANCE = 1e-9


class Pipe:
    """Something with a capacity that flows share: one direction of a link, or of a node's access to the network."""

    __slots__ = ("capacity", "flows", "high", "level", "name", "open", "others", "room")

    def __init__(self, name: str, capacity: float = math.inf) -> None:
        self.name = name
        self.capacity = capacity
        self.flows: dict[Flow, None] = {}
        # Scratch of one rebalancing: unassigned capacity; chosen flows without a rate yet; whether there are others;
        # the highest assigned rate, and the rate of flows whose bottleneck is here.
        self.room = 0.0
        self.open = 0
        self.others = False
        self.high = 0.0
        self.level = -1.0

    def __repr__(self) -> str:
        return f"Pipe({self.name!r}, {self.capacity:g})"


class Flow:
    """A sender along pipes, as fast as they and its own cap allow."""

    __slots__ = ("bottleneck", "cap", "fixed", "pipes", "rate")

    def __init__(self, pipes: tuple[Pipe, ...] = (), cap: float = math.inf) -> None:
        self.pipes = pipes
        self.cap = cap
        self.rate = 0.0
        self.bottleneck: Pipe | None = None
        self.fixed = False

    def join(self) -> None:
        for pipe in self.pipes:
            pipe.flows[self] = None

    def leave(self) -> None:
        for pipe in self.pipes:
            del pipe.flows[self]
        self.rate = 0.0
        self.bottleneck = None


def rebalance(left: Iterable[Pipe], resized: Iterable[Pipe], joined: Iterable[Flow]) -> dict[Any, float]:
    """Makes the rates of all flows max-min fair again after a change.

    Args:
        left: pipes that flows left.
        resized: pipes whose capacity changed.
        joined: flows that are new or whose cap changed.

    Returns:
        The flows whose rates may have changed, with the rates they had before.
    """
    chosen: dict[Flow, float] = {}
    alone: dict[Flow, float] = {}
    for flow in joined:
        if _is_alone(flow):
            alone[flow] = flow.rate
            continue
        chosen[flow] = flow.rate
        for pipe in flow.pipes:
            if len(pipe.flows) > 1:
                _choose_held_back(pipe, chosen)
    for pipe in left:
        if pipe.flows:
            _choose_held_back(pipe, chosen)
    for pipe in resized:
        for flow in pipe.flows:
            chosen[flow] = flow.rate
    while chosen:
        pipes = _fill(chosen)
        more = [flow for pipe in pipes if pipe.others for flow in _wronged(pipe, chosen)]
        if not more:
            break
        for flow in more:
            chosen[flow] = flow.rate
    for flow, rate in alone.items():
        _fix_alone(flow)
        chosen[flow] = rate
    return chosen


def _is_alone(flow: Flow) -> bool:
    for pipe in flow.pipes:  # noqa: SIM110 - twice as fast as a generator, and called for every message
        if len(pipe.flows) > 1:
            return False
    return True


def _fix_alone(flow: Flow) -> None:
    """Sets the rate of a flow that shares no pipe: its tightest pipe, or its cap."""
    flow.rate = flow.cap
    flow.bottleneck = None
    for pipe in flow.pipes:
        if pipe.capacity < flow.rate:
            flow.rate = pipe.capacity
            flow.bottleneck = pipe


def _choose_held_back(pipe: Pipe, chosen: dict[Flow, float]) -> None:
    for flow in pipe.flows:
        if flow.bottleneck is pipe:
            chosen.setdefault(flow, flow.rate)


def _fill(chosen: dict[Flow, float]) -> dict[Pipe, None]:
    """Progressive filling of the chosen flows into the capacity that other flows leave.  Returns their pipes."""
    pipes = _open(chosen)
    heap = [(pipe.room / pipe.open, order, pipe) for order, pipe in enumerate(pipes)]
    heapq.heapify(heap)
    capped = sorted((flow for flow in chosen if flow.cap < math.inf), key=_cap_of, reverse=True)
    left = len(chosen)
    while left:
        while capped and capped[-1].fixed:
            capped.pop()
        pipe = _tightest(heap)
        share = max(pipe.room / pipe.open, 0.0) if pipe else math.inf
        if capped and capped[-1].cap <= share:
            flow = capped.pop()
            _fix(flow, flow.cap, None)
            left -= 1
        elif pipe:
            pipe.level = share
            for flow in pipe.flows:
                if not flow.fixed and flow in chosen:
                    _fix(flow, share, pipe)
                    left -= 1
        else:
            raise AssertionError("a flow without a cap goes through at least one pipe")
    return pipes


def _open(chosen: dict[Flow, float]) -> dict[Pipe, None]:
    """The pipes of the chosen flows, each with the room that the other flows leave."""
    pipes: dict[Pipe, None] = {}
    for flow in chosen:
        flow.fixed = False
        for pipe in flow.pipes:
            if pipe in pipes:
                pipe.open += 1
            else:
                pipes[pipe] = None
                pipe.open = 1
    for pipe in pipes:
        pipe.room = pipe.capacity
        pipe.others = pipe.open < len(pipe.flows)
        if pipe.others:
            for flow in pipe.flows:
                if flow not in chosen:
                    pipe.room -= flow.rate
        pipe.high = 0.0
        pipe.level = -1.0
    return pipes


def _tightest(heap: list[tuple[float, int, Pipe]]) -> Pipe | None:
    """The pipe with the least room for each of its flows.  Shares only grow as others are fixed, so an entry may be
    too low.
    """
    while heap:
        share, order, pipe = heap[0]
        if pipe.open == 0:
            heapq.heappop(heap)
            continue
        now = pipe.room / pipe.open
        if now <= share * (1 + _TOLERANCE) or now <= 0:
            return pipe
        heapq.heapreplace(heap, (now, order, pipe))
    return None


def _fix(flow: Flow, rate: float, bottleneck: Pipe | None) -> None:
    flow.fixed = True
    flow.rate = rate
    flow.bottleneck = bottleneck
    for pipe in flow.pipes:
        pipe.room -= rate
        pipe.open -= 1
        pipe.high = max(pipe.high, rate)


def _cap_of(flow: Flow) -> float:
    return flow.cap


def _wronged(pipe: Pipe, chosen: dict[Flow, float]) -> list[Flow]:
    """Flows beside the chosen ones whose rate is no longer fair, too low or too high, because of a change on this
    pipe.
    """
    if pipe.room < -_TOLERANCE * pipe.capacity:
        return [flow for flow in pipe.flows if flow not in chosen]
    full = pipe.room <= _TOLERANCE * pipe.capacity
    wronged = []
    for flow in pipe.flows:
        if flow in chosen:
            continue
        held_back_here = flow.bottleneck is pipe
        if (
            (held_back_here and not full)  # it could have more
            or (held_back_here and flow.rate < pipe.high * (1 - _TOLERANCE))  # another has more of the same pipe
            or (pipe.level >= 0 and flow.rate > pipe.level * (1 + _TOLERANCE))  # it has more than those held back here
        ):
            wronged.append(flow)
    return wronged

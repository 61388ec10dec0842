"""Flexible communication (Tyagi & Swany, 2023): the compression ratio and the collective follow the current links.

Every member measures its own links, from ordinary traffic and rare small probes, and the share of its update that each
ratio would keep.  These numbers travel in the round's trailer.  So all members know the same links and make the same
decision without another message.  They choose between AR-Topk by its cheapest collective, an all-gather of each
member's own largest values, and sending everything, and they choose the ratio.  The choice is the knee between the time
of an exchange and the share of the update that it keeps.  AR-Topk is cheaper but keeps less of most members' updates,
since its leader chooses the places.  This loss is measured too, and so is the time to select and scatter values.
"""

import asyncio
import dataclasses
import math
import struct
from dataclasses import dataclass
from typing import Literal

import numpy as np

from atoll.codecs.bits import packed_size, width
from atoll.codecs.sparse import TopK, kept
from atoll.collectives import Round, SendLog, Spawn
from atoll.collectives.cost import COSTED, LinkMatrix, broadcast_s, collective_s, ring_order, tree_order
from atoll.collectives.reduce import AgreedTopK, Coded, Plain, Reduced, Reduction
from atoll.trace import Planned
from atoll.vectors import Vector
from atoll.world.base import FRAME_BYTES, Lane, World

__all__ = ["RATIOS", "ExchangePlan", "Flexible", "knee"]

RATIOS = tuple(float(ratio) for ratio in np.geomspace(0.1, 0.001, 9))
TIME_WEIGHT, GAIN_WEIGHT = 0.8, 0.2
"""Unsent values are sent later, so a lower gain delays learning more than it loses: time counts for more."""
PROBE_S = 5.0
HYSTERESIS = 0.9
"""A new collective must take less than this share of the current one's time."""
LEAST_BYTES = 2000
"""A member must send this many bytes before it reports its uplink speed; small rounds are taken together."""
LEAST_S = 1e-9
"""Stands for zero latency, since 0 means that nobody has measured it."""
LEAST_BYTE_S = 1e-13
"""Stands for an uplink on which bytes take no time, for the same reason."""
MOVED = 0.1
"""A relative change of gains or links beyond this leads to a new choice."""
DENSE = "dense"
"""The plan that sends everything."""
_PING = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class ExchangePlan:
    """The ratio and the collective of the next exchange."""

    ratio: float
    via: str
    """A collective for AR-Topk's values; `own`: an all-gather of own largest values; or `dense`: all values."""
    seconds: float


def knee(times: list[float], gains: list[float]) -> int:
    """The index of the best compromise of short steps and high gain: the least 0.8·log time + 0.2·log 1/gain.

    With logarithms, a tenth less time has the same value at any scale.  Times are of whole steps with computation, so
    an exchange that is already short is not made smaller still.  The result lies on the Pareto front.
    There are few candidates, in one dimension, so all are tried.
    """
    scores = [
        TIME_WEIGHT * math.log(max(time, 1e-12)) - GAIN_WEIGHT * math.log(max(gain, 1e-12))
        for time, gain in zip(times, gains, strict=True)
    ]
    return scores.index(min(scores))


class Flexible(Reduction):
    """Chooses a new plan when gains or links have changed.

    Args:
        lead: how AR-Topk selects the member whose places are sent.
        ratio: a fixed ratio; 0: chosen.
        via: a fixed collective; empty: chosen.
    """

    exact = False
    by_block = False  # one plan for the whole vector
    vias = ("flexible",)

    def __init__(self, *, lead: Literal["star", "var"] = "star", ratio: float = 0.0, via: str = "") -> None:
        self._lead: Literal["star", "var"] = lead
        self._ratio = ratio
        self._via = via
        self._plan: ExchangePlan | None = None
        self._planned_for: tuple[Vector, Vector] | None = None
        self._gains = np.ones(len(RATIOS), dtype=np.float32)
        self._shared = 1.0
        """The share that AR-Topk keeps, relative to the same number of own largest values."""
        self._last = 0.0, 0.0
        """Sums of squares of the own update: at the places of the last AR-Topk round, and of its own largest values."""
        self._known: LinkMatrix | None = None
        self._orders: dict[str, tuple[int, ...]] = {}
        """The members' ranks around the best ring, and down the best tree."""
        self._latency: dict[str, float] = {}
        self._asked: dict[str, float] = {}
        self._up_s: float | None = None
        self._log = SendLog()
        """Messages sent since the uplink was last measured."""
        self._compute_s = 0.0
        self._done_s = 0.0
        self._code_s = [0.0, 0.0]
        """This member's compute seconds per value in exchanges: sparse, then dense."""
        self._known_code_s = [0.0, 0.0]
        """The slowest member's."""

    # Measurements of this member ---

    def start(self, world: World, members: tuple[str, ...], spawn: Spawn) -> None:
        others = [name for name in members if name != world.name]
        spawn(self._answer(world, spawn))
        spawn(self._hear(world))
        spawn(self._probe(world, others, spawn))

    def restart(self) -> None:
        self._plan = self._planned_for = self._known = None
        self._orders = {}
        self._gains = np.ones(len(RATIOS), dtype=np.float32)
        self._last = 0.0, 0.0
        self._log = SendLog()

    async def _probe(self, world: World, others: list[str], spawn: Spawn) -> None:
        number = 0
        while True:
            for name in others:
                if name not in self._asked:
                    number += 1
                    self._asked[name] = world.now
                    spawn(world.peer(name).send("ping", _PING.pack(number), lane=Lane.CONTROL))
            await asyncio.sleep(PROBE_S)

    async def _answer(self, world: World, spawn: Spawn) -> None:
        while True:
            message = await world.receive("ping")
            spawn(world.peer(message.sender).send("pong", message.head, lane=Lane.CONTROL))

    async def _hear(self, world: World) -> None:
        while True:
            message = await world.receive("pong")
            asked, known = self._asked.pop(message.sender, None), self._latency.get(message.sender)
            if asked is None:
                continue  # this node sent the ping before it restarted
            seconds = (world.now - asked) / 2
            if known is None or seconds < 5 * known + 1:  # else the link was down meanwhile
                self._latency[message.sender] = max(seconds, LEAST_S)

    def _report(self, members: tuple[str, ...], values: Vector, computed_s: float) -> Vector:
        """Own latencies and uplink, the sum of squares that each ratio keeps of the own update, the time to compute
        the update, and what the last round kept.
        """
        latency = [self._latency.get(name, 0.0) for name in members]
        squares = np.square(values)
        most = kept(len(values), max(RATIOS))
        largest = np.sort(np.partition(squares, len(squares) - most)[len(squares) - most :])[::-1]
        sums = np.cumsum(largest, dtype=np.float64)
        keeps = [sums[kept(len(values), ratio) - 1] for ratio in RATIOS]
        numbers = [
            *latency,
            self._up_s or 0.0,
            *keeps,
            squares.sum(dtype=np.float64),
            computed_s,
            *self._last,
            *self._code_s,
        ]
        return np.array(numbers, dtype=np.float32)

    def _observe(self, plan: ExchangePlan, count: int) -> None:
        """Measures the own uplink in seconds per byte, from the send log, and the computation in seconds per value.

        A round of a small model is too short to measure; then several rounds are taken together.
        """
        place, computed_s = int(plan.via == DENSE), self._log.computed_s / count
        self._code_s[place] += (computed_s - self._code_s[place]) * (0.3 if self._code_s[place] else 1.0)
        self._log.computed_s = 0.0
        seen = self._log.seconds_a_byte(LEAST_BYTES)
        if seen is not None:
            seen = max(seen, LEAST_BYTE_S)
            self._up_s = seen if self._up_s is None else 0.3 * self._up_s + 0.7 * seen
            self._log = SendLog()

    # The decision, the same on all members ---

    def _learn(self, reports: Vector, members: int) -> None:
        rows = reports.reshape(members, -1).astype(np.float64)
        latency, up_s = rows[:, :members], rows[:, members]
        keeps, total = rows[:, members + 1 : -6].sum(0), rows[:, -6].sum()
        self._compute_s = float(rows[:, -5].max())
        shared, own = rows[:, -4:-2].sum(0)
        self._known_code_s = rows[:, -2:].max(0).tolist()
        if own > 0:
            self._shared = 0.9 * self._shared + 0.1 * shared / own if self._known else shared / own
        if total > 0:
            fresh = (keeps / total).astype(np.float32)
            self._gains = 0.9 * self._gains + 0.1 * fresh if self._known else fresh
        if (up_s > 0).all() and (latency + np.eye(members) > 0).all():
            self._known = LinkMatrix((latency + latency.T) / 2, up_s, up_s)

    def _decide(self, count: int, tail_bytes: int) -> tuple[ExchangePlan, str]:
        """The plan for a vector of `count` values, and the reason if it differs from the last plan."""
        if self._known is None:
            return self._plan or ExchangePlan(self._ratio or RATIOS[len(RATIOS) // 2], self._via or "direct", 0.0), ""
        picture = (
            np.append(self._gains, np.float32(self._shared)),
            np.array([self._known.latency_s.max(), self._known.up_s.max()], dtype=np.float32),
        )
        before, why = self._planned_for, "first"
        if before is not None and self._plan is not None:
            moved = [_moved(now, then) for now, then in zip(picture, before, strict=True)]
            if max(moved) <= MOVED:
                return dataclasses.replace(self._plan, seconds=self._cost(self._plan, count, tail_bytes)), ""
            why = "gain" if moved[0] > moved[1] else "links"
        middle = 4 * kept(count, self._ratio or RATIOS[len(RATIOS) // 2]) + tail_bytes
        self._orders = {"ring": ring_order(self._known), "tree": tree_order(self._known, middle)}
        self._planned_for = picture
        ways = (self._via,) if self._via else ("own", *COSTED)
        if self._ratio:
            return self._cheapest(ways, self._ratio, count, tail_bytes), why
        plans, gains = [], []
        for some, keeps in ((("own",), 1.0), (COSTED, self._shared)):
            if allowed := tuple(way for way in some if way in ways):
                plans += [self._cheapest(allowed, ratio, count, tail_bytes) for ratio in RATIOS]
                gains += [float(gain) * keeps for gain in self._gains]
        if not self._via:
            plans.append(self._cheapest((DENSE,), 1.0, count, tail_bytes))
            gains.append(1.0)
        return plans[knee([self._compute_s + plan.seconds for plan in plans], gains)], why

    def _cheapest(self, ways: tuple[str, ...], ratio: float, count: int, tail_bytes: int) -> ExchangePlan:
        plans = [ExchangePlan(ratio, via, 0.0) for via in ways]
        plans = [dataclasses.replace(plan, seconds=self._cost(plan, count, tail_bytes)) for plan in plans]
        found = min(plans, key=lambda plan: plan.seconds)
        if self._plan is not None and self._plan.via in ways:
            same = plans[ways.index(self._plan.via)]
            if found.seconds > HYSTERESIS * same.seconds:
                return same
        return found

    def _cost(self, plan: ExchangePlan, count: int, tail_bytes: int) -> float:
        assert self._known is not None
        links = self._known
        frame = FRAME_BYTES + 20
        if plan.via == DENSE:
            moved = collective_s("direct", 4 * count + links.size * (tail_bytes + frame), links)
            return moved + self._known_code_s[1] * count
        computed = self._known_code_s[0] * count
        if plan.via == "own":
            return computed + collective_s("gather", TopK(plan.ratio).size(count) + tail_bytes + frame, links)
        keep = kept(count, plan.ratio)
        seconds = computed + broadcast_s(packed_size(keep, width(count - 1)) + frame, links)
        if self._lead == "var":
            seconds += collective_s("gather", 4 + frame, links)
        if plan.via in self._orders:
            links = links.ordered(self._orders[plan.via])
        pieces = links.size if plan.via in {"direct", "ring", "hd"} else 1
        return seconds + collective_s(plan.via, 4 * keep + tail_bytes + pieces * frame, links)

    async def __call__(self, meeting: Round, values: Vector, tail: Vector, via: str) -> Reduced:  # noqa: ARG002
        members, rank = meeting.size, meeting.rank
        took = meeting.world.now - self._done_s
        logged = dataclasses.replace(meeting, log=self._log)
        report = await logged.offload(lambda: self._report(meeting.members, values, took))
        reports = np.zeros((members, len(report)), dtype=np.float32)
        reports[rank] = report
        full_tail = np.concatenate([tail, reports.ravel()])
        plan, why = self._decide(len(values), 4 * len(full_tail))
        self._plan = plan
        if why or meeting.rank == 0:
            meeting.world.record(
                Planned(
                    at=meeting.world.now,
                    node=meeting.world.name,
                    name=meeting.name,
                    via=plan.via,
                    ratio=plan.ratio,
                    seconds=plan.seconds,
                    why=why,
                )
            )
        if plan.via in self._orders:
            ordered = tuple(meeting.members[rank] for rank in self._orders[plan.via])
            logged = dataclasses.replace(logged, members=ordered)
        result = await self._exchange(plan, logged, values, full_tail)
        self._last = await logged.offload(lambda: self._kept(plan, values, result.unsent))
        self._observe(plan, len(values))
        self._done_s = meeting.world.now
        self._learn(result.tail[len(tail) :], members)
        return dataclasses.replace(result, tail=result.tail[: len(tail)], via=f"{plan.via} {plan.ratio:.2g}")

    async def _exchange(self, plan: ExchangePlan, meeting: Round, values: Vector, tail: Vector) -> Reduced:
        if plan.via == DENSE:
            return await Plain()(meeting, values, tail, "direct")
        if plan.via == "own":
            return await Coded(TopK(plan.ratio))(meeting, values, tail, "gather")
        return await AgreedTopK(plan.ratio, self._lead)(meeting, values, tail, plan.via)

    def _kept(self, plan: ExchangePlan, values: Vector, unsent: Vector | None) -> tuple[float, float]:
        if plan.via in {"own", DENSE} or self._ratio or unsent is None:
            return 0.0, 0.0
        squares = np.square(values)
        most = kept(len(values), plan.ratio)
        own = np.partition(squares, len(squares) - most)[len(squares) - most :].sum(dtype=np.float64)
        total, left = squares.sum(dtype=np.float64), np.square(unsent).sum(dtype=np.float64)
        return max(0.0, float(total - left)), float(own)


def _moved(now: Vector, then: Vector) -> float:
    """The largest relative change."""
    change = np.abs(now - then) / np.maximum(np.abs(then), 1e-9)
    found = float(change.max())
    return found if math.isfinite(found) else 1.0

"""Flexible communication (Tyagi & Swany, 2023): the compression ratio and the collective follow the current links.

Every member measures its own links, and the share of its update that each ratio would keep (`atoll.collectives.meter`).
These numbers travel in the round's trailer.  So all members know the same links and make the same decision without
another message.  They choose between AR-Topk by its cheapest collective, an all-gather of each member's own largest
values, and sending everything, and they choose the ratio.  The choice is the knee between the time of an exchange and
the share of the update that it keeps.  AR-Topk is cheaper but keeps less of most members' updates, since its leader
chooses the places.  This loss is measured too, and so is the time to select and scatter values.

A long vector is exchanged in blocks, with one plan for all of them: the largest values are the largest of each block.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from atoll.codecs.bits import packed_size, width
from atoll.codecs.sparse import TopK, kept
from atoll.collectives import Round, Spawn
from atoll.collectives.cost import COSTED, LinkMatrix, broadcast_s, collective_s, ring_order, tree_order
from atoll.collectives.meter import RATIOS, Meter
from atoll.collectives.reduce import AgreedTopK, Coded, Plain, Reduced, Reduction
from atoll.trace import Planned
from atoll.vectors import Numbers, Vector
from atoll.world.base import FRAME_BYTES, World

__all__ = ["ExchangePlan", "Flexible", "knee"]

TIME_WEIGHT, GAIN_WEIGHT = 0.8, 0.2
"""Unsent values are sent later, so a lower gain delays learning more than it loses: time counts for more."""
HYSTERESIS = 0.9
"""A new collective must take less than this share of the current one's time."""
MOVED = 0.1
"""A relative change of gains or links beyond this leads to a new choice."""
DENSE = "dense"
"""The plan that sends everything."""


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


@dataclass(frozen=True, slots=True)
class _Size:
    """What an exchange moves."""

    values: int
    blocks: int
    tail_bytes: int


class Flexible(Reduction):
    """Chooses a new plan when gains or links have changed.

    Args:
        lead: how AR-Topk selects the member whose places are sent.
        ratio: a fixed ratio; 0: chosen.
        via: a fixed collective; empty: chosen.
    """

    exact = False
    vias = ("flexible",)

    def __init__(self, *, lead: Literal["star", "var"] = "star", ratio: float = 0.0, via: str = "") -> None:
        self._lead: Literal["star", "var"] = lead
        self._ratio = ratio
        self._via = via
        self._meter = Meter()
        self._plan: ExchangePlan | None = None
        self._planned_for: tuple[Numbers, Numbers] | None = None
        self._gains = np.ones(len(RATIOS), dtype=np.float32)
        self._shared = 1.0
        """The share that AR-Topk keeps, relative to the same number of own largest values."""
        self._known: LinkMatrix | None = None
        self._orders: dict[str, tuple[int, ...]] = {}
        """The members' ranks around the best ring, and down the best tree."""
        self._compute_s = 0.0
        self._code_s = [0.0, 0.0]
        """The slowest member's compute seconds per value in exchanges: sparse, then dense."""

    def start(self, world: World, members: tuple[str, ...], spawn: Spawn) -> None:
        self._meter.start(world, members, spawn)

    def restart(self) -> None:
        self._plan = self._planned_for = self._known = None
        self._orders = {}
        self._gains = np.ones(len(RATIOS), dtype=np.float32)
        self._meter.restart()

    # The decision, the same on all members ---

    def _learn(self, reports: Numbers, members: int) -> None:
        rows = reports.reshape(members, -1).astype(np.float64)
        latency, up_s = rows[:, :members], rows[:, members]
        keeps, total = rows[:, members + 1 : -6].sum(0), rows[:, -6].sum()
        self._compute_s = float(rows[:, -5].max())
        shared, own = rows[:, -4:-2].sum(0)
        self._code_s = rows[:, -2:].max(0).tolist()
        if own > 0:
            self._shared = 0.9 * self._shared + 0.1 * shared / own if self._known else shared / own
        if total > 0:
            fresh = (keeps / total).astype(np.float32)
            self._gains = 0.9 * self._gains + 0.1 * fresh if self._known else fresh
        if (up_s > 0).all() and (latency + np.eye(members) > 0).all():
            self._known = LinkMatrix((latency + latency.T) / 2, up_s, up_s)

    def _decide(self, size: _Size) -> tuple[ExchangePlan, str]:
        """The plan for an exchange, and the reason if it differs from the last plan."""
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
                return dataclasses.replace(self._plan, seconds=self._cost(self._plan, size)), ""
            why = "gain" if moved[0] > moved[1] else "links"
        middle = 4 * kept(size.values, self._ratio or RATIOS[len(RATIOS) // 2]) + size.tail_bytes
        self._orders = {"ring": ring_order(self._known), "tree": tree_order(self._known, middle)}
        self._planned_for = picture
        ways = (self._via,) if self._via else ("own", *COSTED)
        if self._ratio:
            return self._cheapest(ways, self._ratio, size), why
        plans, gains = [], []
        for some, keeps in ((("own",), 1.0), (COSTED, self._shared)):
            if allowed := tuple(way for way in some if way in ways):
                plans += [self._cheapest(allowed, ratio, size) for ratio in RATIOS]
                gains += [float(gain) * keeps for gain in self._gains]
        if not self._via:
            plans.append(self._cheapest((DENSE,), 1.0, size))
            gains.append(1.0)
        return plans[knee([self._compute_s + plan.seconds for plan in plans], gains)], why

    def _cheapest(self, ways: tuple[str, ...], ratio: float, size: _Size) -> ExchangePlan:
        plans = [ExchangePlan(ratio, via, 0.0) for via in ways]
        plans = [dataclasses.replace(plan, seconds=self._cost(plan, size)) for plan in plans]
        found = min(plans, key=lambda plan: plan.seconds)
        if self._plan is not None and self._plan.via in ways:
            same = plans[ways.index(self._plan.via)]
            if found.seconds > HYSTERESIS * same.seconds:
                return same
        return found

    def _cost(self, plan: ExchangePlan, size: _Size) -> float:
        """Seconds of an exchange.  Of several blocks, some are computed while others are sent."""
        computed = self._code_s[plan.via == DENSE] * size.values
        moved = self._moved_s(plan, size)
        return max(computed, moved) + min(computed, moved) / size.blocks

    def _moved_s(self, plan: ExchangePlan, size: _Size) -> float:
        assert self._known is not None
        links, count = self._known, size.values
        frame = (FRAME_BYTES + 20) * size.blocks
        if plan.via == DENSE:
            return collective_s("direct", 4 * count + links.size * (size.tail_bytes + frame), links)
        if plan.via == "own":
            return collective_s("gather", TopK(plan.ratio).size(count) + size.tail_bytes + frame, links)
        keep = kept(count, plan.ratio)
        seconds = broadcast_s(packed_size(keep, width(count // size.blocks - 1)) + frame, links)
        if self._lead == "var":
            seconds += collective_s("gather", 4 + frame, links)
        if plan.via in self._orders:
            links = links.ordered(self._orders[plan.via])
        pieces = links.size if plan.via in {"direct", "ring", "hd"} else 1
        return seconds + collective_s(plan.via, 4 * keep + size.tail_bytes + pieces * frame, links)

    async def __call__(self, meeting: Round, values: Vector, tail: Numbers, via: str) -> Reduced:  # noqa: ARG002
        world, meter = meeting.world, self._meter
        logged = dataclasses.replace(meeting, log=meter.log)
        if self._chooses:
            meter.saw(await meeting.offload(lambda: meter.look(values, meeting.blocks), values=len(values)))
        reports = self._reports(meeting) if meeting.block == 0 else np.zeros(0, dtype=np.float32)
        full_tail = np.concatenate([tail, reports])
        plan = self._plan
        assert plan is not None, "begun"
        if plan.via in self._orders:
            ordered = tuple(meeting.members[rank] for rank in self._orders[plan.via])
            logged = dataclasses.replace(logged, members=ordered)
        result = await self._exchange(plan, logged, values, full_tail)
        if self._chooses and plan.via not in {"own", DENSE} and (unsent := result.unsent) is not None:
            found = await meeting.offload(lambda: meter.shared(values, unsent, plan.ratio), values=len(values))
            meter.saw_shared(found)
        meter.done(world.now, len(values), dense=plan.via == DENSE)
        if meeting.block == 0:
            self._learn(result.tail[len(tail) :], meeting.size)
        return dataclasses.replace(result, tail=result.tail[: len(tail)], via=f"{plan.via} {plan.ratio:.2g}")

    @property
    def _chooses(self) -> bool:
        return not self._ratio

    def _reports(self, meeting: Round) -> Numbers:
        """The members' numbers, of which this member fills in its own."""
        own = self._meter.report(meeting.members)
        reports = np.zeros((meeting.size, len(own)), dtype=np.float32)
        reports[meeting.rank] = own
        return reports.ravel()

    def begin(self, meeting: Round, tail: int) -> None:
        """Plans the exchange of all blocks of a round."""
        self._meter.begin(meeting.world.now)
        numbers = tail + meeting.size * Meter.numbers(meeting.size)
        plan, why = self._decide(_Size(meeting.values, meeting.blocks, 4 * numbers))
        self._plan = plan
        if why or meeting.rank == 0:
            now, node = meeting.world.now, meeting.world.name
            meeting.world.record(
                Planned(
                    at=now,
                    node=node,
                    name=meeting.name,
                    via=plan.via,
                    ratio=plan.ratio,
                    seconds=plan.seconds,
                    why=why,
                )
            )

    async def _exchange(self, plan: ExchangePlan, meeting: Round, values: Vector, tail: Numbers) -> Reduced:
        if plan.via == DENSE:
            return await Plain()(meeting, values, tail, "direct")
        if plan.via == "own":
            return await Coded(TopK(plan.ratio))(meeting, values, tail, "gather")
        return await AgreedTopK(plan.ratio, self._lead)(meeting, values, tail, plan.via)


def _moved(now: Numbers, then: Numbers) -> float:
    """The largest relative change."""
    change = np.abs(now - then) / np.maximum(np.abs(then), 1e-9)
    found = float(change.max())
    return found if math.isfinite(found) else 1.0

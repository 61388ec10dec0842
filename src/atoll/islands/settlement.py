"""Which reachable node holds which layers: each node computes it from the standings of all, with the same result.

Complete islands stay as they are; the other nodes form the best ones.  There are no messages about it and no
coordinator: it is a function of the summaries that a view's members sent when they accepted it (`atoll.membership`).
"""

import hashlib
import json
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from atoll.islands import reform
from atoll.islands.layout import Facts, Layout, Survey
from atoll.islands.settings import IslandSettings
from atoll.membership import Summary
from atoll.world.hearing import NOT_UNDERSTOOD

__all__ = ["Exchanges", "IslandStanding", "RangeKey", "Settlement", "settle"]

RangeKey = tuple[int, int]
"""The first layer of a range, and its end (one past its last layer)."""
Exchanges = dict[RangeKey, tuple[str, tuple[str, ...]]]
"""The scope of each range's exchange, and its members."""
StageCut = tuple[int, int, int]
"""The first layer of a stage, its end (one past its last layer), and how many batches it may hold."""


@dataclass(frozen=True, slots=True)
class IslandStanding:
    """A node's standing: which island it is in, or is to be in, and which layers it holds."""

    order: tuple[str, ...] = ()
    """The nodes of its island, in the order of stages."""
    scope: str = ""
    """The scope of the island's pipeline, which differs from those of earlier pipelines."""
    shard: int = -1
    """The part of the examples that the island trains on."""
    cut: tuple[StageCut, ...] = ()
    """The stage of each of them."""
    held: tuple[int, ...] = ()
    """The layers that it uses."""
    spare: tuple[tuple[int, int], ...] = ()
    """Older layers that it has, and how many updates they had."""
    facts: Facts | None = None
    """The facts that it measured, if they are not declared."""
    ranges: Exchanges = field(default_factory=dict)
    """The scopes of its exchanges, and their members."""

    def summary(self) -> Summary:
        told: Summary = [["order", " ".join(self.order)], ["scope", self.scope], ["shard", self.shard]]
        told.append(["cut", json.dumps(self.cut)])
        told.append(["held", " ".join(map(str, self.held))])
        told.append(["spare", json.dumps(self.spare)])
        if self.facts:
            told.append(["facts", self.facts.told()])
        return told + [
            [f"range {first} {last}", f"{scope}|{' '.join(members)}"]
            for (first, last), (scope, members) in sorted(self.ranges.items())
        ]

    @classmethod
    def read(cls, summary: Summary) -> "IslandStanding":
        """Reads a member's summary; a malformed one gives an empty standing, on all nodes alike."""
        try:
            return cls._read(summary)
        except NOT_UNDERSTOOD:
            return cls()

    @classmethod
    def _read(cls, summary: Summary) -> "IslandStanding":
        given = {str(key): value for key, value in summary}
        ranges = {}
        for key, value in given.items():
            if key.startswith("range "):
                _, first, last = key.split()
                scope, _, members = str(value).partition("|")
                ranges[int(first), int(last)] = scope, tuple(members.split())
        return cls(
            order=tuple(str(given.get("order", "")).split()),
            scope=str(given.get("scope", "")),
            shard=int(given.get("shard", -1)),
            cut=_triples(given.get("cut", "[]")),
            held=tuple(int(each) for each in str(given.get("held", "")).split()),
            spare=tuple((int(layer), int(updates)) for layer, updates in json.loads(given.get("spare", "[]"))),
            facts=Facts.read(str(given["facts"])) if "facts" in given else None,
            ranges=ranges,
        )

    def is_sound(self, layers: int) -> bool:
        """Whether its island's stages make the whole chain, without gaps."""
        ends = [0, *(stop for _, stop, _ in self.cut)]
        whole = len(self.cut) == len(self.order) and ends[-1] == layers
        steps = zip(self.cut, ends[:-1], strict=True)
        return whole and all(start == end < stop and holds > 0 for (start, stop, holds), end in steps)


def _triples(text: str) -> tuple[StageCut, ...]:
    return tuple((int(start), int(stop), int(holds)) for start, stop, holds in json.loads(text))


@dataclass(frozen=True, eq=False)
class Settlement:
    """Which node holds which layers from now on, as computed by all members of a view."""

    layout: Layout
    scopes: dict[str, str]
    """The scopes of pipelines, by the island's name."""
    shards: dict[str, int]
    ranges: Exchanges
    """The scopes of exchanges, and their members: the owners of a range, or they and former owners."""
    standings: dict[str, IslandStanding]
    """The standings before."""

    @classmethod
    def first(cls, layout: Layout) -> "Settlement":
        """The settlement at the beginning of a run, when all nodes are new."""
        return cls(
            layout,
            scopes={first: f"island {first}" for first in layout.islands},
            shards={first: place for place, first in enumerate(layout.islands)},
            ranges={(start, stop): (f"range {start}-{stop}", who) for start, stop, who in layout.ranges},
            standings={machine.name: IslandStanding() for machine in layout.survey.machines},
        )

    def save(self) -> dict[str, Any]:
        """The settlement as JSON values."""
        layout = self.layout
        return {
            "islands": [
                [order, layout.cuts[first], self.scopes[first], self.shards[first]]
                for first, order in layout.islands.items()
            ],
            "ranges": [[start, stop, *self.ranges[start, stop]] for start, stop, _ in layout.ranges],
        }

    @classmethod
    def load(cls, saved: dict[str, Any], survey: Survey, settings: IslandSettings) -> "Settlement":
        """Restores the output of `save`."""
        islands = [(tuple(order), cut) for order, cut, _, _ in saved["islands"]]
        return cls(
            Layout(survey.plan_as_it_is(islands), survey, settings),
            scopes={order[0]: scope for order, _, scope, _ in saved["islands"]},
            shards={order[0]: shard for order, _, _, shard in saved["islands"]},
            ranges={(start, stop): (scope, tuple(members)) for start, stop, scope, members in saved["ranges"]},
            standings={machine.name: IslandStanding() for machine in survey.machines},
        )

    @cached_property
    def digest(self) -> str:
        """A digest that is the same on all nodes with this settlement."""
        return hashlib.blake2b(json.dumps(self.save()).encode(), digest_size=8).hexdigest()

    def island_of(self, name: str) -> tuple[str, ...]:
        seat = self.layout.seats.get(name)
        return self.layout.islands[seat.island] if seat else ()

    def standing(self, name: str) -> IslandStanding:
        """A node's standing in it, without the layers that it holds."""
        seat = self.layout.seats.get(name)
        return IslandStanding(
            order=self.island_of(name),
            scope=self.scopes[seat.island] if seat else "",
            shard=self.shards[seat.island] if seat else -1,
            cut=self.layout.cuts[seat.island] if seat else (),
            ranges={(start, stop): self.ranges[start, stop] for start, stop, who in self.layout.ranges if name in who},
        )

    def sources(self, name: str, layer: int, *, alike: bool = True) -> list[str]:
        """The nodes to ask for a layer: those of the old island, then those of the new one, then any other node that
        uses it; if none does, nodes with an older state of it, the newest first; if there are none, and initial models
        differ, the first node.
        """
        old, new = self.standings[name].order, self.island_of(name)
        holders = [each for each, standing in self.standings.items() if layer in standing.held and each != name]
        if holders:
            return sorted(holders, key=lambda each: (each not in old, each not in new, holders.index(each)))
        spares = {each: dict(standing.spare) for each, standing in self.standings.items()}
        having = [each for each in spares if layer in spares[each]]
        if having:
            return sorted(having, key=lambda each: (-spares[each][layer], each != name, having.index(each)))
        return [each for each in list(self.standings)[:1] if each != name and not alike]


def settle(
    name: str, standings: dict[str, IslandStanding], survey: Survey, settings: IslandSettings, shards: int
) -> Settlement:
    """Decides which reachable node holds which layers.

    Args:
        name: the name of the view that agrees on it; it makes new scopes unique.
        standings: the standings of all reachable nodes, in the order that all use.
        survey: what is known about machines, links and layers.
        settings: how islands train.
        shards: how many parts the examples are divided into.
    """
    survey = survey.with_facts({each: standing.facts for each, standing in standings.items() if standing.facts})
    places = {machine.name: place for place, machine in enumerate(survey.machines)}
    whole: dict[tuple[str, ...], IslandStanding] = {}
    for standing in standings.values():
        told = {standings[each].scope for each in standing.order if each in standings}
        here = all(each in standings and each in places for each in standing.order)
        if standing.order and told == {standing.scope} and here and standing.is_sound(len(survey.layers)):
            whole[standing.order] = standing
    inside = {each for order in whole for each in order}
    islands = reform(
        survey.layers,
        survey.machines,
        survey.pairs,
        survey.terms,
        kept=[(tuple(places[each] for each in order), standing.cut) for order, standing in whole.items()],
        free=[places[each] for each in standings if each not in inside and each in places],
    )
    layout = Layout(survey.plan_for(islands, "after a change"), survey, settings)
    stays = {
        first for first, order in layout.islands.items() if order in whole and whole[order].cut == layout.cuts[first]
    }
    scopes = {first: standings[first].scope if first in stays else f"island {first} {name}" for first in layout.islands}
    taken = {first: standings[first].shard for first in layout.islands if first in stays}
    free = [shard for shard in range(shards) if shard not in taken.values()]
    for first in layout.islands:
        if first not in taken:
            taken[first] = free.pop(0) if free else places[first] % shards
    ranges: Exchanges = {}
    for start, stop, owners in layout.ranges:
        # A node that takes another seat restarts its exchanges, and so do its partners in them.
        stay = all(layout.seats[owner].island in stays for owner in owners)
        before = {standings[owner].ranges.get((start, stop)) for owner in owners} if stay else set()
        known = before.pop() if len(before) == 1 else None
        same = known is not None and set(owners) <= set(known[1])
        ranges[start, stop] = known if known and same else (f"range {start}-{stop} {name}", owners)
    return Settlement(layout, scopes, taken, ranges, standings)

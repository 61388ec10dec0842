"""Who holds what among those who are here: worked out by everybody alike, from where everybody says that it stands.

Islands that are whole stay as they are; the rest makes the best of it.  There is no message about it and nobody in
charge: it is a function of what a view's members said when they accepted it (`atoll.membership`).
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
"""The first layer of a range, and the one behind its last."""
Exchanges = dict[RangeKey, tuple[str, tuple[str, ...]]]
"""What the exchange of each range is called, and who takes part."""
StageCut = tuple[int, int, int]
"""The first layer of a stage, the one behind its last, and how many batches it may hold."""


@dataclass(frozen=True, slots=True)
class IslandStanding:
    """Where a node stands: which island it is in, or is to be in, and what it holds."""

    order: tuple[str, ...] = ()
    """The nodes of its island, in the order of stages."""
    scope: str = ""
    """What the island's pipeline is called: nobody mixes it up with one of before."""
    shard: int = -1
    """Whose examples the island learns from."""
    cut: tuple[StageCut, ...] = ()
    """What each of them holds."""
    held: tuple[int, ...] = ()
    """Layers that it uses."""
    spare: tuple[tuple[int, int], ...] = ()
    """Layers that it has as they once were, and how many updates they had had."""
    facts: Facts | None = None
    """What it has found out about itself, where that is not declared."""
    ranges: Exchanges = field(default_factory=dict)
    """What its exchanges are called, and who takes part."""

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
        """What a member has told; one that makes no sense, or that nobody could use, is nothing: for all alike."""
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
        """Whether its island's stages make the whole chain, one after the other."""
        ends = [0, *(stop for _, stop, _ in self.cut)]
        whole = len(self.cut) == len(self.order) and ends[-1] == layers
        steps = zip(self.cut, ends[:-1], strict=True)
        return whole and all(start == end < stop and holds > 0 for (start, stop, holds), end in steps)


def _triples(text: str) -> tuple[StageCut, ...]:
    return tuple((int(start), int(stop), int(holds)) for start, stop, holds in json.loads(text))


@dataclass(frozen=True, eq=False)
class Settlement:
    """Who holds what from now on, as all members of a view have worked it out."""

    layout: Layout
    scopes: dict[str, str]
    """Of pipelines, by the island's name."""
    shards: dict[str, int]
    ranges: Exchanges
    """What exchanges are called, and who takes part: the owners of a range, or they and others who once were."""
    standings: dict[str, IslandStanding]
    """Where everybody stood before."""

    @classmethod
    def first(cls, layout: Layout) -> "Settlement":
        """With which a run begins: everybody is new."""
        return cls(
            layout,
            scopes={first: f"island {first}" for first in layout.islands},
            shards={first: place for place, first in enumerate(layout.islands)},
            ranges={(start, stop): (f"range {start}-{stop}", who) for start, stop, who in layout.ranges},
            standings={machine.name: IslandStanding() for machine in layout.survey.machines},
        )

    def save(self) -> dict[str, Any]:
        """In words that JSON has."""
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
        """What `save` told of."""
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
        """All who have settled alike have the same."""
        return hashlib.blake2b(json.dumps(self.save()).encode(), digest_size=8).hexdigest()

    def island_of(self, name: str) -> tuple[str, ...]:
        seat = self.layout.seats.get(name)
        return self.layout.islands[seat.island] if seat else ()

    def standing(self, name: str) -> IslandStanding:
        """Where a node stands in it; what it has it says itself."""
        seat = self.layout.seats.get(name)
        return IslandStanding(
            order=self.island_of(name),
            scope=self.scopes[seat.island] if seat else "",
            shard=self.shards[seat.island] if seat else -1,
            cut=self.layout.cuts[seat.island] if seat else (),
            ranges={(start, stop): self.ranges[start, stop] for start, stop, who in self.layout.ranges if name in who},
        )

    def sources(self, name: str, layer: int, *, alike: bool = True) -> list[str]:
        """Who may be asked for a layer: those of the old island, then those of the new one, then anybody who uses it;
        if nobody does, who has it as it once was, the newest first; and if nobody has, and models differ at first, who
        is first.
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
    """Who holds what among those who are here.

    Args:
        name: of the view that agrees on it: it makes new names new.
        standings: where everybody who is here stands, in the order that all use.
        survey: what is known of machines, links and layers.
        settings: how islands train.
        shards: how many parts the examples are in.
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
        # Who takes another seat begins its exchanges anew, and so do those who exchange with it.
        stay = all(layout.seats[owner].island in stays for owner in owners)
        before = {standings[owner].ranges.get((start, stop)) for owner in owners} if stay else set()
        known = before.pop() if len(before) == 1 else None
        same = known is not None and set(owners) <= set(known[1])
        ranges[start, stop] = known if known and same else (f"range {start}-{stop} {name}", owners)
    return Settlement(layout, scopes, taken, ranges, standings)

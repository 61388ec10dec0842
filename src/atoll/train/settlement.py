"""Who holds what among those who are here: worked out by everybody alike, from where everybody says that it stands.

Islands that are whole stay as they are; the rest makes the best of it.  There is no message about it and nobody in
charge: it is a function of what a view's members said when they accepted it (`atoll.group`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from atoll.group import Summary
from atoll.island import reform
from atoll.train.islands import IslandSettings, Layout, Survey

__all__ = ["Exchanges", "RangeKey", "Settlement", "Standing", "settle"]

RangeKey = tuple[int, int]
"""The first layer of a range, and the one behind its last."""
Exchanges = dict[RangeKey, tuple[str, tuple[str, ...]]]
"""What the exchange of each range is called, and who takes part."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a node stands: which island it is in, or is to be in, and what it holds."""

    order: tuple[str, ...] = ()
    """The nodes of its island, in the order of stages."""
    scope: str = ""
    """What the island's pipeline is called: nobody mixes it up with one of before."""
    shard: int = -1
    """Whose examples the island learns from."""
    held: tuple[int, ...] = ()
    """Layers whose weights it has."""
    ranges: Exchanges = field(default_factory=dict)
    """What its exchanges are called, and who takes part."""

    def summary(self) -> Summary:
        told: Summary = [["islands", ""], ["order", " ".join(self.order)], ["scope", self.scope], ["shard", self.shard]]
        told.append(["held", " ".join(map(str, self.held))])
        return told + [
            [f"range {first} {last}", f"{scope}|{' '.join(members)}"]
            for (first, last), (scope, members) in sorted(self.ranges.items())
        ]

    @classmethod
    def read(cls, summary: Summary) -> "Standing":
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
            held=tuple(int(each) for each in str(given.get("held", "")).split()),
            ranges=ranges,
        )


@dataclass(frozen=True, eq=False, slots=True)
class Settlement:
    """Who holds what from now on, as all members of a view have worked it out."""

    layout: Layout
    scopes: dict[str, str]
    """Of pipelines, by the island's name."""
    shards: dict[str, int]
    ranges: Exchanges
    """What exchanges are called, and who takes part: the owners of a range, or they and others who once were."""
    standings: dict[str, Standing]
    """Where everybody stood before."""

    @classmethod
    def first(cls, layout: Layout) -> "Settlement":
        """With which a run begins: everybody is new."""
        return cls(
            layout,
            scopes={first: f"island {first}" for first in layout.islands},
            shards={first: place for place, first in enumerate(layout.islands)},
            ranges={(start, stop): (f"range {start}-{stop}", who) for start, stop, who in layout.ranges},
            standings={machine.name: Standing() for machine in layout.survey.machines},
        )

    def island_of(self, name: str) -> tuple[str, ...]:
        seat = self.layout.seats.get(name)
        return self.layout.islands[seat.island] if seat else ()

    def standing(self, name: str, held: Sequence[int]) -> Standing:
        """Where a node stands in it, holding these layers so far."""
        seat = self.layout.seats.get(name)
        return Standing(
            order=self.island_of(name),
            scope=self.scopes[seat.island] if seat else "",
            shard=self.shards[seat.island] if seat else -1,
            held=tuple(held),
            ranges={(start, stop): self.ranges[start, stop] for start, stop, who in self.layout.ranges if name in who},
        )

    def sources(self, name: str, layer: int) -> list[str]:
        """Who may be asked for a layer: those of the old island, then those of the new one, then anybody."""
        old, new = self.standings[name].order, self.island_of(name)
        holders = [each for each, standing in self.standings.items() if layer in standing.held and each != name]
        return sorted(holders, key=lambda each: (each not in old, each not in new, holders.index(each)))


def settle(
    name: str, standings: dict[str, Standing], survey: Survey, settings: IslandSettings, shards: int
) -> Settlement:
    """Who holds what among those who are here.

    Args:
        name: of the view that agrees on it: it makes new names new.
        standings: where everybody who is here stands, in the order that all use.
        survey: what is known of machines, links and layers.
        settings: how islands train.
        shards: how many parts the examples are in.
    """
    places = {machine.name: place for place, machine in enumerate(survey.machines)}
    whole: dict[tuple[str, ...], str] = {}
    for standing in standings.values():
        told = {standings[each].scope for each in standing.order if each in standings}
        if standing.order and told == {standing.scope} and all(each in standings for each in standing.order):
            whole[standing.order] = standing.scope
    inside = {each for order in whole for each in order}
    islands = reform(
        survey.layers,
        survey.machines,
        survey.pairs,
        survey.terms,
        kept=[tuple(places[each] for each in order) for order in whole],
        free=[places[each] for each in standings if each not in inside],
    )
    layout = Layout(survey.plan_for(islands, "after a change"), survey, settings)
    scopes = {first: whole.get(order, f"island {first} {name}") for first, order in layout.islands.items()}
    taken = {first: standings[first].shard for first, order in layout.islands.items() if order in whole}
    free = [shard for shard in range(shards) if shard not in taken.values()]
    for first in layout.islands:
        if first not in taken:
            taken[first] = free.pop(0) if free else places[first] % shards
    ranges: Exchanges = {}
    for start, stop, owners in layout.ranges:
        # Who takes another seat begins its exchanges anew, and so do those who exchange with it.
        stay = [standings[owner] for owner in owners if standings[owner].order in whole]
        before = {each.ranges.get((start, stop)) for each in stay} if len(stay) == len(owners) else set()
        known = before.pop() if len(before) == 1 else None
        same = known is not None and set(owners) <= set(known[1])
        ranges[start, stop] = known if known and same else (f"range {start}-{stop} {name}", owners)
    return Settlement(layout, scopes, taken, ranges, standings)

import asyncio
import json
import math
from collections.abc import Coroutine, Iterable
from random import Random
from typing import Any, TypeVar

import networkx as nx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from atoll.membership import Group, Summary, View
from atoll.membership.progress import STUCK_S
from atoll.network import Network, load_network
from atoll.training.drive import Background
from atoll.world import Physics, Simulation
from atoll.world.base import Lane
from atoll.world.faults import Fault
from atoll.world.sim.world import SimWorld
from tests.world.networks import network

T = TypeVar("T")


class Standing:
    """A guest that stands somewhere, and moves on while nobody holds it."""

    def __init__(self) -> None:
        self.place = 0
        self.views: list[tuple[float, View, dict[str, Summary]]] = []
        self.world: SimWorld | None = None

    def summary(self) -> Summary:
        return [["place", self.place]]

    def stands(self, summary: Summary) -> bool:
        return summary == self.summary()

    def check(self, summary: Summary) -> None:
        """Any will do."""

    def are_together(self, summaries: Iterable[Summary]) -> bool:
        return len({place for ((_, place),) in summaries}) == 1

    def results(self) -> Summary:
        return []

    def compared(self, sender: str, results: Summary) -> bool:
        return not results or not sender

    def installed(self, view: View, summaries: dict[str, Summary]) -> None:
        assert self.world is not None
        assert summaries[self.world.name] == self.summary(), "what is agreed on is where it stands"
        assert self.world.name in view.members
        self.views.append((self.world.now, view, summaries))


def form(net: Network, *, seconds: float, seed: int = 0) -> tuple[dict[str, Group], dict[str, Standing]]:
    groups: dict[str, Group] = {}
    guests = {name: Standing() for name in net.node_names}

    async def program(world: SimWorld) -> None:
        group, guest = Group(world, net.node_names), guests[world.name]
        groups[world.name], guest.world = group, world
        tasks: list[asyncio.Task[Any]] = []

        def spawn(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
            task = asyncio.ensure_future(work)
            tasks.append(task)
            return task

        group.start(spawn, guest)
        while world.now < seconds:
            await world.sleep(0.3)
            if not group.held:
                guest.place += 1
        for task in tasks:
            task.cancel()

    Simulation(net, seed=seed, physics=Physics()).run(program)
    return groups, guests


def names(groups: dict[str, Group]) -> dict[str, tuple[str, ...]]:
    return {name: group.view.members for name, group in groups.items()}


def test_in_calm_weather_nothing_happens() -> None:
    _, guests = form(load_network("perfect:4"), seconds=30)
    assert all(not guest.views for guest in guests.values())


PARTITION = network(
    '[[node]]\ncount = 6\n[[link]]\nbetween = ["[012]", "[345]"]\nlatency_ms = 10\noutages = [[20, 80]]\n'
    '[[link]]\namong = "[012]"\nlatency_ms = 10\n[[link]]\namong = "[345]"\nlatency_ms = 10'
)


def test_both_sides_of_a_partition_go_on_and_meet_again() -> None:
    groups, guests = form(PARTITION, seconds=60)
    assert names(groups) == {**dict.fromkeys("012", tuple("012")), **dict.fromkeys("345", tuple("345"))}
    assert all(20 < guest.views[-1][0] < 20 + 1 + 3 + 2 for guest in guests.values()), "a second to notice, the grace"
    groups, guests = form(PARTITION, seconds=100)
    assert set(names(groups).values()) == {tuple("012345")}
    assert all(80 < guest.views[-1][0] < 83 for guest in guests.values())


@pytest.mark.parametrize("gone", ["0", "1", "2", "3"])
def test_any_node_may_vanish(gone: str) -> None:
    """The first is nothing special."""
    others = "".join(name for name in "0123" if name != gone)
    net = network(
        f'[[node]]\ncount = 4\n[[link]]\nbetween = ["{gone}", "[{others}]"]\nlatency_ms = 10\noutages = [[10, inf]]\n'
        f'[[link]]\namong = "[{others}]"\nlatency_ms = 10'
    )
    groups, guests = form(net, seconds=30)
    assert names(groups) == {**dict.fromkeys(others, tuple(others)), gone: (gone,)}
    assert all(guest.views[-1][0] < 16 for guest in guests.values())


def test_a_short_absence_changes_nothing() -> None:
    _, guests = form(network('[[node]]\ncount = 3\n[[link]]\namong = "*"\noutages = [[5, 6.4]]'), seconds=20)
    assert all(not guest.views for guest in guests.values())


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1000), st.sampled_from(["up_s = 8\ndown_s = 8", "up_s = 3\ndown_s = 1", "up_s = 1\ndown_s = 4"]))
def test_one_view_is_the_same_for_all(seed: int, weather: str) -> None:
    flapping = network(
        f'[[node]]\ncount = 4\n[[link]]\namong = "*"\nlatency_ms = 30\njitter_ms = 10\nrate_mbps = 1\n{weather}'
    )
    _, guests = form(flapping, seconds=60, seed=seed)
    seen: dict[str, tuple[View, dict[str, Summary]]] = {}
    for guest in guests.values():
        for _, view, summaries in guest.views:
            assert seen.setdefault(view.name, (view, summaries)) == (view, summaries)
        numbers = [(view.number, view.leader) for _, view, _ in guest.views]
        assert numbers == sorted(set(numbers)), "views only go forward"


@pytest.mark.parametrize("seed", range(6))
def test_calm_brings_agreement(seed: int) -> None:
    """Links flap at their own times for a minute, and are up or down for good afterwards."""
    draw = Random(seed)
    links, graph = [], nx.Graph()
    graph.add_nodes_from("01234")
    for a, b in ("01", "02", "03", "04", "12", "13", "14", "23", "24", "34"):
        times = sorted(draw.sample(range(5, 60), 2 * draw.randint(1, 4)))
        outages: list[tuple[float, float]] = list(zip(times[::2], times[1::2], strict=True))
        up = draw.random() < 0.4
        if up:
            graph.add_edge(a, b)
        else:
            outages.append((62, math.inf))
        text = ", ".join(f"[{start}, {end}]" for start, end in outages)
        links.append(f'[[link]]\nbetween = ["{a}", "{b}"]\nlatency_ms = 20\noutages = [{text}]')
    net = network("[[node]]\ncount = 5\n" + "\n".join(links))
    groups, _ = form(net, seconds=90, seed=seed)
    for part in nx.connected_components(graph):
        # Two nodes reach each other directly or through one other.
        if all(nx.shortest_path_length(graph, a, b) <= 2 for a in part for b in part):
            assert {groups[name].view for name in part} == {groups[min(part)].view}
            assert set(groups[min(part)].view.members) == part


def test_where_answers_take_long_they_are_waited_for() -> None:
    """A round trip of 5 s: the first proposal gives up too early, the next ones do not."""
    far = network('[[node]]\ncount = 3\n[[link]]\namong = "*"\nlatency_ms = 2500\noutages = [[20, 60]]')
    groups, _ = form(far, seconds=150)
    assert set(names(groups).values()) == {("0", "1", "2")}
    assert len({group.view for group in groups.values()}) == 1
    assert groups["0"].view.number > 0


THREE = network('[[node]]\ncount = 3\n[[link]]\namong = "*"\nlatency_ms = 10')
CRASHED = Fault("crash", 0.0, 5.0, ("2",))


class Watched(Standing):
    """Sees for how long it was held."""

    held_s = 0.0


def take_part(
    *, seconds: float, prepares_s: float = 0.0, hangs: tuple[float, float] = (math.inf, math.inf)
) -> tuple[dict[str, Group], dict[str, Watched]]:
    """Two nodes, and a third that comes at 5 s, prepares for a while, and may hang; it answers nobody until then."""
    groups: dict[str, Group] = {}
    guests = {name: Watched() for name in "012"}
    counts = dict.fromkeys("012", 0)

    async def program(world: SimWorld) -> None:
        if world.is_late:
            await world.sleep(prepares_s)
        group, guest = Group(world, ("0", "1", "2")), guests[world.name]
        groups[world.name], guest.world = group, world
        async with asyncio.TaskGroup() as tasks:
            spawn = Background(tasks)
            group.start(spawn, guest, progress=lambda: counts[world.name])
            while world.now < seconds:
                await world.sleep(0.1)
                guest.held_s += 0.1 * group.held
                if world.name != "2" or not hangs[0] <= world.now < hangs[1]:
                    counts[world.name] += 1
            spawn.cancel()

    Simulation(THREE, physics=Physics(), faults=(CRASHED,)).run(program)
    return groups, guests


def test_who_prepares_for_long_holds_up_nobody() -> None:
    """It can be reached all the while.  A leader that proposed it again and again would hold the others."""
    groups, guests = take_part(seconds=60, prepares_s=100)
    assert groups["0"].view.members == groups["1"].view.members == ("0", "1")
    assert max(guests[name].held_s for name in "01") < 1
    groups, guests = take_part(seconds=60, prepares_s=40)
    assert {group.view.members for group in groups.values()} == {("0", "1", "2")}
    assert all(45 < guest.views[-1][0] < 48 for guest in guests.values()), "it is taken in when it is ready"
    assert max(guests[name].held_s for name in "01") < 1


def test_whose_training_hangs_is_left_out_and_taken_back() -> None:
    groups, guests = take_part(seconds=60, hangs=(20, 45))
    lost, back = guests["0"].views[-2:]
    assert lost[1].members == ("0", "1")
    assert 20 < lost[0] < 20 + STUCK_S + 2
    assert back[1].members == ("0", "1", "2")
    assert 45 < back[0] < 48
    assert {group.view.name for group in groups.values()} == {back[1].name}


def test_a_short_pause_is_no_hang() -> None:
    _, guests = take_part(seconds=60, hangs=(20, 20 + STUCK_S - 1))
    assert [view.members for _, view, _ in guests["0"].views][-1] == ("0", "1", "2")
    assert guests["0"].views[-1][0] < 20


class Sent:
    """A peer that sends what it likes."""

    def __init__(self, world: SimWorld) -> None:
        self.world = world

    async def say(self, **content: Any) -> None:
        for name in ("0", "1"):
            await self.world.peer(name).send("group", json.dumps(content).encode(), lane=Lane.CONTROL)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["propose", "accept", "install", "keep", "view", "stray", "here", "away", "?"]),
    st.one_of(st.integers(-1, 5), st.sampled_from([2**64, 2**70, 1.5, None, "x", True])),
    st.one_of(st.sampled_from(["0", "2", "x" * 10_000, None, 7])),
    st.dictionaries(
        st.sampled_from(["hold_s", "view", "summary", "members", "summaries", "results", "asks", "sender"]),
        st.recursive(
            st.one_of(st.none(), st.integers(), st.floats(), st.text(max_size=5)),
            lambda inner: st.one_of(
                st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)
            ),
            max_leaves=6,
        ),
        max_size=4,
    ),
)
@example("stray", 2**64, "2", {})
@example("accept", 1, "0", {"view": "0.0", "summary": [["a", "b"]]})
def test_whatever_a_member_says_the_others_go_on(kind: str, number: Any, leader: Any, more: dict[str, Any]) -> None:
    """It is refused before anything changes, or does no damage: the two others are in one view in the end."""
    groups: dict[str, Group] = {}

    async def program(world: SimWorld) -> None:
        if world.name == "2":
            await world.sleep(2)
            for _ in range(3):
                await Sent(world).say(**{**more, "kind": kind, "number": number, "leader": leader})
            return
        group, guest = Group(world, ("0", "1", "2")), Standing()
        groups[world.name], guest.world = group, world
        async with asyncio.TaskGroup() as tasks:
            spawn = Background(tasks)
            group.start(spawn, guest)
            await world.sleep(120)
            spawn.cancel()

    Simulation(THREE, physics=Physics(), faults=(Fault("crash", 20.0, math.inf, ("2",)),)).run(program)
    assert groups["0"].view == groups["1"].view
    assert groups["0"].view.members == ("0", "1")
    assert groups["0"].view.number < 10**7

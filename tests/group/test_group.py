import asyncio
import math
from collections.abc import Coroutine
from random import Random
from typing import Any, TypeVar

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.group import Group, Summary, View
from atoll.network import Network, load_network
from atoll.world import Physics, Simulation
from atoll.world.simworld import SimWorld
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

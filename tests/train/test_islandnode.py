"""Nodes of islands: unequal cuts average exactly, and whoever vanishes is made up for."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW

from atoll.errors import TaskError
from atoll.network import parse_network
from atoll.strategy import Quantity, parse_strategy
from atoll.trace import Computed, Event, IslandsFormed, Tested, Trace, read_trace
from atoll.train import RunSpec, simulate
from atoll.train.islandnode import Assembly, IslandNode, Settlement, Standing, fill, packed, settle
from atoll.train.islands import Layout, Survey, lay_out, parse_islands, survey_task
from atoll.train.memory import what_is_remembered
from atoll.train.parts import Parts
from atoll.world import Simulation
from atoll.world.base import World
from atoll.world.faults import parse_faults
from atoll.world.simworld import SimWorld
from tests.train.test_islands import SIX, run, task

NAMES = ("a", "b", "c", "d", "e", "f")


def test_unequal_cuts_meet_at_the_mean_of_the_whole(tmp_path: Path) -> None:
    """Islands of two, three and one node whose models differ and do not learn: after an exchange all hold the mean."""
    still, settings = task(lr=0.0), parse_islands("a+b/c+d+e/f")
    network = parse_network(SIX, name="six")
    _, survey = survey_task(network, still, settings)
    layout = Layout(survey.plan_of(settings.islands), survey, settings)
    assert len({tuple(layout.spans[node] for node in nodes) for nodes in layout.islands.values()}) == 3
    parts = Parts(still, tuple(layout.islands), shards="iid", seed=0)
    whole = {name: Assembly(nodes, parts.tester, rising=True) for name, nodes in layout.islands.items()}

    def seated(world: World, order: tuple[str, ...], layers: nn.Module) -> Assembly:
        with torch.no_grad():
            for number, each in enumerate(layers.parameters()):
                each.add_((1 + list(layout.islands).index(order[0])) * (number + 1) * 0.125)
        whole[order[0]].put(world, layers)
        return whole[order[0]]

    async def program(world: SimWorld) -> None:
        await IslandNode(world, layout, still, parts, parse_strategy("allreduce:every=2"), seed=0, seated=seated).run()

    before = {}
    with Trace(tmp_path / "t.jsonl") as trace:
        simulation = Simulation(network, seed=0, trace=trace)
        simulation.run(program, limit_s=0.01)
        before = {name: each.read(Quantity.PARAMETERS) for name, each in whole.items()}
    with Trace(tmp_path / "u.jsonl") as trace:
        Simulation(network, seed=0, trace=trace).run(program, limit_s=8.0)
    after = {name: each.read(Quantity.PARAMETERS) for name, each in whole.items()}
    index = whole["a"].model
    trained = sum(each.numel() for each in index.parameters())
    mean = np.mean(list(before.values()), axis=0)
    for values in after.values():
        np.testing.assert_allclose(values[:trained], mean[:trained], rtol=1e-6)
    assert not np.allclose(before["a"][:trained], before["c"][:trained])


def test_examples_stay_at_home(tmp_path: Path) -> None:
    with pytest.raises((TaskError, BaseExceptionGroup)):
        run(tmp_path, "a+b/c+d", strategy="selsync:lenders=1,lend=0.5", limit_s=20.0)


# Who holds what after a change ---


def surveyed(settings: str = "auto") -> Survey:
    return survey_task(parse_network(SIX, name="six"), task(), parse_islands(settings))[1]


def first(survey: Survey, islands: str) -> Settlement:
    """Everybody is new, and some islands are made of them."""
    settings = parse_islands(islands)
    layout = Layout(survey.plan_of(settings.islands), survey, settings)
    nobody = {name: Standing() for name in NAMES}
    shards = {name: place for place, name in enumerate(layout.islands)}
    ranges = {(start, stop): (f"range {start}-{stop}", who) for start, stop, who in layout.ranges}
    return Settlement(layout, {name: f"island {name}" for name in layout.islands}, shards, ranges, nobody)


def standings(settlement: Settlement, names: tuple[str, ...]) -> dict[str, Standing]:
    spans = settlement.layout.spans
    return {name: settlement.standing(name, range(*spans[name]) if name in spans else ()) for name in names}


def test_where_a_node_stands_can_be_told_and_read() -> None:
    for standing in standings(first(surveyed(), "a+b+c/d+e"), NAMES).values():
        assert Standing.read(standing.summary()) == standing
    assert Standing.read(Standing().summary()) == Standing()


def test_islands_that_are_whole_stay_as_they_are() -> None:
    survey = surveyed("auto:memory=18kB")
    before = first(survey, "a+b+c/d+e+f:memory=18kB")
    same = settle("7.a", standings(before, NAMES), survey, parse_islands("auto"), 2)
    assert same.scopes == before.scopes
    assert same.ranges == before.ranges
    left = tuple(name for name in NAMES if name != "b")
    after = settle("8.a", standings(before, left), survey, parse_islands("auto"), 2)
    assert after.layout.islands["d"] == ("d", "e", "f")
    assert after.scopes["d"] == "island d"
    assert {after.layout.seats[name].island for name in ("a", "c")} <= set(after.layout.islands) - {"d"}
    assert all(scope.endswith("8.a") for island, scope in after.scopes.items() if island != "d")
    assert after.shards["d"] == 1
    assert min(after.shards.values()) == 0, "the examples of an island that was broken are learned from again"
    assert all(scope.endswith("8.a") for scope, _ in after.ranges.values()), "its owners are others now"
    missing = list(range(*before.layout.spans["b"]))
    for name in ("a", "c"):
        for layer in set(range(*after.layout.spans[name])) & set(missing):
            assert set(after.sources(name, layer)) <= {"d", "e", "f"}, "only the other island has it"


def test_who_comes_back_is_taken_in() -> None:
    survey = surveyed("auto:memory=18kB")
    before = first(survey, "a+c/d+e+f:memory=18kB")
    told = standings(before, NAMES)
    told["b"] = Standing()
    after = settle("9.a", told, survey, parse_islands("auto"), 2)
    assert "b" in after.layout.seats or after.layout.islands == before.layout.islands
    lone = settle("9.d", {name: told[name] for name in ("d", "e", "f")}, survey, parse_islands("auto"), 2)
    assert lone.layout.islands == {"d": ("d", "e", "f")}
    kept = [key for key in lone.ranges if key in before.ranges]
    assert kept
    assert all(lone.ranges[key] == before.ranges[key] for key in kept), "fewer owners of the same go on as they were"


# Runs ---


def with_crash(tmp_path: Path, node: str, until: str = "") -> list[Event]:
    network = parse_network(SIX, name="six")
    crash = f'[[fault]]\nkind = "crash"\nnodes = ["{node}"]\nat = 10.0\n{until}'
    spec = RunSpec(
        network=network,
        task="toy",
        strategy="allreduce:every=4,overlap",
        shards="iid",
        islands="a+b+c/d+e+f:memory=18kB",
        limit_s=40.0,
        stops=False,
        faults=parse_faults(crash, network.node_names),
    )
    simulate(spec, tmp_path / "t.jsonl", task=task())
    return list(read_trace(tmp_path / "t.jsonl"))


@pytest.mark.parametrize("node", ["a", "b", "f"])
def test_whoever_is_killed_holds_up_nobody_else(tmp_path: Path, node: str) -> None:
    events = with_crash(tmp_path, node, "until = 25.0\n")
    broken = set("abc" if node in "abc" else "def")
    longest: dict[str, float] = {}
    last: dict[str, float] = {}
    for event in events:
        if isinstance(event, Computed):
            longest[event.node] = max(longest.get(event.node, 0.0), event.since - last.get(event.node, 0.0))
            last[event.node] = event.at
    assert all(longest[each] < 2 for each in set(NAMES) - broken), longest
    assert all(longest[each] < 6 for each in broken - {node}), "a view, a plan, and what was missing"
    assert all(at > 39 for at in last.values()), "all are at work at the end"
    formed = [event for event in events if isinstance(event, IslandsFormed)]
    assert len(formed) == 3, "at the beginning, without it, with it"
    assert node not in " ".join(formed[1].islands).replace(",", "").split()
    measures = [event.measure for event in events if isinstance(event, Tested)]
    assert max(measures[-4:]) > 0.8


def test_what_a_lost_node_knew_comes_from_others(tmp_path: Path) -> None:
    """Models that differ from island to island and do not learn: a lost node's layers are those of the other island."""
    still = task(lr=0.0)
    network = parse_network(SIX, name="six")
    layout = lay_out(network, still, parse_islands("a+b+c/d+e+f:memory=18kB"))
    parts = Parts(still, tuple(layout.islands), shards="iid", seed=0)
    seats: dict[str, tuple[tuple[str, ...], nn.Module]] = {}
    begun: set[str] = set()

    def seated(world: World, order: tuple[str, ...], layers: nn.Module) -> None:
        if world.name not in begun:
            begun.add(world.name)
            with torch.no_grad():
                for each in layers.parameters():
                    each.fill_(1.0 if world.name in "abc" else 2.0)
        seats[world.name] = order, layers

    async def program(world: SimWorld) -> None:
        await IslandNode(world, layout, still, parts, parse_strategy("none"), seed=0, seated=seated).run()

    crash = parse_faults('[[fault]]\nkind = "crash"\nnodes = ["b"]\nat = 5.0\n', network.node_names)
    with Trace(tmp_path / "t.jsonl") as trace:
        Simulation(network, seed=0, trace=trace, faults=crash).run(program, limit_s=20.0)
    order = seats["a"][0]
    assert set(order) == {"a", "c"}
    found = [float(each.detach().mean()) for name in order for each in seats[name][1].parameters()]
    kept = [float(each.detach().mean()) for name in ("d", "e", "f") for each in seats[name][1].parameters()]
    assert set(kept) == {2.0}
    assert set(found) == {1.0, 2.0}, "what its neighbours know, and of the rest what the other island knows"


def test_layers_on_their_way() -> None:
    for make in (lambda values: SGD(values, lr=0.1, momentum=0.9), AdamW):
        modules = {3: nn.Linear(3, 2), 4: nn.BatchNorm1d(2)}
        one = {layer: (module, make(list(module.parameters()))) for layer, module in modules.items()}
        for _ in range(2):
            modules[4](modules[3](torch.randn(5, 3))).sum().backward()
            for _, optimizer in one.values():
                optimizer.step()
        others = {3: nn.Linear(3, 2), 4: nn.BatchNorm1d(2)}
        other = {layer: (module, make(list(module.parameters()))) for layer, module in others.items()}
        body = packed(one)
        assert fill(other, body)
        for layer, (module, optimizer) in one.items():
            for name, value in module.state_dict().items():
                assert torch.equal(value, other[layer][0].state_dict()[name])
            mine, yours = (what_is_remembered(each) for each in (optimizer, other[layer][1]))
            assert sorted(mine) == sorted(yours)
            assert all(np.array_equal(mine[key], yours[key]) for key in mine)
        assert not fill(other, b"nonsense")
        assert not fill({5: (nn.Linear(3, 2), None)}, body), "another layer"
        assert not fill({3: (nn.Linear(2, 3), None)}, body), "another shape"

"""Nodes of islands: unequal cuts average exactly, and whoever vanishes is made up for."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from atoll.config import RunConfig
from atoll.islands import read_tensors
from atoll.islands.assembly import Assembly
from atoll.islands.curriculum import TaskCurriculum
from atoll.islands.layout import Layout, lay_out, survey_task
from atoll.islands.node import IslandNode, Seated
from atoll.islands.settings import parse_islands
from atoll.islands.settlement import Settlement
from atoll.islands.span import layers_in, updates_in
from atoll.network import parse_network
from atoll.runs import simulate_run
from atoll.strategies import Quantity, parse_strategy
from atoll.trace import CheckpointSaved, Computed, Event, Exchanged, IslandsFormed, Tested, Trace, read_trace
from atoll.training.checkpoint import read_run
from atoll.training.shares import Parts
from atoll.world import Simulation
from atoll.world.base import World
from atoll.world.faults import parse_faults
from atoll.world.sim.world import SimWorld
from tests.islands.test_layout import SIX, run, task

NAMES = ("a", "b", "c", "d", "e", "f")


def node_of(world: World, layout: Layout, curriculum: TaskCurriculum, strategy: str, seated: Seated) -> IslandNode:
    first, talk = Settlement.first(layout), parse_strategy(strategy)
    return IslandNode(world, layout.survey, layout.settings, curriculum, talk, first=first, seated=seated)


def test_unequal_cuts_meet_at_the_mean_of_the_whole(tmp_path: Path) -> None:
    """Islands of two, three and one node whose models differ and do not learn: after an exchange all hold the mean."""
    still, settings = task(lr=0.0), parse_islands("a+b/c+d+e/f")
    network = parse_network(SIX, name="six")
    survey = survey_task(network, still, settings)
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
        await node_of(world, layout, TaskCurriculum(still, parts, seed=0), "allreduce:every=2", seated).run()

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


@pytest.mark.parametrize(
    ("never", "always"),
    [
        ("selsync:delta=1000000", "selsync:delta=0"),
        ("selsync:delta=1000000,overlap", "selsync:delta=0,overlap"),
        ("fda:theta=1000000", "fda:theta=1e-12"),
        ("fda:theta=1000000,estimate=sketch", "fda:theta=1e-12,estimate=sketch"),
    ],
)
@pytest.mark.parametrize("settings", ["", ":weights=predict,accumulate=2"])
def test_rules_that_look_at_the_node_hold_on_islands(tmp_path: Path, never: str, always: str, settings: str) -> None:
    """A rule sees the gradient of the update that is just done, though the stage has dropped it."""
    counts = {}
    for strategy in (never, always):
        events = list(read_trace(run(tmp_path, f"a+b+c/d+e+f{settings}", strategy, limit_s=10.0)))
        exchanges = [event.node for event in events if isinstance(event, Exchanged)]
        counts[strategy] = max((exchanges.count(node) for node in NAMES), default=0)
    assert counts[never] <= 1, "with nothing to compare with there may be one"
    assert counts[always] >= 8


def crashing(node: str, at: float, until: str = "", *, network: str = SIX, **more: Any) -> RunConfig:
    """A run in which a node is lost."""
    net = parse_network(network, name="toy")
    crash = f'[[fault]]\nkind = "crash"\nnodes = ["{node}"]\nat = {at}\n{until}'
    settings = {"strategy": "allreduce:every=4,overlap", "islands": "a+b+c/d+e+f:memory=18kB", "limit_s": 40.0, **more}
    faults = parse_faults(crash, net.node_names)
    return RunConfig(network=net, task="toy", shards="iid", stops=False, faults=faults, **settings)


def with_crash(tmp_path: Path, node: str, until: str = "") -> list[Event]:
    spec = crashing(node, 10.0, until)
    simulate_run(spec, tmp_path / "t.jsonl", task=task())
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
    assert node not in {stage.node for island in formed[1].stages for stage in island}
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
        await node_of(world, layout, TaskCurriculum(still, parts, seed=0), "none", seated).run()

    crash = parse_faults('[[fault]]\nkind = "crash"\nnodes = ["b"]\nat = 5.0\n', network.node_names)
    with Trace(tmp_path / "t.jsonl") as trace:
        Simulation(network, seed=0, trace=trace, faults=crash).run(program, limit_s=20.0)
    order = seats["a"][0]
    assert set(order) == {"a", "c"}
    found = [float(each.detach().mean()) for name in order for each in seats[name][1].parameters()]
    kept = [float(each.detach().mean()) for name in ("d", "e", "f") for each in seats[name][1].parameters()]
    assert set(kept) == {2.0}
    assert set(found) == {1.0, 2.0}, "what its neighbours know, and of the rest what the other island knows"


def test_a_run_that_goes_on_writes_the_same_bytes(tmp_path: Path) -> None:
    """With a node that crashes, and returns, in between."""

    def spec(name: str, limit_s: float, *, resume: bool = False) -> RunConfig:
        return crashing(
            "b",
            12.0,
            "until = 22.0\n",
            strategy="vrl:every=4,overlap",
            limit_s=limit_s,
            checkpoints=tmp_path / name,
            checkpoint_s=8.0,
            resume=resume,
        )

    simulate_run(spec("whole", 40.0), tmp_path / "whole.jsonl", task=task())
    simulate_run(spec("parts", 17.0), tmp_path / "parts.jsonl", task=task())
    simulate_run(spec("parts", 40.0, resume=True), tmp_path / "parts.jsonl", task=task())
    assert (tmp_path / "whole.jsonl").read_bytes() == (tmp_path / "parts.jsonl").read_bytes()
    events = list(read_trace(tmp_path / "whole.jsonl"))
    assert [event.at for event in events if isinstance(event, CheckpointSaved)] == [8, 16, 24, 32]
    last = {event.node: event.at for event in events if isinstance(event, Computed)}
    assert all(at > 39 for at in last.values()), "all are at work at the end"
    assert max(event.measure for event in events if isinstance(event, Tested)) > 0.8


def test_what_nobody_has_comes_from_the_newest_checkpoint(tmp_path: Path) -> None:
    """An island that needs both of its nodes, and one of them is killed."""
    spec = crashing(
        "b",
        22.0,
        "until = 25.0\n",
        network=SIX.replace('"a", "b", "c", "d", "e", "f"', '"a", "b"'),
        strategy="none",
        islands="a+b:memory=18kB",
        limit_s=41.0,
        checkpoints=tmp_path / "kept",
        checkpoint_s=20.0,
    )
    simulate_run(spec, tmp_path / "t.jsonl", task=task())
    counts = {}
    for folder in ("00000020.000", "00000040.000"):
        _, nodes, _ = read_run(tmp_path / "kept" / folder, ("a", "b"), spec.identity)
        tensors = read_tensors(nodes["b"]["layers"].tobytes())
        counts[folder] = {layer: updates_in(tensors, layer) for layer in layers_in(tensors)}
    first, last = counts.values()
    assert first.keys() == last.keys()
    for layer, updates in last.items():
        if layer == 4:  # it has nothing to learn
            continue
        assert updates > first[layer] + 20, "it went on from there, and learned more"
    events = read_trace(tmp_path / "t.jsonl")
    before = [event.measure for event in events if isinstance(event, Tested) and event.at < 22]
    events = read_trace(tmp_path / "t.jsonl")
    after = [event.measure for event in events if isinstance(event, Tested) and 25 < event.at < 32]
    assert after[0] > before[-1] - 0.1, "it does not begin anew"

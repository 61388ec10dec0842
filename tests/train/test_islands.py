"""Runs of islands: they learn, they average exactly, and what users write is understood or refused."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW

from atoll.errors import TaskError
from atoll.island import Averaging
from atoll.network import load_network, parse_network
from atoll.report.results import read_result
from atoll.strategy import Quantity, parse_strategy
from atoll.trace import Exchanged, IslandsFormed, StageReported, Tested, Trace, read_trace
from atoll.train import Examples, RunSpec, Task, simulate
from atoll.train.islands import (
    Assembly,
    IslandNode,
    Layout,
    _copies,
    parse_islands,
    parse_size,
    survey_task,
)
from atoll.train.parts import Parts
from atoll.world import Simulation
from atoll.world.simworld import SimWorld

SIX = """
[[node]]
names = ["a", "b", "c", "d", "e", "f"]
step_s = 0.5
[[link]]
among = "*"
latency_ms = 5
rate_mbps = 50
"""


def task(lr: float = 0.05) -> Task:
    draw = torch.Generator().manual_seed(1)
    inputs = torch.randn(600, 8, generator=draw)
    targets = (inputs @ torch.randn(8, 4, generator=draw)).argmax(1)
    return Task(
        name="toy",
        model=lambda: nn.Sequential(
            nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 24), nn.BatchNorm1d(24), nn.Tanh(), nn.Linear(24, 4)
        ),
        optimizer=lambda parameters: SGD(parameters, lr=lr, momentum=0.9),
        target=0.9,
        batch=20,
        train=Examples(inputs[:500], targets[:500]),
        test=Examples(inputs[500:], targets[500:]),
        labels=targets[:500],
    )


def run(tmp_path: Path, islands: str, strategy: str = "allreduce:every=4,overlap", limit_s: float = 60.0) -> Path:
    network = parse_network(SIX, name="six")
    spec = RunSpec(network=network, task="toy", strategy=strategy, shards="iid", islands=islands, limit_s=limit_s)
    path = tmp_path / spec.file_name
    simulate(spec, path, task=task())
    return path


@pytest.mark.parametrize("settings", ["", ":weights=predict", ":weights=current,recompute,slower", ":flush=4"])
def test_islands_learn(tmp_path: Path, settings: str) -> None:
    path = run(tmp_path, f"a+b+c/d+e+f{settings}")
    result = read_result(path)
    assert result is not None
    assert result.seconds_to_target is not None, f"best was {result.best}"
    events = list(read_trace(path))
    formed = next(event for event in events if isinstance(event, IslandsFormed))
    assert [island.split()[0] for island in formed.islands] == ["a", "d"]
    assert {event.node for event in events if isinstance(event, Tested)} == {"c", "f"}, "last stages test"
    assert any(isinstance(event, Exchanged) for event in events)
    if not settings:
        stale = {event.stage: event.stale_most for event in events if isinstance(event, StageReported)}
        assert stale == {0: 2, 1: 1, 2: 0}, "a stage is as late as there are stages behind it"


def test_the_same_bytes_each_time(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    one, two = (run(tmp_path / name, "a+b/c+d+e", limit_s=6.0) for name in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()


def test_unequal_cuts_meet_at_the_mean_of_the_whole(tmp_path: Path) -> None:
    """Islands of two, three and one node whose models differ and do not learn: after an exchange all hold the mean."""
    still, settings = task(lr=0.0), parse_islands("a+b/c+d+e/f")
    network = parse_network(SIX, name="six")
    _, survey = survey_task(network, still, settings)
    layout = Layout(survey.plan_of(settings.islands), survey, settings)
    assert len({tuple(layout.spans[node] for node in nodes) for nodes in layout.islands.values()}) == 3
    parts = Parts(still, tuple(layout.islands), shards="iid", seed=0)
    whole = {name: Assembly(nodes, parts.tester, rising=True) for name, nodes in layout.islands.items()}
    nodes: dict[str, IslandNode] = {}

    async def program(world: SimWorld) -> None:
        node = nodes[world.name] = IslandNode(world, layout, still, parts, settings, seed=0)
        island = layout.seats[world.name].island
        whole[island].put(world, node.layers)
        with torch.no_grad():
            for number, each in enumerate(node.layers.parameters()):
                each.add_((1 + list(layout.islands).index(island)) * (number + 1) * 0.125)
        await node.run(parse_strategy("allreduce:every=2"))

    before = {}
    with Trace(tmp_path / "t.jsonl") as trace:
        simulation = Simulation(network, seed=0, trace=trace)
        simulation.run(program, limit_s=0.01)
        before = {name: each.read(Quantity.PARAMETERS) for name, each in whole.items()}
    nodes.clear()
    with Trace(tmp_path / "u.jsonl") as trace:
        Simulation(network, seed=0, trace=trace).run(program, limit_s=8.0)
    after = {name: each.read(Quantity.PARAMETERS) for name, each in whole.items()}
    index = whole["a"].model
    trained = sum(each.numel() for each in index.parameters())
    mean = np.mean(list(before.values()), axis=0)
    for values in after.values():
        np.testing.assert_allclose(values[:trained], mean[:trained], rtol=1e-6)
    assert not np.allclose(before["a"][:trained], before["c"][:trained])


def test_islands_are_found(tmp_path: Path) -> None:
    network, digits = load_network("nine"), task()
    _, survey = survey_task(network, digits, parse_islands("auto"))
    assert survey.plans()[0].name == "every node its own island"
    state = 4 * sum(layer.parameter_bytes for layer in survey.layers)
    assert survey.scaled(2 * state).layers[0].parameter_bytes == pytest.approx(
        2 * survey.layers[0].parameter_bytes * 4 / (2 + survey.terms.optimizer)
    )
    _, little = survey_task(network, digits, parse_islands("auto:memory=20kB"))
    best = little.plans(Averaging(every=4))[0]
    sites = [{little.machines[place].name[0] for place in island.order} for island in best.islands]
    assert {min(site) for site in sites if len(site) == 1} == {"A", "B", "C"}, "an island at each site"
    assert max(len(island.order) for island in best.islands) > 1
    path = tmp_path / "t.jsonl"
    spec = RunSpec(network=network, task="toy", strategy="none", islands="auto:memory=20kB", limit_s=5.0)
    simulate(spec, path, task=digits)
    formed = next(event for event in read_trace(path) if isinstance(event, IslandsFormed))
    assert len(formed.islands) == len(best.islands)


def test_what_an_optimizer_remembers() -> None:
    assert _copies(lambda parameters: SGD(parameters, lr=1.0)) == 0
    assert _copies(lambda parameters: SGD(parameters, lr=1.0, momentum=0.9)) == 1
    assert _copies(AdamW) == 2


def test_what_users_write() -> None:
    found = parse_islands("auto:memory=1.5GB,weights=predict,recompute,flush=8,wire=bf16")
    assert (found.islands, found.memory, found.weights, found.recompute) == ((), 1.5e9, "predict", True)
    assert (found.flush, found.wire, found.slower) == (8, "bf16", False)
    assert parse_islands("auto").memory == math.inf
    assert parse_size("300 MB") == 3e8
    for text, told in {
        "auto:weight=stash": "no setting 'weight'; did you mean",
        "auto:weights=old": "weights: ",
        "auto:flush=many": "flush: expected a number",
        "auto:recompute=2": "recompute: expected nothing, yes or no",
        "auto:memory=lots": "'lots' is no size",
        "auto:memory=1.2.3GB": "is no size",
    }.items():
        with pytest.raises(TaskError, match=told):
            parse_islands(text)


def test_islands_that_cannot_be(tmp_path: Path) -> None:
    for islands, told in {
        "a+x": "there is no node 'x'",
        "a+b/b+c": "b is in two places",
        "a:memory=1kB": "the island a cannot hold the model",
        "auto:memory=1kB": "can hold the model: it takes",
    }.items():
        with pytest.raises(TaskError, match=told):
            run(tmp_path, islands)


def test_examples_stay_at_home(tmp_path: Path) -> None:
    with pytest.raises((TaskError, BaseExceptionGroup)):
        run(tmp_path, "a+b/c+d", strategy="selsync:lenders=1,lend=0.5", limit_s=20.0)

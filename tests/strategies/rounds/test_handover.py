"""Who is new is handed what the others hold."""

from dataclasses import replace
from typing import cast

import numpy as np
import pytest
import torch

from atoll.strategies import parse_strategy
from atoll.strategies.rounds import handover
from atoll.strategies.rounds.lineage import Standing
from atoll.strategies.rounds.models import ModelRounds
from atoll.trace import ContributionRefused, Joined, Transferred
from atoll.vectors import Vector
from atoll.world import Physics
from atoll.world.base import World
from tests.strategies.nodes import Numbers, run_strategy
from tests.strategies.rounds.test_here import Events
from tests.world.networks import network

SIZE = 50_000


def alike(world: World) -> tuple[Numbers, Numbers]:
    return np.zeros(SIZE), np.full(SIZE, 1 + int(world.name))


def pieces(events: Events) -> list[Transferred]:
    found = [event for event in events.all if isinstance(event, Transferred)]
    return [event for event in found if event.channel == "state" and event.bytes > 1000]


def test_what_has_come_stays_when_the_host_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Node 2 begins anew and is handed the state by a host that vanishes in the middle; the other sends the rest."""
    monkeypatch.setattr(handover, "PIECE_BYTES", 10_000)
    net = network('[[node]]\ncount = 3\nstep_s = 0.5\n[[link]]\namong = "*"\nlatency_ms = 20\nrate_mbps = 1')
    crash = '[[fault]]\nkind = "crash"\nnodes = "2"\nat = 20\nuntil = 25\n'
    calm, events = Events(), Events()
    run_strategy(
        net, parse_strategy("allreduce:every=4"), alike, steps=160, physics=Physics(), trace=calm, script=crash
    )
    first = pieces(calm)
    assert len(first) == 4 * SIZE // 10_000
    (host,) = {event.sender for event in first}
    middle = first[len(first) // 2].at
    gone = f'[[fault]]\nkind = "crash"\nnodes = "{host}"\nat = {middle}\n'
    run_strategy(
        net, parse_strategy("allreduce:every=4"), alike, steps=160, physics=Physics(), trace=events, script=crash + gone
    )
    sent = pieces(events)
    assert {event.sender for event in sent} == {"0", "1"}
    assert len(sent) <= len(first) + 1, "no piece but the one that was under way came twice"
    (joined,) = [event.at for event in events.all if isinstance(event, Joined) and event.node == "2"]
    events.check()
    after = {event.node for event in events.exchanges() if event.at > joined and event.members == 2}
    assert after == {"0", "1", "2"} - {host}


@pytest.mark.parametrize("near", ["0", "1", "2"])
def test_the_nearest_is_asked(near: str) -> None:
    links = "\n".join(
        f'[[link]]\nbetween = ["{one}", "{other}"]\nlatency_ms = {5 if near in (one, other) else 60}\nrate_mbps = 20'
        for one, other in ("01", "02", "12", "03", "13", "23")
    )
    net = network(f"[[node]]\ncount = 4\nstep_s = 0.5\n{links}")
    crash = '[[fault]]\nkind = "crash"\nnodes = "3"\nat = 20\nuntil = 25\n'
    events = Events()
    run_strategy(
        net, parse_strategy("allreduce:every=4"), alike, steps=100, physics=Physics(), trace=events, script=crash
    )
    assert {event.sender for event in pieces(events)} == {near}


def test_a_state_that_is_not_finite_is_refused_and_so_is_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Node 1 says that it has done more than anybody, and has NaN for those who believe it; nobody takes it."""
    honest = cast("property", ModelRounds.__dict__["_standing"]).__get__

    def boast(rounds: ModelRounds) -> Standing:
        standing: Standing = honest(rounds)
        if rounds._replica.world.name != "1":
            return standing
        return replace(standing, agreements=(("9.x", 9),), work=(10**9,) * 3)

    def spoilt(rounds: ModelRounds) -> list[Vector] | None:
        found = out(rounds)
        if rounds._replica.world.name == "1":
            found = [torch.full((block.size,), np.nan) for block in rounds._driver.blocks]
            found.append(torch.zeros(0))
        return found

    out = ModelRounds._to_hand_out
    monkeypatch.setattr(ModelRounds, "_standing", property(boast))
    monkeypatch.setattr(ModelRounds, "_to_hand_out", spoilt)
    monkeypatch.setattr(ModelRounds, "stands", lambda *_: True)
    net = network('[[node]]\ncount = 3\nstep_s = 0.5\n[[link]]\namong = "*"\nlatency_ms = 20')
    away = '[[fault]]\nkind = "crash"\nnodes = "2"\nat = 10\nuntil = 15\n'
    events = Events()
    replicas = run_strategy(net, parse_strategy("allreduce:every=4"), alike, steps=120, trace=events, script=away)
    refused = [event for event in events.all if isinstance(event, ContributionRefused)]
    assert any(event.name.startswith("state") and event.node == "0" and "not finite" in event.why for event in refused)
    assert all(np.isfinite(replica.array).all() for replica in replicas.values())


def test_who_was_handed_a_model_does_not_hold_the_others_back() -> None:
    """Two have done thirty steps since they last agreed when a third is handed that agreement: the next round is a mean
    of what they have learned, not of that and of what they had.
    """
    net = network('[[node]]\ncount = 3\nstep_s = 0.5\n[[link]]\namong = "*"\nlatency_ms = 20')
    late = '[[fault]]\nkind = "crash"\nnodes = "2"\nat = 0\nuntil = 15\n'
    seen: dict[str, list[float]] = {"0": [], "1": [], "2": []}
    run_strategy(
        net,
        parse_strategy("allreduce:every=40"),
        lambda _: (np.zeros(4), np.ones(4)),
        steps=100,
        script=late,
        look=lambda replica: seen[replica.world.name].append(float(replica.array[0])),
    )
    assert min(np.diff(seen["0"])) > -1, "a model never goes back"
    assert max(seen["2"]) > 100, "and the third has it in the end"

"""Who is new is handed what the others hold."""

import numpy as np
import pytest

from atoll.strategy import handover, parse_strategy
from atoll.trace import Joined, Transferred
from atoll.world import Physics
from atoll.world.base import World
from tests.strategy.nodes import Numbers, run_strategy
from tests.strategy.test_here import Events
from tests.world.networks import network

SIZE = 50_000


def alike(world: World) -> tuple[Numbers, Numbers]:
    return np.zeros(SIZE), np.full(SIZE, 1 + int(world.name))


def pieces(events: Events) -> list[Transferred]:
    found = [event for event in events.all if isinstance(event, Transferred)]
    return [event for event in found if event.channel.startswith("state ") and event.bytes > 1000]


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
    replicas = run_strategy(
        net, parse_strategy("allreduce:every=4"), alike, steps=160, physics=Physics(), trace=events, script=crash + gone
    )
    sent = pieces(events)
    assert {event.sender for event in sent} == {"0", "1"}
    assert len(sent) <= len(first) + 1, "no piece but the one that was under way came twice"
    assert any(isinstance(event, Joined) and event.node == "2" for event in events.all)
    left = [replicas[name] for name in "012" if name != host]
    assert np.ptp([replica.values[0] for replica in left]) < 10


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

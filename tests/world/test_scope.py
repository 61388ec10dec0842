"""Worlds within a world: conversations on the same channel do not hear each other."""

import asyncio
from pathlib import Path

from atoll.network import parse_network
from atoll.trace import Trace
from atoll.world import Simulation
from atoll.world.base import Lane
from atoll.world.scope import Scoped
from atoll.world.sim.world import SimWorld


def test_each_conversation_hears_its_own(tmp_path: Path) -> None:
    network = parse_network('[[node]]\ncount = 2\nstep_s = 1\n[[link]]\namong = "*"\nlatency_ms = 10', name="two")
    heard: dict[str, tuple[bytes, float]] = {}

    async def program(world: SimWorld) -> None:
        one, other = Scoped(world, "one"), Scoped(world, "other")
        if world.name == "0":
            peer = other.peer("1")
            assert (peer.name, peer.reachable, peer.round_trip_s) == ("1", True, world.peer("1").round_trip_s)
            await peer.send("word", b"other")
            await one.peer("1").send("word", b"one", lane=Lane.CONTROL)
            await world.peer("1").send("word", b"outside")
            await asyncio.wait_for(one.peer("1").wait_until(reachable=True), 1)
        else:
            for name, scope in (("one", one), ("outside", world), ("other", other)):
                heard[name] = (await scope.receive("word")).head, scope.now
            assert await one.compute(lambda: 5, steps=2.0) == 5
            await other.sleep(1.0)
            assert await other.aside(lambda: 6) == 6
            assert world.now > 3
        assert (one.name, one.is_late, list(one.peer_names)) == (world.name, False, list(world.peer_names))
        assert one.sent_bytes == world.sent_bytes
        assert one.random is world.random
        one.load(one.save())

    with Trace(tmp_path / "t.jsonl") as trace:
        Simulation(network, seed=0, trace=trace).run(program, limit_s=10.0)
    assert {name: head for name, (head, _) in heard.items()} == {
        "one": b"one",
        "outside": b"outside",
        "other": b"other",
    }

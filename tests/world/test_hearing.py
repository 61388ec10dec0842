"""A member that talks nonsense costs the others nothing but its own contribution."""

import asyncio
import json
import struct
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.strategies import parse_strategy
from atoll.trace import MessageRefused
from atoll.training.drive import Background, Local, drive
from atoll.world import Physics, Simulation
from atoll.world.base import Lane, Message
from atoll.world.hearing import hear
from atoll.world.sim.world import SimWorld
from tests.strategies.nodes import VectorReplica
from tests.strategies.rounds.test_here import Events
from tests.world.networks import PAIR, network

CHANNELS = ["group", "push", "push ack", "change", "change ack", "all changes please", "ready", "call", "drift"]
CHANNELS += ["state please", "examples", "round 0/part", "round 0/all", "round 1/sum", "round 1/all"]
NAN = float("nan")
NEARLY_RIGHT = [
    ("drift", struct.pack("<d", 3.0)),
    ("drift", struct.pack("<d", NAN)),
    ("push", struct.pack("<IIdd", 1, 1, 0.0, 1.0)),
    ("push", struct.pack("<IIdd", 1, 0, 0.0, NAN)),
    ("push", struct.pack("<IIdd", 2, 0, NAN, -3.0)),
    ("push ack", struct.pack("<IB", 1, 1)),
    ("change", struct.pack("<Qd", 5, 0.0)),
    ("change", struct.pack("<Qd", 2**63, NAN)),
    ("ready", struct.pack("<QQf", 1, 1, NAN)),
    ("call", struct.pack("<QQ", 1, 2**63)),
]
"""Heads that can be read; what comes with them is garbage."""
HEADS = [
    b"",
    b"{}",
    b"[1, 2]",
    b"\xff" * 24,
    b'{"kind": "propose", "number": 10, "leader": "0"}',
    b'{"kind": "propose", "number": "x", "leader": 3, "hold_s": 1}',
    b'{"kind": "accept", "number": 0, "leader": "0", "view": 3, "summary": 4}',
    b'{"kind": "install", "number": 0, "leader": "0", "members": ["9"], "summaries": {"9": []}}',
    b'{"kind": "install", "number": 0, "leader": "0", "members": 3, "summaries": 5}',
    b'{"kind": "view", "number": 0, "leader": "0", "results": [[1]]}',
    b'{"view": "x", "number": 99999, "from": -5}',
]
THREE = network('[[node]]\ncount = 3\nstep_s = 0.5\n[[link]]\namong = "*"\nlatency_ms = 10\nrate_mbps = 20')


@pytest.mark.parametrize(
    "strategy",
    [
        "allreduce:every=2",
        "vrl:codec=int8",
        "gossip",
        "gossip:codec=int8",
        "gossip:codec=topk/0.1",
        "ssp",
        "ssp:codec=int4",
        "fda",
        "selsync",
        "daso",
    ],
)
def test_nonsense(strategy: str) -> None:
    """Node 2 says all kinds of things on all channels; the others take all their steps."""
    events = Events()
    random = Random(strategy)
    steps: dict[str, int] = {}
    ends: list[float] = []

    async def program(world: SimWorld) -> None:
        if world.name == "2":
            for number in range(200):
                nonsense = CHANNELS[number % len(CHANNELS)], HEADS[number % len(HEADS)]
                for channel, head in (nonsense, NEARLY_RIGHT[number % len(NEARLY_RIGHT)]):
                    body = random.randbytes(random.choice([0, 7, 8, 24, 40, 64, 184, number]))
                    for name in world.peer_names:
                        await world.peer(name).send(channel, head, body, lane=Lane.CONTROL)
                await world.sleep(0.1)
            return
        replica = VectorReplica(world, THREE.node_names, np.zeros(40), np.ones(40))
        talk = parse_strategy(strategy).start(replica)
        async with asyncio.TaskGroup() as group:
            background = Background(group)
            talk.prepare()
            talk.start(background)
            await drive(Local(replica), talk, background, goes_on=lambda: replica.steps < 60)
            steps[world.name] = replica.steps
            ends.append(float(replica.values.double().sum()))

    Simulation(THREE, seed=0, physics=Physics(), trace=events).run(program, limit_s=400)
    assert all(map(np.isfinite, ends)), "a model was spoilt"
    assert steps == {"0": 60, "1": 60}
    assert any(isinstance(event, MessageRefused) and event.sender == "2" for event in events.all)


@given(st.binary(max_size=30))
@settings(max_examples=30)
def test_what_is_understood_is_taken_and_the_rest_is_named(head: bytes) -> None:
    taken: list[Any] = []
    events = Events()

    def take(message: Message) -> None:
        taken.append(json.loads(message.head)["x"])

    async def program(world: SimWorld) -> None:
        if world.name == "0":
            await world.peer("1").send("c", head)
            await world.peer("1").send("c", b'{"x": 7}')
            return
        hearing = asyncio.ensure_future(hear(world, "c", take))
        await world.sleep(5)
        hearing.cancel()

    Simulation(network(PAIR), seed=0, trace=events).run(program)
    assert taken == [7]
    assert [event.why[:14] for event in events.all if isinstance(event, MessageRefused)] == ["not understood"]

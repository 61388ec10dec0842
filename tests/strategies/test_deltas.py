import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from atoll.strategies import parse_strategy
from atoll.strategies.changes import ChangeWire
from atoll.strategies.deltas import DeltaTalk
from atoll.strategies.talk import Spawn
from atoll.vectors import Vector
from atoll.world.base import Buffer, World
from atoll.world.sim.world import SimWorld
from tests.strategies.nodes import Numbers, VectorReplica, run_strategy
from tests.world.networks import network

THREE = network(
    '[[node]]\nnames = ["0", "1"]\nstep_s = 0.5\n[[node]]\nnames = ["2"]\nstep_s = 1.0\n'
    '[[link]]\namong = "*"\nlatency_ms = 20\nrate_mbps = 10\nup_s = 20\ndown_s = 5'
)


def moving(world: World) -> tuple[Numbers, Numbers]:
    return np.zeros(3), np.full(3, 1.0 + float(world.name))


def test_every_change_arrives_once() -> None:
    """After all is said, every model is x₀ and everybody's changes over N."""
    replicas = run_strategy(THREE, parse_strategy("ssp:bound=5"), moving, steps=40, linger_s=60)
    # A node takes arrivals in at its step boundaries, so the quick ones miss the end.  The slowest has heard most.
    slowest = replicas["2"].array[0]
    assert slowest == pytest.approx(40 * (1 + 2 + 3) / 3, rel=0.1)


@pytest.mark.parametrize("codec", ["int8", "chunk/1", "topk/0.4", "randk/0.5"])
def test_what_a_codec_leaves_out_arrives_later(codec: str) -> None:
    calm = network('[[node]]\ncount = 3\n[[link]]\namong = "*"\nlatency_ms = 20')
    replicas = run_strategy(calm, parse_strategy(f"ssp:bound=0,rate=2,codec={codec}"), moving, steps=200)
    expected = 2 * 200 * (1 + 2 + 3) / 3
    for replica in replicas.values():
        assert replica.array == pytest.approx(np.full(3, expected), rel=0.1)


@pytest.mark.parametrize("bound", [2, 8])
def test_nobody_runs_far_ahead(bound: int) -> None:
    steps: dict[str, int] = {}
    ahead = [0]

    def look(replica: VectorReplica) -> None:
        steps[replica.world.name] = replica.steps
        if len(steps) == 3:
            ahead[0] = max(ahead[0], max(steps.values()) - min(steps.values()))

    calm = network(
        '[[node]]\nnames = ["0", "1"]\n[[node]]\nnames = ["2"]\nstep_s = 1.0\n[[link]]\namong = "*"\nlatency_ms = 20'
    )
    run_strategy(calm, parse_strategy(f"ssp:bound={bound}"), moving, steps=40, look=look)
    assert ahead[0] <= bound + 1


def test_who_is_cut_off_slows_the_others_by_two_seconds_a_step_at_most() -> None:
    cut = network('[[node]]\ncount = 2\n[[link]]\namong = "*"\nlatency_ms = 20\noutages = [[2, 60]]')
    longest = [0.0]
    last: dict[str, float] = {}

    def look(replica: VectorReplica) -> None:
        longest[0] = max(longest[0], replica.world.now - last.get(replica.world.name, 0.0))
        last[replica.world.name] = replica.world.now

    run_strategy(cut, parse_strategy("ssp:bound=3"), moving, steps=40, look=look)
    assert longest[0] <= 2.5 + 1e-9


def test_who_begins_anew_is_told_everything() -> None:
    """It has all that the others ever changed, and slows nobody down."""
    calm = network('[[node]]\ncount = 3\nstep_s = 0.5\n[[link]]\namong = "*"\nlatency_ms = 20')
    crash = '[[fault]]\nkind = "crash"\nnodes = "2"\nat = 20\nuntil = 25\n'
    replicas = run_strategy(calm, parse_strategy("ssp:bound=5"), moving, steps=100, script=crash)
    others = 100 * (1 + 2) / 3
    own = (replicas["2"].steps * 3) / 3
    assert replicas["2"].array[0] == pytest.approx(others + own, rel=0.1)
    assert replicas["0"].steps == 100


def test_nobody_waits_for_a_seat_that_nobody_has_taken_or_for_one_that_hangs() -> None:
    """Over real links a run has more seats than nodes; and a machine whose training stands still can be reached."""
    net = network('[[node]]\ncount = 3\nstep_s = 0.5\n[[link]]\namong = "*"\nlatency_ms = 20')
    for kind, waits in (("crash", 0.6), ("hang", 3.0)):
        fault = f'[[fault]]\nkind = "{kind}"\nnodes = "2"\nat = 0\nuntil = 200\n'
        ends: dict[str, float] = {}

        def look(replica: VectorReplica, ends: dict[str, float] = ends) -> None:
            ends[replica.world.name] = replica.world.now

        run_strategy(net, parse_strategy("ssp:bound=3"), moving, steps=40, look=look, script=fault, linger_s=0.0)
        assert max(ends["0"], ends["1"]) <= 20 + waits, kind


def test_what_was_meant_for_who_had_the_place_before_is_not_counted_again() -> None:
    """A change that is under way when a node joins is also in what the joiner is told of everything."""
    slow = network(
        '[[node]]\ncount = 3\nstep_s = 0.5\n[[link]]\namong = "*"\nlatency_ms = 20\n'
        '[[link]]\nbetween = ["1", "2"]\nlatency_ms = 400'
    )
    late = '[[fault]]\nkind = "crash"\nnodes = "2"\nat = 0\nuntil = 40\n'

    def alone(world: World) -> tuple[Numbers, Numbers]:
        return np.zeros(3), np.full(3, float(world.name == "1"))

    replicas = run_strategy(slow, parse_strategy("ssp:bound=0"), alone, steps=200, script=late, linger_s=0.0)
    assert replicas["2"].array[0] == pytest.approx(replicas["1"].array[0], rel=0.1)


def test_who_nobody_tells_anything_begins_a_run_that_ends_when_it_meets_the_founders() -> None:
    """The two that are cut off have a run of their own, one of them joins the other's, and neither moves the founder's
    model by what they learned there.
    """
    net = network('[[node]]\ncount = 3\nstep_s = 0.5\n[[link]]\namong = "*"\nlatency_ms = 20')
    script = (
        '[[fault]]\nkind = "crash"\nnodes = ["1", "2"]\nat = 0\nuntil = 2\n'
        '[[fault]]\nkind = "partition"\nsides = [["0"], ["1", "2"]]\nat = 1\nuntil = 60\n'
    )
    together: dict[str, float] = {}
    founders = [0.0]

    def begin(world: World) -> tuple[Numbers, Numbers]:
        return np.full(3, 1000.0 * float(world.name)), np.ones(3)

    def look(replica: VectorReplica) -> None:
        if 50 < replica.world.now < 60:
            together[replica.world.name] = replica.array[0]
        if replica.world.name == "0":
            founders.append(float(replica.array[0]))

    replicas = run_strategy(net, parse_strategy("ssp:bound=0"), begin, steps=200, look=look, script=script)
    assert together["1"] > 900
    assert together["1"] == pytest.approx(together["2"], rel=0.01)
    assert max(after - before for before, after in itertools.pairwise(founders)) < 3
    ends = [replica.array[0] for replica in replicas.values()]
    assert ends == pytest.approx([ends[0]] * 3, rel=0.1)


def test_what_is_told_while_everything_is_written_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A newcomer drops changes that come before what they belong to: writing that takes longer, on another thread."""
    talks: dict[str, DeltaTalk] = {}
    start, write, offload = DeltaTalk.start, ChangeWire.write_base, SimWorld.offload
    slow: list[bool] = []

    def watched(talk: DeltaTalk, spawn: Spawn) -> None:
        talks[talk._replica.world.name] = talk
        start(talk, spawn)

    def write_slowly(wire: ChangeWire, base: Vector, changed: Vector) -> Buffer:
        slow.append(True)
        return write(wire, base, changed)

    async def on_several_threads(world: SimWorld, work: Callable[[], Any], *, values: int = 0) -> Any:
        result = await offload(world, work, values=values)
        if slow:
            slow.clear()
            await asyncio.sleep(2.0)
        return result

    monkeypatch.setattr(DeltaTalk, "start", watched)
    monkeypatch.setattr(ChangeWire, "write_base", write_slowly)
    monkeypatch.setattr(SimWorld, "offload", on_several_threads)
    calm = network('[[node]]\ncount = 3\nstep_s = 0.5\n[[link]]\namong = "*"\nlatency_ms = 20\nrate_mbps = 5')
    crash = '[[fault]]\nkind = "crash"\nnodes = "2"\nat = 10\nuntil = 12\n'
    run_strategy(calm, parse_strategy("ssp:bound=0"), moving, steps=60, script=crash)
    for name in ("0", "1"):
        told = talks[name]._told["2"]
        assert talks["2"]._theirs[name].tolist() == pytest.approx(told.tolist())

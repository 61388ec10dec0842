import numpy as np
import pytest
import torch

from atoll.network import Network, load_network
from atoll.strategies import parse_strategy
from atoll.world.base import World
from tests.strategies.nodes import Numbers, VectorReplica, run_strategy
from tests.strategies.rounds.test_here import Events
from tests.world.networks import network

FAST = network('[[node]]\ncount = 3\n[[link]]\namong = "*"\nlatency_ms = 10\nrate_mbps = 100')


def by_rank(world: World) -> tuple[Numbers, Numbers]:
    place = int(world.name)
    return np.full(5, float(place), dtype=np.float32), np.full(5, 1.0 + place, dtype=np.float32)


@pytest.mark.parametrize("via", ["star", "direct", "ring", "tree", "hd", "best"])
def test_after_a_round_everyone_has_the_mean(via: str) -> None:
    seen: dict[int, list[bytes]] = {}

    def look(replica: VectorReplica) -> None:
        if replica.steps % 2 == 0:
            seen.setdefault(replica.steps, []).append(replica.array.tobytes())

    run_strategy(FAST, parse_strategy(f"allreduce:every=2,via={via}"), by_rank, steps=12, look=look)
    # Means: they begin at 1 and move by 2 a step.
    for steps, values in seen.items():
        assert len(set(values)) == 1
        np.testing.assert_allclose(np.frombuffer(values[0], dtype=np.float32), 1 + 2 * steps, rtol=1e-5)


def test_a_gradient_is_averaged_before_it_is_used() -> None:
    replicas = run_strategy(
        FAST, parse_strategy("allreduce:quantity=gradient"), lambda world: (np.zeros(3), by_rank(world)[1][:3]), steps=7
    )
    for replica in replicas.values():
        np.testing.assert_allclose(replica.array, 14.0, rtol=1e-6)


def test_work_is_included_once() -> None:
    replicas = run_strategy(FAST, parse_strategy("allreduce:every=3"), by_rank, steps=9)
    for replica in replicas.values():
        assert replica.work.tolist() == [9, 9, 9]


def test_weights_by_work() -> None:
    """Where all have done the same number of steps it is the mean."""
    replicas = run_strategy(FAST, parse_strategy("allreduce:every=4,merge=work"), by_rank, steps=8)
    for replica in replicas.values():
        np.testing.assert_allclose(replica.array, 17.0, rtol=1e-5)


SLOW = network(
    '[[node]]\ncount = 2\nstep_s = 1\n[[link]]\namong = "*"\nlatency_ms = 10\nrate_mbps = 100\noutages = [[1.5, 21.5]]'
)


@pytest.mark.parametrize("quantity", ["parameters", "gradient"])
def test_a_cut_makes_a_blocking_round_an_overlapped_one(quantity: str) -> None:
    """Nobody waits for the 20 s that the link is away, and nothing that was learned meanwhile is lost."""
    longest = {"0": 0.0, "1": 0.0}
    last = {"0": 0.0, "1": 0.0}

    def look(replica: VectorReplica) -> None:
        name = replica.world.name
        longest[name] = max(longest[name], replica.world.now - last[name])
        last[name] = replica.world.now

    replicas = run_strategy(
        SLOW,
        parse_strategy(f"allreduce:quantity={quantity}"),
        lambda world: (np.zeros(2), by_rank(world)[1][:2]),
        steps=60,
        look=look,
    )
    assert max(longest.values()) <= 1 + 2 + 0.1  # a step, and the two seconds that a round is waited for
    ends = [replica.array for replica in replicas.values()]
    np.testing.assert_allclose(ends[0], ends[1], atol=3)  # who is done first takes part in no more rounds
    if quantity == "gradient":
        np.testing.assert_allclose(ends[0], 60 * 1.5, rtol=1e-5)  # everybody's steps, averaged
    else:  # and what was learned alone is brought along whole
        assert (ends[0] >= 60 * 1.5).all()
        assert (ends[0] <= 60 * 1.5 + 20).all()


def test_overlapped_rounds_never_wait_and_lose_nothing() -> None:
    replicas = run_strategy(SLOW, parse_strategy("allreduce:overlap"), by_rank, steps=60)
    ends = [replica.array for replica in replicas.values()]
    # The last rounds are still in the air when the steps end: the nodes are apart by at most a few steps' difference.
    assert np.abs(ends[0] - ends[1]).max() <= 3
    together = (ends[0] + ends[1]) / 2
    assert (together >= 0.5 + 58 * 1.5).all()
    assert (together <= 0.5 + 60 * 1.5 + 20).all()  # what was learned alone is brought along whole


@pytest.mark.parametrize("name", ["triangle", "line"])
def test_steps_wait_within_their_bound_in_any_weather(name: str) -> None:
    net: Network = load_network(name)
    longest = [0.0]
    last: dict[str, float] = {}

    def look(replica: VectorReplica) -> None:
        now = replica.world.now
        longest[0] = max(longest[0], now - last.get(replica.world.name, 0.0))
        last[replica.world.name] = now

    run_strategy(
        net, parse_strategy("allreduce"), lambda _: (np.zeros(1000), np.ones(1000)), steps=200, look=look, seed=5
    )
    assert longest[0] <= 0.5 + 30


def alike(world: World) -> tuple[Numbers, Numbers]:
    """All begin alike, as replicas do, and move at different speeds in different places."""
    place = int(world.name)
    step = np.zeros(6000, dtype=np.float32)
    step[place::3] = 1.0 + place
    return np.zeros(6000), step


def drive_mean(spec: str, steps: int = 24) -> list[Numbers]:
    return [replica.array for replica in run_strategy(FAST, parse_strategy(spec), alike, steps=steps).values()]


@pytest.mark.parametrize("codec", ["bf16", "int8", "int4", "bits2", "topk/0.2", "chunk/800", "randk/0.3", "dct/800"])
def test_with_a_codec_everyone_agrees_and_little_is_left_behind(codec: str) -> None:
    ends = drive_mean(f"allreduce:every=2,codec={codec}", steps=24)
    for end in ends:
        assert end.tobytes() == ends[0].tobytes(), "all hold the same bytes after a round"
    expected = alike_mean() * 24
    assert np.abs(ends[0] - expected).mean() < 0.35 * np.abs(expected).mean(), "feedback brings the rest"


def alike_mean() -> Numbers:
    step = np.zeros(6000)
    for place in range(3):
        step[place::3] = (1.0 + place) / 3
    return step


def test_fragments_take_turns() -> None:
    ends = drive_mean("diloco:every=2,rate=1,momentum=0,fragments=3", steps=12)
    # Six rounds: the third fragment was agreed on at the last, the first two 2 and 4 steps before.
    assert [np.unique(end[4000:]).size for end in ends] == [3, 3, 3]
    np.testing.assert_allclose(ends[0][4000:], (alike_mean() * 12)[4000:], rtol=1e-5)
    assert not np.array_equal(ends[0][:2000], ends[1][:2000])


def test_a_contribution_that_is_not_finite_costs_that_contribution() -> None:
    def one_fails(world: World) -> tuple[Numbers, Numbers]:
        return np.zeros(4), np.ones(4)

    def look(replica: VectorReplica) -> None:
        if replica.world.name == "1" and replica.steps == 3:
            replica.array = np.array([1.0, np.nan, np.inf, 2.0])

    for spec in ("allreduce:every=4", "allreduce:every=4,codec=int8"):
        replicas = run_strategy(FAST, parse_strategy(spec), one_fails, steps=12, look=look)
        for replica in replicas.values():
            np.testing.assert_allclose(replica.array, 12.0, rtol=1e-2)


def test_sparseloco_says_little_and_agrees() -> None:
    ends = drive_mean("sparseloco:every=2,keep=800", steps=24)
    assert all(end.tobytes() == ends[0].tobytes() for end in ends)
    assert 0.3 < ends[0].sum() / (alike_mean().sum() * 24) < 3.5, "positions are averaged over who sent them"


def test_a_correction_that_comes_one_step_late_is_not_overwritten() -> None:
    """The round that is late by one step is corrected at the boundary at which the next begins, and ends in time."""
    net = network(
        '[[node]]\ncount = 2\nstep_s = 1\n[[link]]\namong = "*"\nlatency_ms = 10\nrate_mbps = 100\n'
        "outages = [[3.5, 6.3]]"
    )
    replicas = run_strategy(
        net,
        parse_strategy("allreduce:quantity=gradient"),
        lambda world: (np.zeros(2), by_rank(world)[1][:2]),
        steps=20,
    )
    for replica in replicas.values():
        np.testing.assert_allclose(replica.array, 20 * 1.5, rtol=1e-5)


@pytest.mark.parametrize(
    "spec", ["allreduce:every=4", "diloco:every=4", "noloco:every=4", "allreduce:every=4,codec=int8"]
)
def test_where_nobody_has_anything_of_use_the_last_agreement_holds(spec: str) -> None:
    def look(replica: VectorReplica) -> None:
        if replica.steps == 6:
            replica.array = np.full(4, np.nan, dtype=np.float32)

    replicas = run_strategy(FAST, parse_strategy(spec), lambda _: (np.full(4, 5.0), np.ones(4)), steps=10, look=look)
    for replica in replicas.values():
        assert np.isfinite(replica.array).all()
        assert replica.array.min() > 4, "not from nothing"


def test_a_gradient_that_is_not_finite_costs_one_step() -> None:
    def look(replica: VectorReplica) -> None:
        replica.step = torch.full((4,), np.nan if replica.steps == 3 and replica.world.name == "1" else 1.0)

    for spec in ("allreduce:quantity=gradient,overlap", "allreduce:quantity=gradient", "demo", "powersgd"):
        replicas = run_strategy(FAST, parse_strategy(spec), lambda _: (np.zeros(4), np.ones(4)), steps=12, look=look)
        for replica in replicas.values():
            assert np.isfinite(replica.array).all()
            assert replica.array.mean() > 4


def test_signs_are_the_same_for_all() -> None:
    ends = [r.array for r in run_strategy(FAST, parse_strategy("demo"), alike, steps=6).values()]
    assert all(end.tobytes() == ends[0].tobytes() for end in ends)


@pytest.mark.parametrize("spec", ["allreduce:every=2", "diloco:every=2", "vrl", "allreduce:quantity=gradient", "fda"])
def test_a_node_that_is_alone_holds_no_rounds(spec: str) -> None:
    """Its strategy costs it nothing, and it learns just what it learns without one."""
    net = network('[[node]]\ncount = 2\nstep_s = 0.5\n[[link]]\namong = "*"\nlatency_ms = 20')
    away = '[[fault]]\nkind = "crash"\nnodes = "1"\nat = 0\n'
    events = Events()
    replicas = run_strategy(
        net, parse_strategy(spec), lambda _: (np.zeros(4), np.ones(4)), steps=60, trace=events, script=away
    )
    assert [event for event in events.exchanges() if event.at > 10] == []
    assert replicas["0"].array.tolist() == [60.0] * 4

"""Long vectors are exchanged in blocks, and nothing else is different."""

import numpy as np
import pytest
import torch

from atoll import memory
from atoll.memory import VectorMemory
from atoll.strategies import Quantity, parse_strategy
from atoll.strategies.parts.part import part
from atoll.strategies.parts.when import Every
from atoll.strategies.rounds import exchange, models
from atoll.strategies.rounds.composition import RoundParts
from atoll.strategies.rounds.fragment import cut as cut_up
from atoll.strategies.rounds.lineage import Agreement, Lineage
from atoll.strategies.talk import Spawn
from atoll.trace import Joined
from atoll.vectors import Vector
from atoll.world.base import World
from tests.strategies.nodes import Numbers, VectorReplica, run_strategy
from tests.strategies.rounds.test_here import Events
from tests.world.networks import network

CALM = '[[node]]\ncount = 3\nstep_s = 0.5\n[[link]]\namong = "*"\nlatency_ms = 20\nrate_mbps = 5\n'
CRASH = '[[fault]]\nkind = "crash"\nnodes = "2"\nat = 20\nuntil = 30\n'
VALUES = 40


def apart(world: World) -> tuple[Numbers, Numbers]:
    rank = int(world.name)
    return np.linspace(0, 1, VALUES), np.cos(np.arange(VALUES) + rank)


def run(
    spec: str, block: int, monkeypatch: pytest.MonkeyPatch, script: str = ""
) -> tuple[dict[str, VectorReplica], Events]:
    monkeypatch.setattr(VectorReplica, "block_values", block)
    monkeypatch.setattr(exchange, "MOST_UNDER_WAY", 3)
    events = Events()
    replicas = run_strategy(network(CALM), parse_strategy(spec), apart, steps=60, trace=events, script=script)
    return replicas, events


@pytest.mark.parametrize(
    "spec",
    [
        "allreduce:every=4",
        "allreduce:every=4,via=ring",
        "allreduce:every=4,via=gather",
        "allreduce:every=4,via=star",
        "allreduce:gradient",
        "diloco:every=4",
        "diloco:every=4,fragments=2",
        "admm:every=4",
        "vrl:every=4",
    ],
)
def test_blocks_come_to_what_the_whole_vector_comes_to(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a value's mean does not depend on other values."""
    whole, _ = run(spec, 1 << 20, monkeypatch)
    cut, events = run(spec, 7, monkeypatch)
    events.check()
    for name, replica in whole.items():
        assert cut[name].values == pytest.approx(replica.array, rel=1e-4, abs=1e-4)
        assert cut[name].work.tolist() == replica.work.tolist()


@pytest.mark.parametrize(
    "spec",
    [
        "allreduce:every=3,codec=int8",
        "diloco:every=3,codec=bits1,overlap",
        "sparseloco:every=3",
        "allreduce:every=3,robust=median",
        "flexible",
        "powersgd:every=3",
        "gossip",
    ],
)
def test_all_members_hold_the_same_bytes(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is sent of blocks, and when a member vanishes while they are under way."""
    replicas, events = run(spec, 7, monkeypatch, CRASH)
    events.check()
    assert all(np.isfinite(replica.array).all() for replica in replicas.values())
    if spec != "gossip":
        assert sum(event.node == "0" for event in events.exchanges()) > 5


def test_a_block_that_is_not_finite_spoils_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its member takes what the others have there."""

    def spoil(replica: VectorReplica) -> None:
        if replica.world.name == "1" and replica.steps == 6:
            replica.values[3] = np.nan

    monkeypatch.setattr(VectorReplica, "block_values", 7)
    events = Events()
    net, strategy = network(CALM), parse_strategy("allreduce:every=4")
    replicas = run_strategy(net, strategy, apart, steps=20, trace=events, look=spoil)
    events.check()
    assert all(np.isfinite(replica.array).all() for replica in replicas.values())
    assert len(events.exchanges()) == 15


def test_blocks_that_all_have_stay_when_a_round_is_cut_in_the_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sides of a partition go on from the blocks that both have agreed on, and nobody is handed a model."""
    size, blocks = 20_000, 40
    monkeypatch.setattr(VectorReplica, "block_values", size // blocks)
    numbers: list[int] = []
    honest = Lineage.back_to

    def back_to(lineage: Lineage, agreement: Agreement) -> list[Vector]:
        numbers.append(agreement[1] % blocks)
        return honest(lineage, agreement)

    monkeypatch.setattr(Lineage, "back_to", back_to)
    links = '[[node]]\ncount = 3\nstep_s = 0.5\n[[link]]\namong = "*"\nlatency_ms = 20\nrate_mbps = 0.5\n'
    cut = '[[fault]]\nkind = "partition"\nsides = ["0", "[12]"]\nat = {at}\nuntil = {until}\n'
    script = "".join(cut.format(at=at, until=at + 9) for at in (9.7, 30.1, 51.3, 72.9))
    events = Events()

    def steps(world: World) -> tuple[Numbers, Numbers]:
        return np.zeros(size), np.full(size, 1.0 + int(world.name))

    run_strategy(
        network(links), parse_strategy("allreduce:every=2,overlap"), steps, steps=220, trace=events, script=script
    )
    events.check()
    assert not any(isinstance(event, Joined) for event in events.all)
    assert any(number > 0 for number in numbers), "some views begin in the middle of a round"
    assert {event.node for event in events.exchanges() if event.at > 90} == {"0", "1", "2"}


def test_results_of_a_round_that_is_cut_in_the_middle_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What members have sent is in the models, also of blocks that were accepted before others went back."""
    size, blocks, steps = 4_000, 40, 160
    monkeypatch.setattr(VectorReplica, "block_values", size // blocks)
    rounds: list[models.ModelRounds] = []
    start = models.ModelRounds.start

    def watched(each: models.ModelRounds, spawn: Spawn) -> None:
        rounds.append(each)
        start(each, spawn)

    monkeypatch.setattr(models.ModelRounds, "start", watched)
    links = '[[node]]\ncount = 3\nstep_s = 0.5\n[[link]]\namong = "*"\nlatency_ms = 20\nrate_mbps = 0.05\n'
    cut = '[[fault]]\nkind = "partition"\nsides = ["0", "[12]"]\nat = {at}\nuntil = {until}\n'
    script = "".join(cut.format(at=at, until=at + 9) for at in (9.7, 30.1, 51.3))

    def drawn(world: World) -> tuple[Numbers, Numbers]:
        return np.zeros(size), np.random.default_rng(int(world.name)).normal(size=size)

    strategy = parse_strategy("allreduce:every=2,codec=chunk/32,overlap")
    replicas = run_strategy(network(links), strategy, drawn, steps=steps, script=script)
    learned = np.sum([replica.array for replica in replicas.values()], axis=0)
    for each in rounds:
        for block in each._driver.blocks:
            if block.feedback.kept is not None:
                learned[block.span] += block.feedback.kept.numpy()
    there_is = steps * np.sum([np.random.default_rng(rank).normal(size=size) for rank in range(3)], axis=0)
    assert np.linalg.norm(learned - there_is) < 0.05 * np.linalg.norm(there_is)


@pytest.mark.parametrize("more", ["", ",overlap"])
@pytest.mark.parametrize("spec", ["allreduce:every=4", "diloco:every=4,rate=1,momentum=0,codec=int8"])
def test_small_steps_count_where_state_is_rough(spec: str, more: str) -> None:
    """Steps of less than what bfloat16 can tell apart."""
    steps, step, begin = 60, 1e-5, 0.05
    strategy = parse_strategy(f"{spec},state=bfloat16{more}")
    replicas = run_strategy(network(CALM), strategy, lambda _: (np.full(40, begin), np.full(40, step)), steps=steps)
    for replica in replicas.values():
        assert replica.array - begin == pytest.approx(steps * step, rel=0.01)


def test_rounds_of_gradients_keep_no_model() -> None:
    replica = VectorReplica.__new__(VectorReplica)
    replica.values = torch.zeros(40)
    for quantity, copies in (("gradient", 0), ("parameters", 1)):
        parts = RoundParts(when=part(Every, 1), quantity=Quantity(quantity))
        [fragment] = cut_up(replica, parts, absolute=True, is_model=quantity == "parameters")
        [block] = fragment.blocks
        block.start(torch.ones(40))
        assert block.kept_bytes == copies * 4 * 40
        assert (block.agreed is not None) == bool(copies)


def test_what_nodes_declare_for_encoding_is_part_of_an_exchange() -> None:
    """Encoding its two shares, adding up its own, decoding the others', and the rest takes what it declares."""
    took = {}
    for encode_ms in (0, 1_000_000):
        net = network(CALM.replace("step_s = 0.5", f"step_s = 0.5\nencode_ms = {encode_ms}"))
        events = Events()
        run_strategy(net, parse_strategy("allreduce:every=4,codec=int8"), apart, steps=20, trace=events)
        took[encode_ms] = {round(event.at - event.since, 3) for event in events.exchanges()}
    computed = 1e-3 * (VALUES + 2 * VALUES / 3 + VALUES + 2 * VALUES / 3 + VALUES + VALUES)
    assert max(took[0]) < 0.1
    assert min(took[1_000_000]) == pytest.approx(max(took[0]) + computed, rel=0.15)


@pytest.mark.parametrize("state", ["float32", "bfloat16"])
@pytest.mark.parametrize("spec", ["allreduce:every=4,overlap", "diloco:every=4,codec=int8,overlap"])
def test_rounds_need_the_memory_that_they_say(spec: str, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept, and the blocks under way; a replica of the tests takes its snapshots elsewhere."""
    count, block = 1 << 20, 1 << 17
    vectors, told = VectorMemory(), list[int]()
    monkeypatch.setattr(memory, "empty_bytes", vectors.empty_bytes)
    monkeypatch.setattr(VectorReplica, "block_values", block)
    said = exchange.memory_bytes
    start = models.ModelRounds.start

    def watched(rounds: models.ModelRounds, spawn: Spawn) -> None:
        told.append(said(rounds._driver.fragments) - 4 * count)
        start(rounds, spawn)

    monkeypatch.setattr(models.ModelRounds, "start", watched)
    numbers = np.zeros(count), np.cos(np.arange(count))
    strategy = parse_strategy(f"{spec},state={state}")
    run_strategy(network(CALM), strategy, lambda _: numbers, steps=30, linger_s=5.0)
    assert len(told) == 3
    assert 0.5 * sum(told) < vectors.most_bytes <= sum(told)

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from atoll.collectives import Round
from atoll.collectives.robust import RobustRule, robust_mean
from atoll.strategies import parse_strategy
from atoll.trace import ContributionRefused, Event
from atoll.vectors import of_array
from atoll.world import Physics
from atoll.world.base import World
from tests.strategies.nodes import Numbers, VectorReplica, run_strategy
from tests.world.networks import network

NET = network('[[node]]\ncount = 5\nstep_s = 0.5\n[[link]]\namong = "*"\nlatency_ms = 10\nrate_mbps = 100')
RULES: list[RobustRule] = ["median", "trimmed", "clipped"]


@given(hnp.arrays(np.float32, st.tuples(st.integers(1, 9), st.integers(1, 4)), elements=st.floats(-99, 99, width=16)))
def test_each_rule_is_what_it_says(stacked: Numbers) -> None:
    """Against loops."""
    count = len(stacked)
    cut = min(-(-count // 5), (count - 1) // 2)
    vectors = [of_array(each) for each in stacked]
    for place in range(stacked.shape[1]):
        column = sorted(float(each) for each in stacked[:, place])
        middle = column[count // 2] if count % 2 else (column[count // 2 - 1] + column[count // 2]) / 2
        assert float(robust_mean(vectors, "median")[place]) == pytest.approx(middle, abs=1e-4)
        left = column[cut : count - cut]
        assert float(robust_mean(vectors, "trimmed")[place]) == pytest.approx(sum(left) / len(left), rel=1e-3, abs=1e-3)
    lengths = [float(np.sqrt((each.astype(float) ** 2).sum())) for each in stacked]
    middle = float(np.median(lengths))
    expected = sum(each * min(1, middle / max(length, 1e-30)) for each, length in zip(stacked, lengths, strict=True))
    assert robust_mean(vectors, "clipped").numpy() == pytest.approx(expected / count, rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("rule", RULES)
def test_the_same_vectors_give_that_vector(rule: RobustRule) -> None:
    vector = torch.tensor([1.0, -2.0])
    assert robust_mean([vector] * 4, rule).tolist() == pytest.approx(vector.tolist())


class Refusals:
    def __init__(self) -> None:
        self.said: list[ContributionRefused] = []

    def record(self, event: Event) -> None:
        if isinstance(event, ContributionRefused):
            self.said.append(event)

    def flush(self) -> None:
        """Nothing is written."""


def together(world: World) -> tuple[Numbers, Numbers]:
    return np.zeros(50), np.ones(50) + 0.1 * int(world.name)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("codec", ["", ",codec=int8"])
@pytest.mark.parametrize("damage", ["times 100", "garbage"])
def test_one_member_in_five_cannot_spoil_it(
    rule: RobustRule, codec: str, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest, draw, seen = Round.gather, np.random.default_rng(0), Refusals()

    async def gather(meeting: Round, body: bytes, tag: str = "all") -> list[bytes | memoryview]:
        if damage == "garbage" and meeting.world.name == "3":
            body = draw.integers(0, 256, len(body), dtype=np.uint8).tobytes()
        return await honest(meeting, body, tag)

    def look(replica: VectorReplica) -> None:
        if damage == "times 100" and replica.world.name == "3" and replica.steps % 2 == 1:
            replica.array = replica.array * 100 + 5

    monkeypatch.setattr(Round, "gather", gather)
    spec = parse_strategy(f"allreduce:every=2,robust={rule}{codec}")
    replicas = run_strategy(NET, spec, together, steps=40, look=look, trace=seen, physics=Physics())
    for replica in replicas.values():
        assert replica.array == pytest.approx(np.full(50, 40 * 1.2), rel=0.1)
    assert any("3: " in event.why and event.node != "3" for event in seen.said), "it is named"

import math
import random

from hypothesis import given
from hypothesis import strategies as st

from atoll.strategies.parts.whom import Acquaintance, Aware, Exponential, Pairs, Turn, Uniform

TURN = Turn("me", ("me", "a", "b", "c"), 0)


def test_uniform_takes_what_there_is() -> None:
    draw = random.Random(0)
    assert sorted(Uniform()(TURN, ["a", "b"], 5, {}, draw)) == ["a", "b"]
    counts = dict.fromkeys("abc", 0)
    for _ in range(3000):
        [pick] = Uniform()(TURN, ["a", "b", "c"], 1, {}, draw)
        counts[pick] += 1
    assert all(900 < count < 1100 for count in counts.values())


def test_aware_draws_by_speed_explores_and_is_curious() -> None:
    draw = random.Random(0)
    known = {"quick": Acquaintance(seconds=1.0), "slow": Acquaintance(seconds=9.0)}
    picks = [Aware(explore=0.1)(TURN, ["quick", "slow"], 1, known, draw)[0] for _ in range(4000)]
    assert 0.12 < picks.count("slow") / 4000 < 0.17  # 0.9 · 1/10 + 0.1 · 1/2 = 0.14
    known["new"] = Acquaintance()
    picks = [Aware(explore=0.0)(TURN, ["quick", "slow", "new"], 1, known, draw)[0] for _ in range(4000)]
    assert abs(picks.count("new") - picks.count("quick")) < 250


def test_acquaintance_is_a_running_mean() -> None:
    known = Acquaintance()
    assert math.isnan(known.seconds)
    known.acknowledged(2.0)
    known.acknowledged(4.0)
    assert known.seconds == 0.7 * 2 + 0.3 * 4


@given(count=st.integers(2, 17), number=st.integers(0, 500))
def test_pairs_are_the_same_for_both_and_nobody_is_in_two(count: int, number: int) -> None:
    members = tuple(f"n{place}" for place in range(count))
    groups = {name: Pairs()(name, number, members) for name in members}
    for name, group in groups.items():
        assert name in group
        assert len(group) <= 2
        assert all(groups[other] == group for other in group)
    assert sum(len(group) == 1 for group in groups.values()) == count % 2


def test_one_peer_at_a_time_in_growing_steps() -> None:
    members = tuple(f"n{place}" for place in range(8))
    others = [name for name in members if name != "n6"]
    draw = random.Random(0)
    turns = [Turn("n6", members, number) for number in range(4)]
    assert [Exponential()(turn, others, 1, {}, draw) for turn in turns] == [["n7"], ["n0"], ["n2"], ["n7"]]
    assert Exponential()(turns[0], [], 1, {}, draw) == []

import math
import random

from atoll.strategy.whom import Acquaintance, Aware, Uniform


def test_uniform_takes_what_there_is() -> None:
    draw = random.Random(0)
    assert sorted(Uniform()(["a", "b"], 5, {}, draw)) == ["a", "b"]
    counts = dict.fromkeys("abc", 0)
    for _ in range(3000):
        [pick] = Uniform()(["a", "b", "c"], 1, {}, draw)
        counts[pick] += 1
    assert all(900 < count < 1100 for count in counts.values())


def test_aware_draws_by_speed_explores_and_is_curious() -> None:
    draw = random.Random(0)
    known = {"quick": Acquaintance(seconds=1.0), "slow": Acquaintance(seconds=9.0)}
    picks = [Aware(explore=0.1)(["quick", "slow"], 1, known, draw)[0] for _ in range(4000)]
    assert 0.12 < picks.count("slow") / 4000 < 0.17  # 0.9 · 1/10 + 0.1 · 1/2 = 0.14
    known["new"] = Acquaintance()
    picks = [Aware(explore=0.0)(["quick", "slow", "new"], 1, known, draw)[0] for _ in range(4000)]
    assert abs(picks.count("new") - picks.count("quick")) < 250


def test_acquaintance_is_a_running_mean() -> None:
    known = Acquaintance()
    assert math.isnan(known.seconds)
    known.acknowledged(2.0)
    known.acknowledged(4.0)
    assert known.seconds == 0.7 * 2 + 0.3 * 4

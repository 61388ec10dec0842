import numpy as np

from atoll.exchange import Vector
from atoll.strategy.lineage import KEPT, START, Agreement, Lineage, read_summary


def held(value: float) -> list[Vector]:
    return [np.full(2, value, dtype=np.float32)]


def agreements(lineage: Lineage) -> list[Agreement]:
    return read_summary(lineage.summary())


def test_the_last_agreement_that_all_have_is_the_common_ancestor() -> None:
    one, other = Lineage(held(0)), Lineage(held(0))
    for number in range(1, 8):
        for each in (one, other):
            each.agreed("0.a", number, held(number))
    one.ends()
    other.ends()
    one.agreed("1.a", 1, held(10))
    other.agreed("1.b", 1, held(20))
    other.agreed("1.b", 2, held(30))
    common = Lineage.chosen([agreements(one), agreements(other)])
    assert common == ("0.a", 7)
    assert one.back_to(common)[0][0] == other.back_to(common)[0][0] == 7
    assert one.current == other.current == ("0.a", 7)


def test_a_round_that_only_some_have_finished() -> None:
    ahead, behind = Lineage(held(0)), Lineage(held(0))
    for number in (1, 2):
        ahead.agreed("0.a", number, held(number))
    behind.agreed("0.a", 1, held(1))
    for each in (ahead, behind):
        each.ends()
    common = Lineage.chosen([agreements(ahead), agreements(behind)])
    assert common == ("0.a", 1)
    assert ahead.back_to(common)[0][0] == 1


def test_who_is_new_goes_on_from_what_others_have() -> None:
    old, new = Lineage(held(0)), Lineage(held(0), ("b at 7.5", 0))
    old.agreed("0.a", 1, held(1))
    assert Lineage.chosen([agreements(new), agreements(old)]) == ("0.a", 1)
    new.adopt(old.current, held(1))
    assert Lineage.chosen([agreements(old), agreements(new)]) == ("0.a", 1)


def test_memory_is_bounded() -> None:
    own = Lineage(held(0))
    for view in range(50):
        for number in range(1, 5):
            own.agreed(f"{view}.a", number, held(view))
        own.ends()
    assert len(own.summary()) <= KEPT + 2
    assert START not in agreements(own)
    assert own.current == ("49.a", 4)


def test_what_most_have_is_chosen_though_one_is_new_and_one_behind() -> None:
    ahead, behind, new = Lineage(held(0)), Lineage(held(0)), Lineage(held(0), ("c at 7.5", 0))
    for number in (1, 2, 3):
        ahead.agreed("0.a", number, held(number))
        if number < 3:
            behind.agreed("0.a", number, held(number))
    assert Lineage.chosen([agreements(new), agreements(ahead), agreements(behind)]) == ("0.a", 2)
    assert ("0.a", 2) in ahead
    assert ("0.a", 2) not in new


def test_who_has_begun_with_all_others_keeps_what_it_has() -> None:
    assert Lineage.chosen([[("c at 7.5", 0)], [("", 0)]]) == ("", 0)

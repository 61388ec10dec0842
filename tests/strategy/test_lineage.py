import numpy as np

from atoll.strategy.lineage import KEPT, Lineage


def vector(value: float) -> list[np.ndarray[tuple[int], np.dtype[np.float32]]]:
    return [np.full(2, value, dtype=np.float32)]


def test_the_last_agreement_that_both_have_is_the_common_ancestor() -> None:
    own = Lineage()
    own.agreed("0.a", 7)
    own.ends(vector(7), given=None)
    own.agreed("1.b", 3)
    own.ends(vector(10), given=None)
    base = own.base([("", 0), ("0.a", 7), ("1.a", 9)])
    assert base is not None
    assert base[0][0] == 7
    assert own.base([("0.a", 6), ("1.a", 9)]) is None


def test_what_was_given_to_a_round_that_others_finished_counts_as_agreed() -> None:
    own = Lineage()
    own.agreed("0.a", 7)
    own.ends(vector(7), given=(("0.a", 8), vector(7.5)))
    finished, not_finished = own.base([("0.a", 8)]), own.base([("0.a", 7)])
    assert finished is not None
    assert not_finished is not None
    assert (finished[0][0], not_finished[0][0]) == (7.5, 7)
    assert own.summary()[-1] == ["0.a", 7], "the node itself does not hold it"


def test_memory_is_bounded() -> None:
    own = Lineage()
    for number in range(50):
        own.agreed(f"{number}.a", 1)
        own.ends(vector(number), given=((f"{number}.a", 2), vector(number)))
    assert len(own.summary()) == KEPT + 1
    assert own.base([("3.a", 1)]) is None


def test_who_joins_has_behind_it_what_the_others_have() -> None:
    own, other = Lineage(), Lineage()
    other.agreed("1.b", 4)
    other.ends(vector(1), given=None)
    own.adopt([(str(view), int(number)) for view, number in other.summary()])
    assert own.summary() == other.summary()

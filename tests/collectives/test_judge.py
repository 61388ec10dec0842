import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atoll.collectives import Judge, Lengths, TrailerLayout
from atoll.collectives.judge import FAR_OUT, HEAVY
from atoll.collectives.lengths import PATIENCE
from atoll.vectors import Numbers, Vector, added

NAMES = ("a", "b", "c", "d")


def vectors(*lengths: float, origin: float = 0.0) -> list[Vector]:
    return [torch.full((4,), origin + length / 2) for length in lengths]


def trailers(*weights: float, work: tuple[int, ...] = ()) -> list[Numbers]:
    counts = work or (0,) * len(weights)
    return [np.array([weight, count], dtype=np.float32) for weight, count in zip(weights, counts, strict=True)]


class Heard(list[str]):
    def __call__(self, name: str, why: str) -> None:
        self.append(f"{name}: {why}")


class OfRounds(Judge):
    """Every sum is a round of its own."""

    lenient = False
    of: Vector | None = None

    def add_up(
        self, members: tuple[str, ...], vectors: list[Vector], trailers: list[Numbers], *_: Any, **more: Any
    ) -> tuple[Vector, Numbers]:
        self.begin("round 7", far_out=math.inf if self.lenient else FAR_OUT)
        return super().add_up(members, vectors, trailers, self.of, **more)


def judge(*, lenient: bool = False, origin: Vector | None = None) -> tuple[Judge, Heard]:
    heard = Heard()
    found = OfRounds(TrailerLayout(counts=2, work=lambda trailer, _: int(trailer[1])), heard)
    found.lenient, found.of = lenient, origin
    return found, heard


@given(st.lists(st.floats(1, 4, width=16), min_size=2, max_size=4), st.booleans())
def test_what_is_alike_is_just_added(lengths: list[float], lenient: bool) -> None:  # noqa: FBT001 - drawn
    found, heard = judge(lenient=lenient)
    given_ = vectors(*lengths)
    total, tail = found.add_up(NAMES[: len(lengths)], given_, trailers(*[1.0] * len(lengths)))
    assert torch.equal(total, added(given_))
    assert tail[0] == len(lengths)
    assert heard == []


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("lenient", [True, False])
def test_what_is_not_finite_is_refused_always(wrong: float, lenient: bool) -> None:  # noqa: FBT001
    found, heard = judge(lenient=lenient)
    for _ in range(2 * PATIENCE):
        brought = vectors(2, 2, 2)
        brought[1][3] = wrong
        total, tail = found.add_up(NAMES[:3], brought, trailers(1, 1, 1))
        assert (total / tail[0]).tolist() == [1, 1, 1, 1], "the mean of the others"
    assert heard[0] == "round 7: b: not finite"


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -1.0, 1e9])
def test_a_trailer_that_makes_no_sense_counts_for_nothing(wrong: float) -> None:
    found, heard = judge()
    total, tail = found.add_up(NAMES[:3], vectors(2, 2, 2), trailers(1, wrong, 1))
    assert tail[0] == 2
    assert (total / tail[0]).tolist() == [1, 1, 1, 1]
    assert "b: numbers that make no sense" in heard[0]


def test_what_is_absurdly_long_is_refused_and_named() -> None:
    found, heard = judge()
    total, tail = found.add_up(NAMES, vectors(2, 2, -20, 2), trailers(1, 1, 1, 1))
    assert (total / tail[0]).tolist() == [1, 1, 1, 1]
    assert heard == ["round 7: c: 10 times as long as the others"]


def test_who_is_refused_for_long_is_taken_at_the_length_of_the_others() -> None:
    """An honest node whose data nobody has learned would be refused for good otherwise."""
    found, _ = judge()
    means = []
    for _ in range(PATIENCE + 2):
        total, tail = found.add_up(NAMES, vectors(2, 2, -20, 2), trailers(1, 1, 1, 1))
        means.append(float(total[0] / tail[0]))
    assert means == [1.0] * PATIENCE + [0.5, 1.0]
    for _ in range(2 * PATIENCE - 1):
        total, tail = found.add_up(NAMES, vectors(2, 2, -20, 2), trailers(1, 1, 1, 1))
        assert total[0] / tail[0] == 1.0, "it is taken less and less often while it stays as long"


def test_who_has_worked_more_may_have_changed_more() -> None:
    found, heard = judge()
    for work in ((0, 0, 0), (10, 10, 100)):
        total, _ = found.add_up(NAMES[:3], vectors(2, 2, 20), trailers(1, 1, 1, work=work))
        found.agreed(dict(zip(NAMES, work, strict=False)))
    assert total.tolist() == [12, 12, 12, 12]
    assert len(heard) == 1, "nothing was known of work before the first round"


def test_where_all_add_up_the_same_what_one_saw_before_counts_for_nothing() -> None:
    """With `via=best` one member is the hub of one round, and in the next everybody gets everybody's."""
    hub, other = judge()[0], judge()[0]
    for _ in range(PATIENCE):
        hub.add_up(NAMES, vectors(2, 2, -20, 2), trailers(1, 1, 1, 1, work=(1, 1, 1, 1)))
    brought = vectors(2, 2, -20, 2), trailers(1, 1, 1, 1, work=(9, 9, 90, 9))
    sums = [each.add_up(NAMES, *brought, alike=True)[0].tolist() for each in (hub, other)]
    assert sums[0] == sums[1]


def test_models_are_compared_by_what_has_changed_in_them() -> None:
    origin = torch.full((4,), 1000.0)
    found, heard = judge(origin=origin)
    total, tail = found.add_up(NAMES[:3], vectors(2, 2, 40, origin=1000), trailers(1, 1, 1))
    assert (total / tail[0]).tolist() == [1001] * 4
    assert len(heard) == 1
    for _ in range(PATIENCE):
        total, tail = found.add_up(NAMES[:3], vectors(2, 2, 40, origin=1000), trailers(1, 1, 1))
    assert (total / tail[0]).tolist() == pytest.approx([1001] * 4), "taken, at the length of the others"


def test_a_weight_is_cut_down() -> None:
    found, heard = judge()
    brought = [*vectors(2, 2), vectors(2)[0] * 1e6]
    total, tail = found.add_up(NAMES[:3], brought, trailers(1, 1, 1e6))
    assert tail[0] == 2 + HEAVY
    assert (total / tail[0]).tolist() == pytest.approx([1, 1, 1, 1])
    assert "a weight of 1e+06" in heard[0]


def test_nobody_says_what_others_have_done() -> None:
    heard = Heard()
    places = {"a": (1,), "b": (2,), "c": (3,)}
    found = Judge(TrailerLayout(counts=4, own=lambda name: places[name]), heard)
    found.begin("round 7")
    said = [np.array(each, dtype=np.float32) for each in ([1, 5, 0, 0], [1, 0, 5, 9], [1, 0, 0, 5])]
    _, tail = found.add_up(("a", "b", "c"), vectors(1, 1, 1), said)
    assert tail.tolist() == [2, 5, 0, 5]
    assert heard == ["round 7: b: says what others have done"]


def test_two_cannot_tell_who_is_wrong() -> None:
    found, heard = judge()
    total, _ = found.add_up(NAMES[:2], vectors(1, 100 * FAR_OUT), trailers(1, 1))
    assert total.tolist() == [0.5 + 250] * 4
    assert heard == []


def test_the_first_round_of_a_view_is_of_times_apart() -> None:
    found, heard = judge(lenient=True)
    total, _ = found.add_up(NAMES[:3], vectors(2, 2, 200), trailers(1, 1, 1))
    assert total.tolist() == [102] * 4
    assert heard == []


def test_what_comes_one_at_a_time_is_compared_with_what_is_usual() -> None:
    lengths = Lengths()
    assert [lengths.scale(name, 1e6) for name in "a"] == [1.0], "nothing is known yet"
    lengths.clear()
    assert [lengths.scale(name, 1.0) for name in "abca"] == [1.0] * 4
    assert [lengths.scale("d", 100.0) for _ in range(PATIENCE)] == [0.0] * PATIENCE
    assert lengths.scale("d", 100.0) == 0.01, "taken, as long as is usual"
    assert lengths.scale("d", 100.0) == 0.0
    assert lengths.scale("d", 3.0) == 1.0
    assert lengths.scale("a", float("nan")) == 0.0


def test_if_everything_gets_longer_nothing_is_refused_for_good() -> None:
    """Where shards differ, gossiping models drift apart by much, and come together again."""
    lengths = Lengths()
    for name in "abcabc":
        lengths.scale(name, 1.0)
    taken = [lengths.scale(name, 60.0) for _ in range(80) for name in "abc"]
    assert taken[-30:] == [1.0] * 30


def test_values_that_do_not_have_their_weight_are_refused_in_any_round() -> None:
    """In the first round of a view changes may be long; a weight of 10⁶ on plain values would shrink the model."""
    origin = torch.full((4,), 10.0)
    found, heard = judge(origin=origin, lenient=True)
    total, tail = found.add_up(NAMES, vectors(1, 1, 1, 1, origin=10), trailers(1, 1, 1e6, 1))
    assert (total / tail[0]).tolist() == pytest.approx([10.5] * 4, rel=1e-5)
    assert any("do not fit its weight" in each for each in heard)


def test_blocks_of_a_round_are_judged_together() -> None:
    """Where one member alone moves a block, that block is long beside the others', and the round is not; a member that
    is absurd in one block is refused once, and named once.
    """
    found, heard = judge()
    for _ in range(2 * PATIENCE):
        Judge.begin(found, "round 7")
        for lengths in ((2, 2, 2, 2), (2, 9, 2, 2), (1, 1, 1, 1)):
            total, _ = Judge.add_up(found, NAMES, vectors(*lengths), trailers(1, 1, 1, 1))
            assert total.tolist() == pytest.approx([sum(lengths) / 2] * 4)
    assert heard == []
    Judge.begin(found, "round 8")
    for number, lengths in enumerate(((2, 2, 2, 2), (2, 2000, 2, 2), (2, 2000, 2, 2))):
        total, tail = Judge.add_up(found, NAMES, vectors(*lengths), trailers(1, 1, 1, 1))
        assert (total / tail[0]).tolist() == [1, 1, 1, 1], number
    assert [each.split(" times")[0] for each in heard] == ["round 8: b: 707"]

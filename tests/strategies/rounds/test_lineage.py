import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atoll.strategies.rounds.lineage import KEPT, START, Agreement, Lineage, Standing, common_agreement
from atoll.vectors import Vector


def held(value: float) -> list[Vector]:
    return [torch.full((2,), float(value))]


def standing(lineage: Lineage, work: tuple[int, ...] = (1, 1, 1)) -> Standing:
    return Standing(lineage.agreements, work, lineage.is_new)


def chosen(*lineages: Lineage) -> Agreement:
    return common_agreement({name: standing(each) for name, each in zip("abc", lineages, strict=False)}).agreement


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
    common = chosen(one, other)
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
    common = chosen(ahead, behind)
    assert common == ("0.a", 1)
    assert ahead.back_to(common)[0][0] == 1


def test_who_is_new_goes_on_from_what_others_have() -> None:
    old, new = Lineage(held(0)), Lineage(held(0), ("b at 7.5", 0), is_new=True)
    old.agreed("0.a", 1, held(1))
    assert common_agreement({"a": standing(new), "b": standing(old)}).holders == ("b",)
    new.adopt(old.current, held(1))
    assert not new.is_new
    assert chosen(old, new) == ("0.a", 1)


def test_who_never_held_the_run_s_model_cannot_win_by_what_it_did_alone() -> None:
    """Many new ones that agree with each other, and have worked for long, neither."""
    founder, new = Lineage(held(0), ("a at 0", 0)), Lineage(held(9), ("b at 7.5", 0), is_new=True)
    for number in range(1, 100):
        new.agreed("7.b", number, held(number))
    members = {"a": standing(founder, (1, 0, 0)), "b": standing(new, (0, 999, 999)), "c": standing(new, (0, 999, 999))}
    assert common_agreement(members).holders == ("a",)


def test_of_runs_that_have_nothing_in_common_the_one_with_more_work_goes_on() -> None:
    """However many hold the other, and however high its numbers are."""
    large, small = Lineage(held(0), ("a at 0", 0)), Lineage(held(0), ("b at 0", 0))
    for number in range(1, 50):
        small.agreed("9.b", number, held(number))
    members = {"a": standing(large, (900, 0, 0)), "b": standing(small, (0, 70, 60)), "c": standing(small, (0, 60, 70))}
    common = common_agreement(members)
    assert common.holders == ("a",)
    assert common.work.tolist() == [900, 0, 0]


def test_who_has_nothing_in_common_is_handed_the_only_holder_s_model_of_now() -> None:
    """Unless a part of what it was being handed is there: on a link that fails often nothing would ever arrive."""
    founder, new = Lineage(held(0), ("a at 0", 0)), Lineage(held(9), ("b at 7.5", 0), is_new=True)
    common = common_agreement({"a": standing(founder), "b": standing(new)}, "3.a")
    assert (common.agreement, common.is_now) == (("3.a", 0), True)
    founder.agreed("3.a", 0, held(1))
    founder.ends()
    taking = Standing(new.agreements, (0, 0, 0), is_new=True, taking=("3.a", 0))
    common = common_agreement({"a": standing(founder), "b": taking}, "4.a")
    assert (common.agreement, common.is_now) == (("3.a", 0), False)
    founder.adopt(("9.c", 1), held(1))
    assert common_agreement({"a": standing(founder), "b": taking}, "5.a").is_now, "it is no longer there"


def test_what_survives_is_what_all_holders_include_together() -> None:
    shared = Lineage(held(0))
    apart = {"a": standing(shared, (10, 1, 0)), "b": standing(shared, (1, 10, 0)), "c": standing(shared, (0, 0, 7))}
    assert common_agreement(apart).work.tolist() == [10, 10, 7]


def test_whose_state_most_have_refused_is_not_gone_on_from() -> None:
    liar, honest = Lineage(held(0), ("c at 0", 0)), Lineage(held(0))
    members = {
        "a": Standing(honest.agreements, (5, 0, 0), is_new=False, distrusts=frozenset("c")),
        "b": Standing(honest.agreements, (0, 5, 0), is_new=False, distrusts=frozenset("c")),
        "c": Standing(liar.agreements, (0, 0, 10**6), is_new=False),
    }
    assert common_agreement(members).holders == ("a", "b")
    members["b"] = Standing(honest.agreements, (0, 5, 0), is_new=False)
    assert common_agreement(members).holders == ("c",), "one who refuses may be the one that is wrong"


def test_memory_is_bounded() -> None:
    own = Lineage(held(0))
    for view in range(50):
        for number in range(1, 5):
            own.agreed(f"{view}.a", number, held(view))
        own.ends()
    assert len(own.agreements) <= KEPT + 2
    assert START not in own
    assert own.current == ("49.a", 4)


def test_what_a_view_ended_with_is_kept_while_somebody_is_away() -> None:
    own = Lineage(held(0))
    own.agreed("0.a", 1, held(1))
    own.ends()
    own.agreed("1.a", 1, held(2))
    own.everybody_holds(own.current, all_are_here=False)
    assert [*own.agreements] == [("0.a", 1), ("1.a", 1)]
    own.everybody_holds(own.current, all_are_here=True)
    assert [*own.agreements] == [("1.a", 1)]


def test_as_many_are_remembered_as_others_may_be_behind() -> None:
    own = Lineage(held(0), behind=3)
    for number in range(1, 10):
        own.agreed("0.a", number, held(number))
    assert own.agreements == tuple(("0.a", number) for number in (6, 7, 8, 9))
    own.everybody_holds(("0.a", 8), all_are_here=True)
    assert own.agreements == (("0.a", 8), ("0.a", 9))
    own.everybody_holds(("0.a", 5), all_are_here=True)
    assert own.agreements == (("0.a", 8), ("0.a", 9)), "an old fact changes nothing"


def test_views_without_rounds_do_not_push_out_what_others_may_share() -> None:
    own = Lineage(held(0))
    own.agreed("1.a", 3, held(3))
    for _ in range(3 * KEPT):
        own.ends()
    assert own.agreements == (START, ("1.a", 3))


def test_what_a_view_began_from_is_remembered() -> None:
    """Two of four go back to what they have in common, and go on; the other two do the same, and all meet again."""
    one, other = Lineage(held(0)), Lineage(held(0))
    for number in (1, 2):
        one.agreed("0.a", number, held(number))
    other.agreed("0.a", 1, held(1))
    for view, each in (("1.a", one), ("1.b", other)):
        each.ends()
        each.back_to(("0.a", 1))
        for number in range(1, 6):
            each.agreed(view, number, held(10 * number))
        each.ends()
    assert chosen(one, other) == ("0.a", 1)


def test_what_most_have_is_chosen_though_one_is_new_and_one_behind() -> None:
    ahead, behind, new = Lineage(held(0)), Lineage(held(0)), Lineage(held(0), ("c at 7.5", 0), is_new=True)
    for number in (1, 2, 3):
        ahead.agreed("0.a", number, held(number))
        if number < 3:
            behind.agreed("0.a", number, held(number))
    assert chosen(new, ahead, behind) == ("0.a", 2)
    assert ("0.a", 2) in ahead
    assert ("0.a", 2) not in new


def test_who_has_begun_with_all_others_keeps_what_it_has() -> None:
    late = Lineage(held(0), ("c at 7.5", 0), is_new=True)
    assert common_agreement({"a": standing(late), "b": standing(Lineage(held(0)))}).holders == ("b",)


def test_a_lineage_can_be_saved() -> None:
    own = Lineage([torch.full((1,), float(value)) for value in range(12)], ("x", 0), is_new=True)
    own.agreed("1.a", 2, [torch.full((1,), float(-value)) for value in range(12)])
    other = Lineage([torch.zeros(1) for _ in range(12)])
    other.load({name: own.save()[name] for name in sorted(own.save())})
    assert other.agreements == own.agreements
    assert [float(each[0]) for each in other.held] == [-value for value in range(12)]
    assert other.is_new


def test_blocks_that_agreements_share_are_saved_once() -> None:
    blocks = [torch.full((10,), float(value)) for value in range(4)]
    own = Lineage(list(blocks), behind=4)
    for place in range(4):
        blocks[place] = blocks[place] + 10
        own.agreed("1.a", place + 1, list(blocks))
    saved = own.save()
    assert sum(values.nbytes for values in saved.values() if values.dtype == np.float32) == 2 * 4 * 40
    other = Lineage([torch.zeros(10) for _ in range(4)], behind=4)
    other.load(saved)
    assert other.agreements == own.agreements
    assert len({id(each) for held in other._held.values() for each in held}) == 8
    assert [float(each[0]) for each in other.back_to(("1.a", 2))] == [10, 11, 2, 3]


_counts = st.integers(0, 2**52)


@given(
    st.lists(st.tuples(st.text(max_size=20), _counts), min_size=1, max_size=8),
    st.lists(_counts, min_size=3, max_size=3),
)
def test_a_standing_is_read_as_it_was_said(agreements: list[Agreement], work: list[int]) -> None:
    said = Standing(tuple(agreements), tuple(work), is_new=False, distrusts=frozenset({"b"}), taking=("1.a", 3))
    assert Standing.read(said.summary(), 3) == said


@pytest.mark.parametrize(
    "summary",
    [
        [["a", "b"]],
        [["agreed x", "b"], ["work", "1 2 3"]],
        [["agreed x", 2**64], ["work", "1 2 3"]],
        [["agreed x", -1], ["work", "1 2 3"]],
        [["agreed x", 1], ["work", "1 2"]],
        [["agreed x", 1], ["work", "1 2 -3"]],
        [["agreed x", 1], ["work", f"1 2 {2**64}"]],
        [["agreed x", True], ["work", "1 2 3"]],
        [["work", "1 2 3"]],
        [[f"agreed {number}", 1] for number in range(1000)] + [["work", "1 2 3"]],
    ],
)
def test_a_standing_that_makes_no_sense_is_refused(summary: list[list[object]]) -> None:
    with pytest.raises(ValueError, match=r"agreement|work|invalid"):
        Standing.read(summary, 3)

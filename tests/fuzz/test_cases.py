from hypothesis import given
from hypothesis import strategies as st

from atoll.fuzz import draw_case
from atoll.fuzz.cases import STRATEGIES, TROUBLE_S
from atoll.strategies import RECIPES, parse_strategy
from atoll.world.faults import parse_faults


@given(st.integers(0, 10**6))
def test_a_seed_is_a_case_that_can_be_written_down(seed: int) -> None:
    case = draw_case(seed)
    assert case == draw_case(seed)
    parse_strategy(case.strategy)
    assert parse_faults(case.script, case.net.node_names) == case.faults


def test_every_recipe_is_drawn() -> None:
    assert {spec.partition(":")[0] for spec in STRATEGIES} == set(RECIPES) - {"none"}


@given(st.integers(0, 10**6))
def test_where_machines_join_the_first_is_there_at_once(seed: int) -> None:
    case = draw_case(seed)
    late = {
        fault.nodes[0] for fault in case.faults if fault.kind == "crash" and fault.at == 0 and fault.until < TROUBLE_S
    }
    if case.joins:
        assert late >= set(case.net.node_names[1:])

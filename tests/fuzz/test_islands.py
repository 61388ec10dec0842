"""Islands under random faults: a few seeds hold, and what is broken on purpose is noticed."""

import pytest

from atoll.fuzz import Case, check, draw_case
from atoll.fuzz.islands import ISLAND_STRATEGIES
from atoll.islands import Pipeline, StageModel
from atoll.islands.node import IslandNode
from atoll.membership import Summary, View
from atoll.world.faults import parse_faults

FIVE = "[[node]]\nnames = ['0', '1', '2', '3']\nstep_s = 0.5\n[[link]]\namong = '*'\nlatency_ms = 10\nrate_mbps = 20\n"


def crash(until: str = "") -> Case:
    text = f'[[fault]]\nkind = "crash"\nnodes = ["1"]\nat = 20.0\n{until}'
    names = ("0", "1", "2", "3")
    return Case(1, FIVE, "allreduce:every=4,overlap", parse_faults(text, names), islands=True)


def test_a_random_case_holds() -> None:
    case = draw_case(5, ISLAND_STRATEGIES, islands=True)
    assert check(case) is None, "atoll fuzz --islands --first 5 --seeds 1"


def test_a_node_that_comes_back_holds() -> None:
    assert check(crash("until = 40.0")) is None


def test_nodes_that_follow_no_plan_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def installed(self: IslandNode, view: View, summaries: dict[str, Summary]) -> None:
        pass

    monkeypatch.setattr(IslandNode, "installed", installed)
    found = check(crash("until = 40.0"))
    assert found is not None
    assert "plan" in found or "did nothing" in found


def test_weights_that_are_kept_for_ever_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StageModel, "versions", property(lambda _: 99))
    found = check(crash())
    assert found is not None
    assert "versions" in found


def test_stages_that_stand_still_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    take = Pipeline._take

    def sometimes(self: Pipeline) -> object:
        return None if 30 < self._world.now < 90 else take(self)

    monkeypatch.setattr(Pipeline, "_take", sometimes)
    found = check(crash())
    assert found is not None
    assert "was idle for" in found or "did nothing after" in found

"""Who holds what after a change: whole islands stay, and everybody works out the same."""

import dataclasses

from atoll.islands.layout import Facts, Layout, Survey, survey_task, unknown
from atoll.islands.settings import parse_islands
from atoll.islands.settlement import IslandStanding, Settlement, settle
from atoll.network import parse_network
from tests.islands.test_layout import SIX, task

NAMES = ("a", "b", "c", "d", "e", "f")


def surveyed(settings: str = "auto") -> Survey:
    return survey_task(parse_network(SIX, name="six"), task(), parse_islands(settings))


def first(survey: Survey, islands: str) -> Settlement:
    """Everybody is new, and some islands are made of them."""
    settings = parse_islands(islands)
    return Settlement.first(Layout(survey.plan_of(settings.islands), survey, settings))


def standings(settlement: Settlement, names: tuple[str, ...]) -> dict[str, IslandStanding]:
    spans = settlement.layout.spans
    held = {name: tuple(range(*spans[name])) if name in spans else () for name in names}
    return {name: dataclasses.replace(settlement.standing(name), held=held[name]) for name in names}


def test_where_a_node_stands_can_be_told_and_read() -> None:
    for standing in standings(first(surveyed(), "a+b+c/d+e"), NAMES).values():
        assert IslandStanding.read(standing.summary()) == standing
    assert IslandStanding.read(IslandStanding().summary()) == IslandStanding()


def test_what_makes_no_sense_is_nothing() -> None:
    survey = surveyed()
    right = standings(first(survey, "a+b+c/d+e"), NAMES)
    assert all(each.is_sound(len(survey.layers)) for each in right.values() if each.order)
    for key, wrong in (("cut", "[[0, 1]]"), ("facts", "[0, 1, {}]"), ("shard", "x"), ("spare", "7"), ("range 1", "x")):
        assert IslandStanding.read([*right["a"].summary(), [key, wrong]]) == IslandStanding(), key
    for cut in (((0, 2, 3), (3, 6, 1), (6, 6, 1)), ((0, 6, 1),), ((0, 2, 0), (2, 4, 1), (4, 6, 1))):
        told = {**right, "a": dataclasses.replace(right["a"], cut=cut)}
        after = settle("5.a", told, survey, parse_islands("auto"), 2)
        assert set(after.layout.seats) <= set(NAMES)


def test_who_uses_a_layer_is_asked_before_who_once_did() -> None:
    told = standings(first(surveyed(), "a+b+c/d+e"), NAMES)
    told["f"] = dataclasses.replace(told["f"], spare=((0, 90), (9, 50)))
    told["a"] = dataclasses.replace(told["a"], spare=((9, 70),))
    settled = dataclasses.replace(first(surveyed(), "a+b+c/d+e"), standings=told)
    assert settled.sources("b", 0) == ["a", "d"], "not f, who has an old one"
    assert settled.sources("b", 9) == ["a", "f"], "nobody uses it: the newest first"
    assert settled.sources("f", 9) == ["a", "f"]
    assert settled.sources("b", 17) == []
    assert settled.sources("b", 17, alike=False) == ["a"]


def test_plans_follow_what_nodes_find_out() -> None:
    survey = unknown(NAMES, surveyed().layers, surveyed().terms)
    ways = dict.fromkeys(NAMES, (0.001, 100000000.0))
    facts = {name: Facts(1e6 if name < "d" else 4e6, 18e3, ways) for name in NAMES[:5]}
    told = {name: IslandStanding(facts=each) for name, each in facts.items()}
    settled = settle("1.a", told, survey, parse_islands("auto"), 6)
    assert settled.layout.seats
    assert "f" not in settled.layout.seats
    assert Facts.read(facts["a"].told()) == facts["a"]
    again = {name: dataclasses.replace(settled.standing(name), facts=facts[name]) for name in told}
    slow = {**again, "a": dataclasses.replace(again["a"], facts=Facts(1e5, 18e3, ways))}
    kept = settle("2.a", slow, survey, parse_islands("auto"), 6)
    assert kept.layout.cuts == settled.layout.cuts, "islands that are whole stay as they are, also if cuts would differ"
    assert Settlement.load(settled.save(), settled.layout.survey, parse_islands("auto")).digest == settled.digest


def test_islands_that_are_whole_stay_as_they_are() -> None:
    survey = surveyed("auto:memory=18kB")
    before = first(survey, "a+b+c/d+e+f:memory=18kB")
    same = settle("7.a", standings(before, NAMES), survey, parse_islands("auto"), 2)
    assert same.scopes == before.scopes
    assert same.ranges == before.ranges
    left = tuple(name for name in NAMES if name != "b")
    after = settle("8.a", standings(before, left), survey, parse_islands("auto"), 2)
    assert after.layout.islands["d"] == ("d", "e", "f")
    assert after.scopes["d"] == "island d"
    assert {after.layout.seats[name].island for name in ("a", "c")} <= set(after.layout.islands) - {"d"}
    assert all(scope.endswith("8.a") for island, scope in after.scopes.items() if island != "d")
    assert after.shards["d"] == 1
    assert min(after.shards.values()) == 0, "the examples of an island that was broken are learned from again"
    assert all(scope.endswith("8.a") for scope, _ in after.ranges.values()), "its owners are others now"
    missing = list(range(*before.layout.spans["b"]))
    for name in ("a", "c"):
        for layer in set(range(*after.layout.spans[name])) & set(missing):
            assert set(after.sources(name, layer)) <= {"d", "e", "f"}, "only the other island has it"


def test_who_comes_back_is_taken_in() -> None:
    survey = surveyed("auto:memory=18kB")
    before = first(survey, "a+c/d+e+f:memory=18kB")
    told = standings(before, NAMES)
    told["b"] = IslandStanding()
    after = settle("9.a", told, survey, parse_islands("auto"), 2)
    assert "b" in after.layout.seats or after.layout.islands == before.layout.islands
    lone = settle("9.d", {name: told[name] for name in ("d", "e", "f")}, survey, parse_islands("auto"), 2)
    assert lone.layout.islands == {"d": ("d", "e", "f")}
    kept = [key for key in lone.ranges if key in before.ranges]
    assert kept
    assert all(lone.ranges[key] == before.ranges[key] for key in kept), "fewer owners of the same go on as they were"

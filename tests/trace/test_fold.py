import math

from atoll.trace import (
    Event,
    FaultChanged,
    IslandsFormed,
    MeanTested,
    StageSpan,
    Targets,
    Tested,
    TrainingStarted,
    finite_measure,
)


def started(*, rising: bool = True, target: float = 0.9) -> TrainingStarted:
    return TrainingStarted(
        at=0.0,
        task="digits",
        strategy="none",
        role="strategy",
        shards="iid",
        target=target,
        rising=rising,
        parameters=1,
    )


def a_test(node: str, at: float, measure: float) -> Tested:
    return Tested(at=at, node=node, steps=1, measure=measure, sent_bytes=0)


def targets(*events: Event, nodes: tuple[str, ...] = ("0", "1", "2")) -> Targets:
    found = Targets(nodes)
    for event in events:
        found.watch(event)
    return found


def test_when_the_first_half_and_all_arrive() -> None:
    found = targets(
        started(),
        a_test("0", 1.0, 0.95),
        MeanTested(at=1.5, measure=0.91),
        a_test("1", 2.0, 0.5),
        a_test("1", 3.0, 0.9),
        a_test("2", 4.0, 0.99),
        MeanTested(at=5.0, measure=0.99),
    ).arrivals
    assert (found.any, found.half, found.all, found.mean) == (1.0, 3.0, 4.0, 1.5)


def test_a_loss_falls_towards_its_target() -> None:
    found = targets(started(rising=False, target=1.8), a_test("0", 1.0, 1.9), a_test("0", 2.0, 1.7)).arrivals
    assert found.any == 2.0


def test_who_crashes_has_nothing_any_more() -> None:
    crash = FaultChanged(at=2.0, fault="crash 0", nodes=("0",), on=True)
    found = targets(started(), a_test("0", 1.0, 0.95), crash)
    assert (found.live, found.arrived) == (2, 0)
    found.watch(a_test("1", 3.0, 0.95))
    assert found.arrivals.half == 3.0, "one of two"
    found.watch(FaultChanged(at=4.0, fault="crash 0", nodes=("0",), on=False))
    assert found.live == 3
    found.watch(FaultChanged(at=5.0, fault="slow 0", nodes=("0",), on=True))
    assert found.live == 3


def test_an_island_counts_as_a_node() -> None:
    stages = ((StageSpan("0", 0, 2), StageSpan("1", 2, 4)), (StageSpan("2", 0, 4),))
    formed = IslandsFormed(at=0.0, stages=stages, samples_a_second=1.0)
    found = targets(started(), formed, a_test("1", 1.0, 0.95), a_test("2", 2.0, 0.95))
    assert (found.live, found.arrivals.half, found.arrivals.all) == (2, 1.0, 2.0)
    found.watch(IslandsFormed(at=3.0, stages=stages[1:], samples_a_second=1.0))
    assert (found.live, found.arrived) == (1, 1)


def test_what_is_not_finite_is_the_worst() -> None:
    assert finite_measure(math.nan, rising=True) == 0.0
    assert finite_measure(math.inf, rising=False) == 1e9
    assert finite_measure(0.5, rising=False) == 0.5

from atoll.runs.verdict import Verdict
from atoll.trace import Event, FaultChanged
from tests.trace.test_fold import a_test, started

NODES = ("0", "1", "2")


def verdict(*events: Event, stops: bool = True) -> Verdict:
    made = Verdict(NODES, stops=stops)
    for event in (started(), *events):
        made.watch(event)
    return made


def test_a_run_is_over_when_all_have_the_target() -> None:
    two = [a_test("0", 10.0, 0.95), a_test("1", 11.0, 0.95)]
    assert not verdict(*two[:1]).is_over(10.0)
    assert not verdict(*two).is_over(11.0)
    assert verdict(*two, a_test("2", 12.0, 0.92)).is_over(12.0)
    assert not verdict(*two, a_test("2", 12.0, 0.92), stops=False).is_over(1000.0)


def test_or_half_of_them_have_had_it_for_long() -> None:
    two = verdict(a_test("0", 9.0, 0.95), a_test("1", 10.0, 0.95))
    assert not two.is_over(15.0)
    assert two.is_over(15.1)


def test_while_nobody_is_there_it_is_not_over() -> None:
    assert not verdict(FaultChanged(at=1.0, fault="crash all", nodes=NODES, on=True)).is_over(100.0)

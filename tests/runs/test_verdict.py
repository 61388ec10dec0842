from atoll.runs.verdict import Verdict


def reached(measure: float) -> bool:
    return measure >= 0.9


def test_a_run_is_over_when_all_have_the_target() -> None:
    verdict = Verdict(reached, stops=True)
    verdict.tested("0", 0.95)
    assert not verdict.is_over(10.0, ["0", "1", "2"])
    verdict.tested("1", 0.95)
    assert not verdict.is_over(11.0, ["0", "1", "2"])
    verdict.tested("2", 0.92)
    assert verdict.is_over(12.0, ["0", "1", "2"])


def test_or_half_of_them_have_had_it_for_long() -> None:
    verdict = Verdict(reached, stops=True)
    verdict.tested("0", 0.95)
    verdict.tested("1", 0.95)
    assert not verdict.is_over(10.0, ["0", "1", "2"])
    assert not verdict.is_over(15.0, ["0", "1", "2"])
    assert verdict.is_over(15.1, ["0", "1", "2"])


def test_who_begins_anew_has_nothing() -> None:
    verdict = Verdict(reached, stops=True)
    verdict.tested("0", 0.95)
    verdict.begins_anew("0")
    assert not verdict.is_over(1.0, ["0"])
    assert Verdict(reached, stops=False).is_over(1.0, []) is False


def test_it_can_be_saved() -> None:
    verdict, other = Verdict(reached, stops=True), Verdict(reached, stops=True)
    verdict.tested("0", 0.95)
    verdict.is_over(10.0, ["0", "1"])
    other.load(verdict.save())
    assert other.save() == verdict.save() == {"last": {"0": 0.95}, "half_s": 10.0}

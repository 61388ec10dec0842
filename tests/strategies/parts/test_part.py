from atoll.strategies.parts.outer import Nesterov
from atoll.strategies.parts.part import part


def test_equal_ones_make_parts_that_share_nothing() -> None:
    outer = part(Nesterov, rate=0.7, momentum=0.9)
    assert outer == part(Nesterov, rate=0.7, momentum=0.9)
    assert outer != part(Nesterov, rate=0.7, momentum=0.8)
    assert outer() is not outer()
    assert repr(outer) == "Nesterov(rate=0.7, momentum=0.9)"

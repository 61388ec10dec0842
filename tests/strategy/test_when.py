from typing import cast

from atoll.strategy.replica import Replica
from atoll.strategy.when import Every, Never

NOBODY = cast("Replica", None)


def test_every_and_never() -> None:
    assert [Every(3)(NOBODY, steps) for steps in range(5)] == [False, False, False, True, True]
    assert not Never()(NOBODY, 1000)

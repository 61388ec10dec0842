from typing import cast

from atoll.strategy.replica import Replica
from atoll.strategy.when import Every

NOBODY = cast("Replica", None)


def test_every() -> None:
    assert [Every(3)(NOBODY, steps, 0) for steps in range(5)] == [False, False, False, True, True]

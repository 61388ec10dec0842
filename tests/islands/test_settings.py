import math

import pytest

from atoll.errors import TaskError
from atoll.islands.settings import parse_islands


def test_what_users_write() -> None:
    found = parse_islands("auto:memory=1.5GB,weights=predict,recompute,flush=8,wire=bf16")
    assert (found.islands, found.memory, found.weights, found.recompute) == ((), 1.5e9, "predict", True)
    assert (found.flush, found.wire, found.slower) == (8, "bf16", False)
    assert parse_islands("auto").memory == math.inf
    assert parse_islands("auto:predict") == parse_islands("auto:weights=predict")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("auto:weight=stash", "islands 'auto:weight=stash': there is no setting 'weight'; did you mean 'weights'?"),
        ("auto:weights=old", "weights: expected one of stash|current|predict, not 'old'"),
        ("auto:flush=many", "flush: expected a whole number of at least 0, not 'many'"),
        ("auto:pieces=0", "pieces: expected a whole number of at least 1, not '0'"),
        ("auto:recompute=2", "recompute: expected yes or no, not '2'"),
        ("auto:memory=lots", "memory: 'lots' is no size"),
        ("auto:memory=6", "memory: '6' has no unit: write 6GB, 6MB or 6kB"),
        ("auto:wire=int9", "wire: there is no codec 'int9'"),
    ],
)
def test_mistakes_are_told_in_one_line(text: str, message: str) -> None:
    with pytest.raises(TaskError if "wire" not in text else Exception) as refused:
        parse_islands(text)
    assert message in str(refused.value)

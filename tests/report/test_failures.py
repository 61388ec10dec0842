from pathlib import Path

import pytest

from atoll.errors import StrategyError
from atoll.report.failures import RunFailure, read_failures


def _raised(error: Exception) -> Exception:
    with pytest.raises(type(error)) as caught:
        raise error
    return caught.value


def test_it_says_which_run_and_why() -> None:
    refused = RunFailure.of("gossip", "strategy", 3, _raised(StrategyError("there is no\nsuch thing")))
    assert refused.told == "gossip, seed 3: there is no such thing"
    broken = RunFailure.of("gossip", "perfect", 0, _raised(IndexError("list index out of range")))
    assert broken.told == "gossip on perfect links, seed 0: IndexError: list index out of range"
    assert "_raised" in broken.traceback
    assert RunFailure.of("x", "ideal", 1, ValueError()).told == "the ideal, seed 1: ValueError"


def test_it_is_kept_beside_the_traces(tmp_path: Path) -> None:
    failure = RunFailure.of("gossip", "strategy", 3, _raised(ValueError("wrong")))
    kept = failure.write(tmp_path / "strategy.gossip.seed3.jsonl")
    assert kept.name == "strategy.gossip.seed3.failed.json"
    assert read_failures(tmp_path) == [failure]

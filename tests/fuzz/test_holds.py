"""The invariants can fail."""

import dataclasses

import pytest

from atoll.fuzz import STRATEGIES, check, draw_case
from atoll.fuzz.replicas import Drawn


def test_counting_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody who says that it did one step more than it did is noticed."""
    honest = Drawn.compute_gradient

    def boast(replica: Drawn) -> None:
        honest(replica)
        replica.work[replica.rank] += 1

    monkeypatch.setattr(Drawn, "compute_gradient", boast)
    case = dataclasses.replace(draw_case(0), strategy=STRATEGIES[0], faults=())
    assert "counts" in (check(case) or "")


def test_buffers_that_are_no_mean_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Drawn.update

    def drift(replica: Drawn) -> None:
        honest(replica)
        replica.buffers = replica.buffers * 1.05

    monkeypatch.setattr(Drawn, "update", drift)
    assert "the buffers are" in (check(dataclasses.replace(draw_case(0), strategy="diloco", faults=())) or "")

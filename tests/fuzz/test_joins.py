"""Machines join a run one by one, each with a model of its own, in every phase: nothing that the run has learned is
lost.
"""

import pytest

from atoll.fuzz import STRATEGIES, Case, check
from atoll.fuzz.cases import LARGE
from atoll.world.faults import Fault

SLOW = '[[node]]\ncount = 3\nstep_s = 0.5\n[[link]]\namong = "*"\nlatency_ms = 20\nrate_mbps = 0.5\n'
QUICK = SLOW.replace("0.5\n[[", "0.2\n[[").replace("rate_mbps = 0.5", "rate_mbps = 100")
CUT = frozenset({("0", "1"), ("1", "0"), ("0", "2"), ("2", "0")})


def joins(*times: float) -> tuple[Fault, ...]:
    return tuple(Fault("crash", 0.0, at, (str(place),)) for place, at in enumerate(times, 1))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_ordinary_join(strategy: str) -> None:
    assert check(Case(1, QUICK, strategy, joins(15, 40), joins=True)) is None


@pytest.mark.parametrize("cut", [10.5, 12.0, 14.0])
@pytest.mark.parametrize(
    "strategy", ["allreduce:every=5,overlap", "diloco:every=12,codec=int8,overlap", "gossip", "ssp"]
)
def test_the_founder_s_links_break_while_the_model_is_handed_over(strategy: str, cut: float) -> None:
    """The newcomers reach each other meanwhile, and go on together from what one of them has."""
    faults = (*joins(10, 10.2), Fault("cut", cut, cut + 12, (), CUT))
    assert check(Case(1, SLOW, strategy, faults, joins=True, size=LARGE)) is None


@pytest.mark.parametrize("strategy", ["allreduce:quantity=gradient", "vrl:codec=int8", "noloco:every=3"])
def test_the_founder_dies_and_comes_back(strategy: str) -> None:
    """It comes back with nothing, and is handed what the others hold."""
    assert check(Case(1, QUICK, strategy, (*joins(5, 10), Fault("crash", 30.0, 50.0, ("0",))), joins=True)) is None

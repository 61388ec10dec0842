import dataclasses

import pytest

from atoll.errors import NetworkError
from atoll.network import BandwidthTrace, Link, Network, Node, Phase, Walk, Way

TWO = (Node(name="a"), Node(name="b"))


def test_values_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        TWO[0].step_s = 1.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Way(rate_bps=1.0, trace=BandwidthTrace((0.0,), (1.0,), 1.0)), "a rate comes from one of"),
        (lambda: Way(latency_s=1.0, walk=Walk(low_s=1, high_s=2, move_s=1)), "leave it out"),
        (
            lambda: Way(walk=Walk(low_s=1, high_s=2, move_s=1), phases=(Phase(latency_s=0, rate_bps=1),)),
            "not from both",
        ),
        (lambda: Walk(low_s=2, high_s=1, move_s=1), "low <= high"),
        (lambda: Link(a="a", b="a"), "two different points"),
        (lambda: Network(name="n", nodes=()), "at least one node"),
        (lambda: Network(name="n", nodes=TWO, links=(Link(a="a", b="c"),)), "there is no node or hub 'c'"),
        (lambda: Network(name="n", nodes=TWO, links=(Link(a="a", b="b"), Link(a="b", b="a"))), "joined already"),
        (lambda: Network(name="n", nodes=TWO, hubs=("a",)), "a is named twice"),
        (lambda: Node(name="", step_s=1), "a node's name"),
        (lambda: Node(name="x", step_s=float("nan")), "step_s of x"),
        (lambda: Node(name="x", step_s=0.0), "step_s of x must be at least 1e-06 s"),
    ],
)
def test_values_check_themselves(make: object, message: str) -> None:
    with pytest.raises(NetworkError, match=message):
        make()  # type: ignore[operator]

"""Outer optimisers against torch's own."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.strategies.parts.outer import HeavyBall, Nesterov, TakeMean
from atoll.vectors import of_array


def test_the_mean_is_taken_as_it_is() -> None:
    assert TakeMean()(torch.zeros(2), torch.tensor([1.0, 2.0])).tolist() == [1, 2]


@settings(deadline=None)
@given(
    rate=st.floats(0.1, 1.0), momentum=st.floats(0.1, 0.95), rounds=st.integers(1, 8), seed=st.integers(0, 2**32 - 1)
)
def test_nesterov_is_torchs(rate: float, momentum: float, rounds: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    anchor = of_array(draw.normal(size=5))
    theta = torch.nn.Parameter(anchor.clone())
    reference = torch.optim.SGD([theta], lr=rate, momentum=momentum, nesterov=True)
    outer = Nesterov(rate=rate, momentum=momentum)
    for _ in range(rounds):
        mean = theta.detach() + of_array(draw.normal(size=5))
        theta.grad = theta.detach() - mean
        reference.step()
        anchor = outer(anchor, mean)
        np.testing.assert_allclose(anchor, theta.detach(), rtol=1e-3, atol=1e-3)


def test_without_momentum_at_rate_one_it_is_the_mean() -> None:
    outer = Nesterov(rate=1.0, momentum=0.0)
    assert outer(torch.zeros(3), torch.tensor([1.0, -2.0, 3.0])).tolist() == [1, -2, 3]


def test_what_is_kept_in_half_precision_moves_alike() -> None:
    """Momentum that is rounded to bfloat16 stays within a few hundredths of itself."""
    exact, rough = Nesterov(rate=0.7, momentum=0.9), Nesterov(rate=0.7, momentum=0.9)
    one, other = torch.zeros(1000), torch.zeros(1000).bfloat16()
    draw = torch.Generator().manual_seed(0)
    for _ in range(20):
        change = torch.randn(1000, generator=draw)
        moved = [exact(one, one + change) - one, rough(other, other + change) - other]
        assert rough._buffer is not None
        assert rough._buffer.dtype == torch.bfloat16
        assert moved[1].dtype == torch.float32
        assert (moved[0] - moved[1]).abs().max() < 0.05 * moved[0].abs().max()


def test_nolocos_rule_as_it_is_written() -> None:
    """m ← μm + η·mean(θ−φ) + η(mean φ − φ), over a pair whose φ differ."""
    draw = np.random.default_rng(1)
    slow = [draw.normal(size=4), draw.normal(size=4)]
    moves = [np.zeros(4), np.zeros(4)]
    outers = [HeavyBall(rate=0.7, momentum=0.5), HeavyBall(rate=0.7, momentum=0.5)]
    anchors = [of_array(phi) for phi in slow]
    for _ in range(5):
        fast = [phi + draw.normal(size=4) for phi in slow]
        learned = np.mean([theta - phi for theta, phi in zip(fast, slow, strict=True)], axis=0)
        middle = np.mean(slow, axis=0)
        moves = [0.5 * move + 0.7 * learned + 0.7 * (middle - phi) for move, phi in zip(moves, slow, strict=True)]
        slow = [phi + move for phi, move in zip(slow, moves, strict=True)]
        mean = np.mean(fast, axis=0)
        anchors = [outer(anchor, of_array(mean)) for outer, anchor in zip(outers, anchors, strict=True)]
        for anchor, phi in zip(anchors, slow, strict=True):
            np.testing.assert_allclose(anchor, phi, rtol=1e-4, atol=1e-5)

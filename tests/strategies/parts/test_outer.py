"""Outer optimisers against torch's own."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.strategies.parts.outer import HeavyBall, Nesterov, TakeMean


def test_the_mean_is_taken_as_it_is() -> None:
    outer = TakeMean()
    outer.start(np.zeros(2, dtype=np.float32))
    assert outer(np.array([1, 2], dtype=np.float32)).tolist() == [1, 2]


@settings(deadline=None)
@given(
    rate=st.floats(0.1, 1.0), momentum=st.floats(0.1, 0.95), rounds=st.integers(1, 8), seed=st.integers(0, 2**32 - 1)
)
def test_nesterov_is_torchs(rate: float, momentum: float, rounds: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    initial = draw.normal(size=5).astype(np.float32)
    theta = torch.nn.Parameter(torch.tensor(initial))
    reference = torch.optim.SGD([theta], lr=rate, momentum=momentum, nesterov=True)
    outer = Nesterov(rate=rate, momentum=momentum)
    outer.start(initial)
    for _ in range(rounds):
        mean = theta.detach().numpy() + draw.normal(size=5).astype(np.float32)
        theta.grad = theta.detach() - torch.tensor(mean)
        reference.step()
        np.testing.assert_allclose(outer(mean), theta.detach().numpy(), rtol=1e-3, atol=1e-3)


def test_without_momentum_at_rate_one_it_is_the_mean() -> None:
    outer = Nesterov(rate=1.0, momentum=0.0)
    outer.start(np.zeros(3, dtype=np.float32))
    mean = np.array([1, -2, 3], dtype=np.float32)
    assert outer(mean).tolist() == mean.tolist()


def test_nolocos_rule_as_it_is_written() -> None:
    """m ← μm + η·mean(θ−φ) + η(mean φ − φ), over a pair whose φ differ."""
    draw = np.random.default_rng(1)
    slow = [draw.normal(size=4), draw.normal(size=4)]
    moves = [np.zeros(4), np.zeros(4)]
    outers = [HeavyBall(rate=0.7, momentum=0.5), HeavyBall(rate=0.7, momentum=0.5)]
    for outer, phi in zip(outers, slow, strict=True):
        outer.start(phi.astype(np.float32))
    for _ in range(5):
        fast = [phi + draw.normal(size=4) for phi in slow]
        learned = np.mean([theta - phi for theta, phi in zip(fast, slow, strict=True)], axis=0)
        middle = np.mean(slow, axis=0)
        moves = [0.5 * move + 0.7 * learned + 0.7 * (middle - phi) for move, phi in zip(moves, slow, strict=True)]
        slow = [phi + move for phi, move in zip(slow, moves, strict=True)]
        mean = np.mean(fast, axis=0).astype(np.float32)
        for outer, phi in zip(outers, slow, strict=True):
            np.testing.assert_allclose(outer(mean.copy()), phi, rtol=1e-4, atol=1e-5)

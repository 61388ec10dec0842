import torch

from atoll.codecs.dense import Half
from tests.codecs.vectors import roundtrip


def test_halves_round() -> None:
    values = torch.tensor([1.0, 1e-3, -3.14159, 1e30])
    assert torch.allclose(roundtrip(Half(brain=True), values), values, rtol=2**-8)
    assert roundtrip(Half(brain=False), values)[3] == 65504, "too large becomes the largest"

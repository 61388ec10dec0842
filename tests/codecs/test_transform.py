import math

import numpy as np
import torch

from atoll.codecs.transform import Cosine, LowRank, matrix_shape
from tests.codecs.vectors import roundtrip, vector


def test_cosines_against_the_definition() -> None:
    values = vector(4096, 9)
    square = values.view(64, 64).double().numpy()
    matrix = np.array([[math.cos(math.pi / 64 * (n + 0.5) * k) for n in range(64)] for k in range(64)]) / math.sqrt(32)
    matrix[0] /= math.sqrt(2)
    coefficients = matrix @ square @ matrix.T
    threshold = np.sort(np.abs(coefficients).ravel())[-50]
    coefficients[np.abs(coefficients) < threshold] = 0
    expected = (matrix.T @ coefficients @ matrix).ravel()
    np.testing.assert_allclose(roundtrip(Cosine(50), values).numpy(), expected, atol=0.02)
    assert torch.allclose(roundtrip(Cosine(4096), values), values, atol=0.05), "all of them are everything"


def test_a_matrix_of_low_rank_comes_back() -> None:
    draw = torch.Generator().manual_seed(1)
    rows, columns = matrix_shape(900)
    matrix = torch.randn(rows, 2, generator=draw) @ torch.randn(2, columns, generator=draw)
    assert torch.allclose(roundtrip(LowRank(2), matrix.flatten()), matrix.flatten(), atol=1e-4)
    assert roundtrip(LowRank(1), matrix.flatten()).norm() > 0.5 * matrix.norm()

import math

import pytest

from atoll.codecs.codebook import Codebook
from tests.codecs.vectors import roundtrip, vector


@pytest.mark.parametrize("bits", [1, 2])
def test_codebooks_against_loops(bits: int) -> None:
    values = vector(5000, 6)
    expected: list[float] = []
    for start in range(0, 5000, 4096):
        block = values[start : start + 4096].tolist()
        sigma = math.sqrt(sum(value * value for value in block) / len(block))
        edges = [0.0] if bits == 1 else [-1.5 * sigma, 0.0, 1.5 * sigma]
        bin_of = [sum(value > edge for edge in edges) for value in block]
        means = []
        for each in range(2**bits):
            inside = [value for value, found in zip(block, bin_of, strict=True) if found == each]
            means.append(sum(inside) / len(inside))
        expected += [means[found] for found in bin_of]
    assert roundtrip(Codebook(bits), values).tolist() == pytest.approx(expected, rel=2**-7, abs=1e-3)

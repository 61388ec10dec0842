import pytest

from atoll.codecs.blocks import Blocks
from tests.codecs.vectors import roundtrip, vector


@pytest.mark.parametrize(("bits", "largest"), [(8, 127), (4, 7)])
def test_blocks_against_loops(bits: int, largest: int) -> None:
    values = vector(600, 5)
    expected = []
    for start in range(0, 600, 256):
        block = values[start : start + 256].tolist()
        scale = max(abs(value) for value in block) / largest
        expected += [round(value / scale) * scale for value in block]
    assert roundtrip(Blocks(bits), values).tolist() == pytest.approx(expected, rel=1e-4, abs=1e-6)

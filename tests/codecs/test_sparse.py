import math

import pytest
import torch

from atoll.codecs.sparse import ChunkTopK, RandomK, TopK, kept
from tests.codecs.vectors import roundtrip, vector


def test_topk_against_sorting() -> None:
    values = vector(1000, 7)
    largest = sorted(range(1000), key=lambda place: -abs(float(values[place])))[:30]
    decoded = roundtrip(TopK(0.03), values)
    assert sorted(largest) == decoded.nonzero().flatten().tolist()
    assert torch.allclose(decoded[largest], values[largest], rtol=2**-8)
    assert TopK(0.03).size(1000) == 30 * 2 + math.ceil(30 * 10 / 8)


@pytest.mark.parametrize("bits", [16, 2])
def test_chunk_topk_against_sorting(bits: int) -> None:
    values = vector(10000, 8)
    decoded = roundtrip(ChunkTopK(keep=20, bits=bits), values)
    for start in range(0, 10000, 4096):
        stop = min(start + 4096, 10000)
        largest = sorted(range(start, stop), key=lambda place: -abs(float(values[place])))[:20]
        assert sorted(largest) == (start + decoded[start:stop].nonzero().flatten()).tolist()
        if bits == 16:
            assert torch.allclose(decoded[largest], values[largest], rtol=2**-8)
        else:
            assert (decoded[largest].sign() == values[largest].sign()).all()


def test_sparselocos_bytes() -> None:
    """64 of each 4096 with 12 bits a place and 2 a value: 0.21875 bits a parameter, and a codebook."""
    count = 4096 * 100
    assert (ChunkTopK(64, bits=2).size(count) - 8) * 8 / count == 0.21875


def test_random_places_change_with_the_key_and_cover_everything() -> None:
    codec, values = RandomK(0.1), torch.ones(500)
    seen = torch.zeros(500)
    for key in range(200):
        decoded = roundtrip(codec, values, key)
        assert int(decoded.sum()) == kept(500, 0.1)
        seen += decoded
    assert seen.min() > 0
    assert torch.equal(roundtrip(codec, values, 3), roundtrip(codec, values, 3))
    assert not torch.equal(roundtrip(codec, values, 3), roundtrip(codec, values, 4))

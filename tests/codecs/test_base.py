"""What must hold for every codec."""

import pytest
import torch

from atoll.codecs import CODECS, parse_codec
from tests.codecs.vectors import ALL, COUNTS, roundtrip, vector


def test_every_codec_is_tried_here() -> None:
    assert {name.partition("/")[0] for name in ALL} == set(CODECS)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("count", COUNTS)
def test_the_size_is_exact_and_shapes_return(name: str, count: int) -> None:
    codec, values = parse_codec(name), vector(count)
    before = values.clone()
    encoded = codec.encode(values, 3)
    assert encoded.dtype == torch.uint8
    assert len(encoded) == codec.size(count)
    decoded = codec.decode(encoded, count, 3)
    assert decoded.dtype == torch.float32
    assert decoded.shape == values.shape
    assert torch.equal(values, before), "encoding leaves its input alone"
    assert torch.equal(decoded, codec.decode(encoded, count, 3))


@pytest.mark.parametrize("name", ALL)
def test_nothing_is_made_of_nothing(name: str) -> None:
    assert not roundtrip(parse_codec(name), torch.zeros(5000)).any()


@pytest.mark.parametrize("name", ["dense", "randk/0.1"])
def test_sums_of_encoded_forms_decode_to_the_sum(name: str) -> None:
    codec = parse_codec(name)
    assert codec.summable
    one, two = vector(999, 1), vector(999, 2)
    added = codec.encode(one, 7).view(torch.float32) + codec.encode(two, 7).view(torch.float32)
    decoded = codec.decode(added.view(torch.uint8), 999, 7)
    assert torch.allclose(decoded, roundtrip(codec, one, 7) + roundtrip(codec, two, 7))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("name", ALL)
def test_a_gpu_writes_what_a_cpu_can_read(name: str) -> None:
    codec, values = parse_codec(name), vector(300_000)
    encoded = codec.encode(values.cuda(), 5)
    assert encoded.is_cuda
    here = codec.decode(encoded.cpu(), len(values), 5)
    there = codec.decode(encoded, len(values), 5).cpu()
    assert torch.allclose(here, there, rtol=1e-3, atol=1e-3)
    assert (here - values).norm() <= 1.01 * (roundtrip(codec, values, 5) - values).norm() + 1e-3

"""Kernels give what the same codec gives on a CPU.  They need a GPU, or Triton's interpreter:

pip install triton && TRITON_INTERPRET=1 pytest tests/codecs/test_kernels.py
"""

import importlib.util
import os

import pytest
import torch

from atoll.codecs import kernels
from atoll.codecs.bits import packed_size, unpack
from atoll.codecs.blocks import BLOCK as SCALED
from atoll.codecs.blocks import Blocks
from atoll.codecs.codebook import BLOCK, Codebook, bins
from atoll.codecs.sparse import ChunkTopK, _largest

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if IS_INTERPRETED else "cuda"

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None or not (IS_INTERPRETED or torch.cuda.is_available()),
    reason="needs Triton, and a GPU for it",
)

sizes = pytest.mark.parametrize("size", [1, 2, 255, 256, 257, 4095, 4096, 4097, 12_345])


def drawn(size: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(size)
    spread = torch.rand(size, generator=generator) ** 4
    return torch.randn(size, generator=generator) * spread


def poisoned(size: int, dtype: torch.dtype) -> torch.Tensor:
    """Memory in which one sees what was not written."""
    return torch.full((size,), 77, dtype=dtype, device=DEVICE)


@sizes
@pytest.mark.parametrize("bits", [8, 4])
def test_scaled_integers(size: int, bits: int) -> None:
    codec, values = Blocks(bits), drawn(size)
    wanted = codec.encode(values)
    encoded, decoded = poisoned(codec.size(size), torch.uint8), poisoned(size, torch.float32)
    kernels.blocks_encoded(values.to(DEVICE), encoded, block=SCALED, bits=bits)
    kernels.blocks_decoded(encoded, decoded, block=SCALED, bits=bits)
    assert torch.equal(encoded.cpu(), wanted)
    assert torch.equal(decoded.cpu(), codec.decode(wanted, size))


@sizes
@pytest.mark.parametrize("bits", [2, 1])
def test_codebooks(size: int, bits: int) -> None:
    codec, values = Codebook(bits), drawn(size)
    wanted, end = codec.encode(values), (2 << bits) * -(-size // BLOCK)
    encoded, decoded = poisoned(codec.size(size), torch.uint8), poisoned(size, torch.float32)
    kernels.codebook_encoded(values.to(DEVICE), encoded, block=BLOCK, bits=bits)
    kernels.codebook_decoded(encoded, decoded, block=BLOCK, bits=bits)
    here = encoded.cpu()
    books, expected = (each[:end].view(torch.bfloat16).float() for each in (here, wanted))
    assert torch.allclose(books, expected, rtol=2**-7, atol=1e-6)  # an order of additions: the last bit
    assert (here[end:] != wanted[end:]).sum() <= size / 10_000  # and a value at the very edge of a bin
    assert torch.equal(decoded.cpu(), codec.decode(here, size))


@sizes
def test_one_codebook(size: int) -> None:
    values = drawn(size)
    wanted_book, wanted = bins(values.view(1, -1), 2)
    book, codes = poisoned(4, torch.bfloat16), poisoned(packed_size(size, 2), torch.uint8)
    kernels.one_codebook_encoded(values.to(DEVICE), book, codes)
    assert torch.allclose(book.cpu().float(), wanted_book.flatten(), rtol=2**-7, atol=1e-6)
    assert (unpack(codes.cpu(), size, 2) != wanted.flatten()).sum() <= size / 10_000


def largest(values: torch.Tensor, keep: int) -> tuple[torch.Tensor, torch.Tensor]:
    found = poisoned(-(-len(values) // 4096) * keep, torch.float32)
    places = kernels.largest(values.to(DEVICE), found, chunk=4096, keep=keep)
    return found.cpu(), places.cpu()


@sizes
@pytest.mark.parametrize("keep", [64, 7, 1, 1500])
def test_the_largest_of_chunks(size: int, keep: int) -> None:
    values, keep = drawn(size), min(keep, size)
    found, places = largest(values, keep)
    rows = torch.cat([values, values.new_zeros(-size % 4096)]).view(-1, 4096)
    wanted = rows.abs().gather(1, _largest(rows.abs(), keep)).sort(1).values
    assert torch.equal(found.view(-1, keep).abs().sort(1).values, wanted)
    assert torch.equal(rows.gather(1, places.view(-1, keep).long()).flatten(), found)
    assert (places.view(-1, keep).diff(dim=1) > 0).all()


def test_equal_values_are_taken_by_place() -> None:
    values = torch.zeros(4096)
    values[[7, 100, 3000]] = torch.tensor([1.0, -2.0, 1.0])
    _, places = largest(values, 5)
    assert places.tolist() == [0, 1, 7, 100, 3000]


@sizes
@pytest.mark.parametrize("bits", [8, 12, 13, 16])
def test_packed_numbers(size: int, bits: int) -> None:
    numbers = torch.randint(1 << bits, (size,), generator=torch.Generator().manual_seed(size))
    encoded = poisoned(packed_size(size, bits), torch.uint8)
    kernels.packed(numbers.to(DEVICE, torch.int32), encoded, bits=bits)
    assert torch.equal(unpack(encoded.cpu(), size, bits).long(), numbers)


@sizes
@pytest.mark.parametrize("codec", [ChunkTopK(), ChunkTopK(bits=2), ChunkTopK(keep=7), ChunkTopK(keep=7, bits=2)])
def test_what_was_chosen_is_spread(size: int, codec: ChunkTopK) -> None:
    encoded, keep = codec.encode(drawn(size)), min(codec.keep, size)
    number = -(-size // 4096) * keep
    start, end = (0, 2 * number) if codec.bits == 16 else (8, 8 + packed_size(number, 2))
    decoded, here = poisoned(size, torch.float32), encoded.to(DEVICE)
    kernels.spread(here[:start] if start else None, here[start:end], here[end:], decoded, chunk=4096, keep=keep)
    assert torch.equal(decoded.cpu(), codec.decode(encoded, size))


@pytest.mark.skipif(IS_INTERPRETED, reason="the interpreter has no device of its own")
@sizes
@pytest.mark.parametrize("codec", [Blocks(8), Blocks(4), Codebook(2), Codebook(1), ChunkTopK(), ChunkTopK(bits=2)])
def test_a_gpu_and_a_cpu_decode_the_same(size: int, codec: Blocks | Codebook | ChunkTopK) -> None:
    encoded = codec.encode(drawn(size).cuda())
    assert torch.equal(codec.decode(encoded, size).cpu(), codec.decode(encoded.cpu(), size))


@pytest.mark.skipif(IS_INTERPRETED, reason="the interpreter has no device of its own")
@sizes
@pytest.mark.parametrize("codec", [ChunkTopK(), ChunkTopK(bits=2)])
def test_a_gpu_and_a_cpu_choose_the_same(size: int, codec: ChunkTopK) -> None:
    values = drawn(size)
    here, there = codec.decode(codec.encode(values.cuda()), size).cpu(), codec.decode(codec.encode(values), size)
    assert torch.allclose(here, there, rtol=2**-7, atol=1e-6)

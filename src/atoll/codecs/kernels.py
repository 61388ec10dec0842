"""Codecs as kernels of a GPU: each reads the values once, and writes the bytes once.

They give the bytes that the same codec gives on a CPU, with two exceptions.  A codebook's entries are means, and a mean
depends on the order of additions: entries may differ in their last bit.  The largest values of a chunk are listed by
place, not in any order.  What is decoded depends on nothing but the bytes, so all members get the same values.

`available` says whether there are such kernels; without them, codecs compute with torch, on a GPU too.
"""

import torch
from torch import Tensor

__all__ = [
    "available",
    "blocks_decoded",
    "blocks_encoded",
    "codebook_decoded",
    "codebook_encoded",
    "largest",
]

try:
    import triton
    import triton.language as tl
except ImportError:  # torch for CPUs comes without it
    triton = None


def available(values: Tensor) -> bool:
    """Whether there are kernels for the device of these values."""
    return values.is_cuda and triton is not None


def blocks_encoded(values: Tensor, encoded: Tensor, *, block: int, bits: int) -> None:
    """Fills in a scale for each block, as float32, and behind them the numbers, packed.

    Args:
        values: float32.
        encoded: as many bytes as they take.
        block: how many values have one scale.
        bits: of a number: 8 or 4.
    """
    rows = -(-len(values) // block)
    if rows:
        scales, codes = encoded[: 4 * rows].view(torch.float32), encoded[4 * rows :]
        grid = (-(-rows // ROWS),)
        _encode_blocks[grid](values, scales, codes, len(values), rows, BLOCK=block, BITS=bits, ROWS=ROWS, num_warps=4)


def blocks_decoded(encoded: Tensor, values: Tensor, *, block: int, bits: int) -> None:
    """The reverse of `blocks_encoded`."""
    rows = -(-len(values) // block)
    if rows:
        scales, codes = _aligned(encoded, 4 * rows, torch.float32), encoded[4 * rows :]
        grid = (-(-len(values) // TILE),)
        _decode_blocks[grid](scales, codes, values, len(values), BLOCK=block, BITS=bits, TILE=TILE, num_warps=4)


def codebook_encoded(values: Tensor, encoded: Tensor, *, block: int, bits: int) -> None:
    """Fills in a codebook for each block, as bfloat16, and behind them the bins, packed.

    Args:
        values: float32.
        encoded: as many bytes as they take.
        block: how many values have one codebook.
        bits: of a bin: 2 or 1.
    """
    rows = -(-len(values) // block)
    if rows:
        end = (2 << bits) * rows
        books, codes = encoded[:end].view(torch.bfloat16), encoded[end:]
        _encode_codebook[(rows,)](values, books, codes, len(values), BLOCK=block, BITS=bits, num_warps=8)


def codebook_decoded(encoded: Tensor, values: Tensor, *, block: int, bits: int) -> None:
    """The reverse of `codebook_encoded`."""
    rows = -(-len(values) // block)
    if rows:
        end = (2 << bits) * rows
        books, codes = _aligned(encoded, end, torch.bfloat16), encoded[end:]
        grid = (-(-len(values) // TILE),)
        _decode_codebook[grid](books, codes, values, len(values), BLOCK=block, BITS=bits, TILE=TILE, num_warps=4)


def largest(values: Tensor, *, chunk: int, keep: int) -> tuple[Tensor, Tensor]:
    """The `keep` largest of each `chunk` values, by place, and their places in the chunk.  Values behind the end are 0.

    Args:
        values: float32.
        chunk: a power of two.
        keep: at most `chunk`.
    """
    rows = -(-len(values) // chunk)
    found = torch.empty(rows * keep, device=values.device)
    places = torch.empty(rows * keep, dtype=torch.int32, device=values.device)
    if rows:
        _select_largest[(rows,)](values, found, places, len(values), CHUNK=chunk, KEEP=keep, num_warps=8)
    return found, places


def _aligned(encoded: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """The first bytes as numbers; they may be anywhere in memory."""
    first = encoded[:size]
    return (first if first.data_ptr() % dtype.itemsize == 0 else first.clone()).view(dtype)


ROWS = 8
"""Blocks that one program encodes."""
TILE = 4096
"""Values that one program decodes."""

if triton is not None:
    # The names of kernels and their arguments are the field's.  A value is rounded to the nearest even number by adding
    # and subtracting 1.5 · 2²³.

    @triton.jit  # type: ignore[untyped-decorator]
    def _encode_blocks(
        values: tl.tensor,
        scales: tl.tensor,
        codes: tl.tensor,
        count: tl.tensor,
        rows: tl.tensor,
        BLOCK: tl.constexpr,
        BITS: tl.constexpr,
        ROWS: tl.constexpr,
    ) -> None:
        highest: tl.constexpr = (1 << (BITS - 1)) - 1
        row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
        place = row[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
        value = tl.load(values + place, mask=place < count, other=0.0)
        top = tl.max(tl.abs(value), 1)
        scale = tl.math.div_rn(top, tl.full(top.shape, highest, tl.float32))
        tl.store(scales + row, scale, mask=row < rows)
        divisor = tl.maximum(scale, 1.1754943508222875e-38)[:, None] + tl.zeros(value.shape, tl.float32)
        number = (tl.math.div_rn(value, divisor) + 12582912.0) - 12582912.0
        number = tl.minimum(tl.maximum(number, -highest), highest)
        code = number.to(tl.int32) + highest
        if BITS == 8:
            tl.store(codes + place, code.to(tl.uint8), mask=place < count)
        else:
            # Behind the end there is nothing, not the number 0.
            code = tl.where(place < count, code, 0)
            pair = tl.reshape(code, (ROWS, BLOCK // 2, 2))
            packed = tl.sum(pair << (4 * tl.arange(0, 2))[None, None, :], 2)
            where = row[:, None] * (BLOCK // 2) + tl.arange(0, BLOCK // 2)[None, :]
            tl.store(codes + where, packed.to(tl.uint8), mask=where < (count + 1) // 2)

    @triton.jit  # type: ignore[untyped-decorator]
    def _decode_blocks(
        scales: tl.tensor,
        codes: tl.tensor,
        values: tl.tensor,
        count: tl.tensor,
        BLOCK: tl.constexpr,
        BITS: tl.constexpr,
        TILE: tl.constexpr,
    ) -> None:
        highest: tl.constexpr = (1 << (BITS - 1)) - 1
        place = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
        inside = place < count
        if BITS == 8:
            code = tl.load(codes + place, mask=inside, other=0).to(tl.int32)
        else:
            code = tl.load(codes + place // 2, mask=inside, other=0).to(tl.int32)
            code = (code >> (4 * (place % 2)).to(tl.int32)) & 15
        scale = tl.load(scales + place // BLOCK, mask=inside, other=0.0)
        tl.store(values + place, (code - highest).to(tl.float32) * scale, mask=inside)

    @triton.jit  # type: ignore[untyped-decorator]
    def _mean(total: tl.tensor, many: tl.tensor) -> tl.tensor:
        return total / tl.maximum(many, 1).to(tl.float32)

    @triton.jit  # type: ignore[untyped-decorator]
    def _encode_codebook(
        values: tl.tensor,
        books: tl.tensor,
        codes: tl.tensor,
        count: tl.tensor,
        BLOCK: tl.constexpr,
        BITS: tl.constexpr,
    ) -> None:
        row = tl.program_id(0).to(tl.int64)
        own = tl.arange(0, BLOCK)
        place = row * BLOCK + own
        inside = place < count
        width = tl.minimum(count - row * BLOCK, BLOCK)
        value = tl.load(values + place, mask=inside, other=0.0)
        # −0 counts as negative, as on a CPU.
        positive = inside & (value.to(tl.int32, bitcast=True) >= 0)
        many_positive = tl.sum(positive.to(tl.int32), 0)
        total_positive = tl.sum(tl.maximum(value, 0.0), 0)
        total = tl.sum(value, 0)
        first = books + row * (1 << BITS)
        if BITS == 1:
            code = positive.to(tl.int32)
            tl.store(first, _mean(total - total_positive, width - many_positive).to(tl.bfloat16))
            tl.store(first + 1, _mean(total_positive, many_positive).to(tl.bfloat16))
        else:
            edge = 1.5 / tl.sqrt(width.to(tl.float32)) * tl.sqrt(tl.sum(value * value, 0))
            is_high = inside & ((value - edge).to(tl.int32, bitcast=True) >= 0)
            is_low = inside & ((value + edge).to(tl.int32, bitcast=True) < 0)
            many_high, many_low = tl.sum(is_high.to(tl.int32), 0), tl.sum(is_low.to(tl.int32), 0)
            total_high = tl.sum(tl.where(is_high, value, 0.0), 0)
            total_low = tl.sum(tl.where(is_low, value, 0.0), 0)
            code = 1 + positive.to(tl.int32) + is_high.to(tl.int32) - is_low.to(tl.int32)
            code = tl.where(inside, code, 0)
            many_between = width - many_positive - many_low
            tl.store(first, _mean(total_low, many_low).to(tl.bfloat16))
            tl.store(first + 1, _mean(total - total_positive - total_low, many_between).to(tl.bfloat16))
            tl.store(first + 2, _mean(total_positive - total_high, many_positive - many_high).to(tl.bfloat16))
            tl.store(first + 3, _mean(total_high, many_high).to(tl.bfloat16))
        each: tl.constexpr = 8 // BITS
        groups = tl.reshape(code, (BLOCK // each, each))
        packed = tl.sum(groups << (BITS * tl.arange(0, each))[None, :], 1)
        where = row * (BLOCK // each) + tl.arange(0, BLOCK // each)
        tl.store(codes + where, packed.to(tl.uint8), mask=where < (count + each - 1) // each)

    @triton.jit  # type: ignore[untyped-decorator]
    def _decode_codebook(
        books: tl.tensor,
        codes: tl.tensor,
        values: tl.tensor,
        count: tl.tensor,
        BLOCK: tl.constexpr,
        BITS: tl.constexpr,
        TILE: tl.constexpr,
    ) -> None:
        each: tl.constexpr = 8 // BITS
        place = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
        inside = place < count
        code = tl.load(codes + place // each, mask=inside, other=0).to(tl.int32)
        code = (code >> (BITS * (place % each)).to(tl.int32)) & ((1 << BITS) - 1)
        value = tl.load(books + place // BLOCK * (1 << BITS) + code, mask=inside, other=0.0)
        tl.store(values + place, value.to(tl.float32), mask=inside)

    @triton.jit  # type: ignore[untyped-decorator]
    def _select_largest(
        values: tl.tensor,
        found: tl.tensor,
        places: tl.tensor,
        count: tl.tensor,
        CHUNK: tl.constexpr,
        KEEP: tl.constexpr,
    ) -> None:
        row = tl.program_id(0).to(tl.int64)
        own = tl.arange(0, CHUNK)
        place = row * CHUNK + own
        value = tl.load(values + place, mask=place < count, other=0.0)
        # Without its sign, a float is as large as its bits are.  The least that is kept is found by halving.
        bits = value.to(tl.int32, bitcast=True) & 0x7FFFFFFF
        low = tl.min(bits, 0)
        high = tl.max(bits, 0) + 1
        many = CHUNK
        while (high - low > 1) & (many != KEEP):
            middle = low + (high - low) // 2
            here = tl.sum((bits >= middle).to(tl.int32), 0)
            if here >= KEEP:
                low = middle
                many = here
            else:
                high = middle
        above, equal = bits > low, bits == low
        wanted = KEEP - tl.sum(above.to(tl.int32), 0)
        chosen = above | (equal & (tl.cumsum(equal.to(tl.int32), 0) <= wanted))
        target = row * KEEP + tl.cumsum(chosen.to(tl.int32), 0) - 1
        tl.store(found + target, value, mask=chosen)
        tl.store(places + target, own, mask=chosen)

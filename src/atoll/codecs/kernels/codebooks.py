"""Kernels of bins of values, with a codebook for each block, or one for all."""

import torch
from torch import Tensor

from atoll.codecs.kernels.device import TILE, aligned, tl, triton

__all__ = ["codebook_decoded", "codebook_encoded", "one_codebook_encoded"]


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
        _encode_codebook[(rows,)](values, books, codes, len(values), BLOCK=block, BITS=bits, num_warps=4)


def one_codebook_encoded(values: Tensor, book: Tensor, codes: Tensor) -> None:
    """Fills in one codebook for all values, as bfloat16, and 2 bits a value, packed.

    Args:
        values: float32, at least one.
        book: 4 numbers.
        codes: as many bytes as they take.
    """
    tiles = -(-len(values) // TILE)
    sums = torch.empty(2, tiles, 4, dtype=torch.float32, device=values.device)
    _sum_up[(tiles,)](values, sums[0], len(values), TILE=TILE, num_warps=4)
    all_sums = sums[0].sum(0, dtype=torch.float64)
    _find_bins[(tiles,)](values, all_sums, sums[1], codes, len(values), TILE=TILE, num_warps=4)
    _mean_bins[(1,)](all_sums, sums[1].sum(0, dtype=torch.float64), book, len(values), num_warps=1)


def codebook_decoded(encoded: Tensor, values: Tensor, *, block: int, bits: int) -> None:
    """The reverse of `codebook_encoded`."""
    rows = -(-len(values) // block)
    if rows:
        end = (2 << bits) * rows
        books, codes = aligned(encoded, end, torch.bfloat16), encoded[end:]
        grid = (-(-len(values) // TILE),)
        _decode_codebook[grid](books, codes, values, len(values), BLOCK=block, BITS=bits, TILE=TILE, num_warps=4)


if triton is not None:

    @triton.jit  # type: ignore[untyped-decorator]
    def _mean(total: tl.tensor, many: tl.tensor) -> tl.tensor:
        return total / tl.maximum(many, 1).to(tl.float32)

    @triton.jit  # type: ignore[untyped-decorator]
    def _four_sums(
        a: tl.tensor, b: tl.tensor, c: tl.tensor, d: tl.tensor, e: tl.tensor, f: tl.tensor, g: tl.tensor, h: tl.tensor
    ) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
        return a + e, b + f, c + g, d + h

    @triton.jit  # type: ignore[untyped-decorator]
    def _sum_up(values: tl.tensor, sums: tl.tensor, count: tl.tensor, TILE: tl.constexpr) -> None:
        tile = tl.program_id(0)
        place = tile.to(tl.int64) * TILE + tl.arange(0, TILE)
        inside = place < count
        value = tl.load(values + place, mask=inside, other=0.0)
        positive = inside & (value.to(tl.int32, bitcast=True) >= 0)
        total, total_positive, squares, many_positive = tl.reduce(
            (value, tl.maximum(value, 0.0), value * value, positive.to(tl.int32)), 0, _four_sums
        )
        tl.store(sums + tile * 4, total)
        tl.store(sums + tile * 4 + 1, total_positive)
        tl.store(sums + tile * 4 + 2, squares)
        tl.store(sums + tile * 4 + 3, many_positive.to(tl.float32))

    @triton.jit  # type: ignore[untyped-decorator]
    def _find_bins(
        values: tl.tensor,
        all_sums: tl.tensor,
        sums: tl.tensor,
        codes: tl.tensor,
        count: tl.tensor,
        TILE: tl.constexpr,
    ) -> None:
        tile = tl.program_id(0)
        place = tile.to(tl.int64) * TILE + tl.arange(0, TILE)
        inside = place < count
        value = tl.load(values + place, mask=inside, other=0.0)
        edge = 1.5 * tl.sqrt(tl.load(all_sums + 2).to(tl.float32) / count)
        positive = inside & (value.to(tl.int32, bitcast=True) >= 0)
        is_high = inside & ((value - edge).to(tl.int32, bitcast=True) >= 0)
        is_low = inside & ((value + edge).to(tl.int32, bitcast=True) < 0)
        total_high, total_low, many_high, many_low = tl.reduce(
            (tl.where(is_high, value, 0.0), tl.where(is_low, value, 0.0), is_high.to(tl.int32), is_low.to(tl.int32)),
            0,
            _four_sums,
        )
        tl.store(sums + tile * 4, total_high)
        tl.store(sums + tile * 4 + 1, total_low)
        tl.store(sums + tile * 4 + 2, many_high.to(tl.float32))
        tl.store(sums + tile * 4 + 3, many_low.to(tl.float32))
        code = 1 + positive.to(tl.int32) + is_high.to(tl.int32) - is_low.to(tl.int32)
        groups = tl.reshape(tl.where(inside, code, 0), (TILE // 4, 4))
        packed = tl.sum(groups << (2 * tl.arange(0, 4))[None, :], 1)
        where = tile.to(tl.int64) * (TILE // 4) + tl.arange(0, TILE // 4)
        tl.store(codes + where, packed.to(tl.uint8), mask=where < (count + 3) // 4)

    @triton.jit  # type: ignore[untyped-decorator]
    def _mean_bins(one: tl.tensor, two: tl.tensor, book: tl.tensor, count: tl.tensor) -> None:
        total, total_positive, many_positive = tl.load(one), tl.load(one + 1), tl.load(one + 3)
        total_high, total_low = tl.load(two), tl.load(two + 1)
        many_high, many_low = tl.load(two + 2), tl.load(two + 3)
        many_between = count - many_positive - many_low
        between = total - total_positive - total_low
        tl.store(book, (total_low / tl.maximum(many_low, 1.0)).to(tl.float32).to(tl.bfloat16))
        tl.store(book + 1, (between / tl.maximum(many_between, 1.0)).to(tl.float32).to(tl.bfloat16))
        above = (total_positive - total_high) / tl.maximum(many_positive - many_high, 1.0)
        tl.store(book + 2, above.to(tl.float32).to(tl.bfloat16))
        tl.store(book + 3, (total_high / tl.maximum(many_high, 1.0)).to(tl.float32).to(tl.bfloat16))

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
        total, total_positive, squares, many_positive = tl.reduce(
            (value, tl.maximum(value, 0.0), value * value, positive.to(tl.int32)), 0, _four_sums
        )
        first = books + row * (1 << BITS)
        if BITS == 1:
            code = positive.to(tl.int32)
            tl.store(first, _mean(total - total_positive, width - many_positive).to(tl.bfloat16))
            tl.store(first + 1, _mean(total_positive, many_positive).to(tl.bfloat16))
        else:
            edge = 1.5 / tl.sqrt(width.to(tl.float32)) * tl.sqrt(squares)
            is_high = inside & ((value - edge).to(tl.int32, bitcast=True) >= 0)
            is_low = inside & ((value + edge).to(tl.int32, bitcast=True) < 0)
            total_high, total_low, many_high, many_low = tl.reduce(
                (
                    tl.where(is_high, value, 0.0),
                    tl.where(is_low, value, 0.0),
                    is_high.to(tl.int32),
                    is_low.to(tl.int32),
                ),
                0,
                _four_sums,
            )
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

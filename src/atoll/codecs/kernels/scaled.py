"""Kernels of integers with a scale for each block."""

import torch
from torch import Tensor

from atoll.codecs.kernels.device import TILE, aligned, tl, triton

__all__ = ["blocks_decoded", "blocks_encoded"]

ROWS = 8
"""Blocks that one program encodes."""


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
        scales, codes = aligned(encoded, 4 * rows, torch.float32), encoded[4 * rows :]
        grid = (-(-len(values) // TILE),)
        _decode_blocks[grid](scales, codes, values, len(values), BLOCK=block, BITS=bits, TILE=TILE, num_warps=4)


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

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
    "one_codebook_encoded",
    "packed",
    "spread",
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
        _encode_codebook[(rows,)](values, books, codes, len(values), BLOCK=block, BITS=bits, num_warps=4)


def one_codebook_encoded(values: Tensor, book: Tensor, codes: Tensor) -> None:
    """Fills in one codebook for all values, as bfloat16, and 2 bits a value, packed.

    Args:
        values: float32, at least one.
        book: 4 numbers.
        codes: as many bytes as they take.
    """
    tiles = -(-len(values) // TILE)
    sums = torch.empty(2, tiles, 4, device=values.device)
    _sum_up[(tiles,)](values, sums[0], len(values), TILE=TILE, num_warps=4)
    all_sums = sums[0].sum(0, dtype=torch.float64)
    _find_bins[(tiles,)](values, all_sums, sums[1], codes, len(values), TILE=TILE, num_warps=4)
    _mean_bins[(1,)](all_sums, sums[1].sum(0, dtype=torch.float64), book, len(values), num_warps=1)


def codebook_decoded(encoded: Tensor, values: Tensor, *, block: int, bits: int) -> None:
    """The reverse of `codebook_encoded`."""
    rows = -(-len(values) // block)
    if rows:
        end = (2 << bits) * rows
        books, codes = _aligned(encoded, end, torch.bfloat16), encoded[end:]
        grid = (-(-len(values) // TILE),)
        _decode_codebook[grid](books, codes, values, len(values), BLOCK=block, BITS=bits, TILE=TILE, num_warps=4)


def largest(values: Tensor, found: Tensor, *, chunk: int, keep: int) -> Tensor:
    """Finds the `keep` largest of each `chunk` values, by place.  Values behind the end are 0.

    Args:
        values: float32.
        found: is filled in with them, in its own type.
        chunk: a power of two.
        keep: at most `chunk`.

    Returns:
        Their places in their chunks.
    """
    rows = -(-len(values) // chunk)
    places = torch.empty(rows * keep, dtype=torch.int32, device=values.device)
    if rows:
        split = 16
        while split > 1 and chunk // split < 2 * keep:
            split //= 2
        shape = {"CHUNK": chunk, "KEEP": keep, "SPLIT": split, "num_warps": SELECT_WARPS}
        _select_largest[(rows,)](values, places, len(values), **shape)
        grid = (-(-len(places) // TILE),)
        _take[grid](values, places, found, len(values), len(places), CHUNK=chunk, KEEP=keep, TILE=TILE, num_warps=4)
    return places


def packed(numbers: Tensor, encoded: Tensor, *, bits: int) -> None:
    """Fills in the numbers (int32) in `bits` bits each, as `atoll.codecs.bits.pack` does.

    Args:
        numbers: of at most `bits` bits.
        encoded: as many bytes as they take.
        bits: from 8 to 16: a byte holds parts of two numbers at most.
    """
    if len(encoded):
        grid = (-(-len(encoded) // TILE),)
        _pack[grid](numbers, encoded, len(numbers), len(encoded), BITS=bits, TILE=TILE, num_warps=4)


def spread(book: Tensor | None, chosen: Tensor, places: Tensor, values: Tensor, *, chunk: int, keep: int) -> None:
    """Fills in the values that `largest` has found, and 0 elsewhere.

    Args:
        book: bfloat16, where `chosen` are 2 bits each.
        chosen: what was found, as bfloat16 or 2 bits each: bytes.
        places: `packed`: bytes.
        values: float32.
        chunk: a power of two.
        keep: of each chunk.
    """
    rows = -(-len(values) // chunk)
    if rows:
        end, bits = len(places), (chunk - 1).bit_length()
        chosen = chosen if book is not None else _aligned(chosen, 2 * rows * keep, torch.bfloat16)
        table = chosen if book is None else _aligned(book, 8, torch.bfloat16)
        shape = {"CHUNK": chunk, "KEEP": keep, "ROOM": triton.next_power_of_2(keep), "BITS": bits}
        _spread[(rows,)](table, chosen, places, values, end, len(values), IS_CODE=book is not None, **shape)


def _aligned(encoded: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """The first bytes as numbers; they may be anywhere in memory."""
    first = encoded[:size]
    return (first if first.data_ptr() % dtype.itemsize == 0 else first.clone()).view(dtype)


ROWS = 8
"""Blocks that one program encodes."""
TILE = 4096
"""Values that one program decodes."""
SELECT_WARPS = 4

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

    @triton.jit  # type: ignore[untyped-decorator]
    def _select_largest(
        values: tl.tensor,
        places: tl.tensor,
        count: tl.tensor,
        CHUNK: tl.constexpr,
        KEEP: tl.constexpr,
        SPLIT: tl.constexpr,
    ) -> None:
        row = tl.program_id(0).to(tl.int64)
        own = tl.arange(0, CHUNK)
        width = tl.minimum(count - row * CHUNK, CHUNK).to(tl.int32)
        value = tl.load(values + row * CHUNK + own, mask=own < width, other=0.0)
        # Without its sign, a float is as large as its bits are.  The least that is kept is at least the `KEEP`-th
        # largest maximum of all groups; that is found by halving.
        bits = value.to(tl.int32, bitcast=True) & 0x7FFFFFFF
        top = tl.max(tl.reshape(bits, (SPLIT, CHUNK // SPLIT)), 0)
        low = tl.min(top, 0)
        highest = tl.max(top, 0) + 1
        high = highest
        many = CHUNK // SPLIT
        while (high - low > 1) & (many != KEEP):
            middle = low + (high - low) // 2
            here = tl.sum((top >= middle).to(tl.int32), 0)
            if here >= KEEP:
                low = middle
                many = here
            else:
                high = middle
        # A few more values than `KEEP` are as large.  The count falls about exponentially, so its logarithm tells where
        # to look; every fourth time we halve, whatever the values.
        many = tl.sum((bits >= low).to(tl.int32), 0)
        high = highest
        few = 0.5
        turn = 0
        while (high - low > 1) & (many != KEEP):
            share = tl.log(many.to(tl.float32) / KEEP) / tl.log(many.to(tl.float32) / few)
            share = tl.where(turn % 4 == 3, 0.5, share)
            middle = low + ((high - low).to(tl.float32) * share).to(tl.int32)
            middle = tl.minimum(tl.maximum(middle, low + 1), high - 1)
            here = tl.sum((bits >= middle).to(tl.int32), 0)
            if here >= KEEP:
                low = middle
                many = here
            else:
                high = middle
                few = tl.maximum(here.to(tl.float32), 0.5)
            turn += 1
        above, equal = bits > low, bits == low
        before = tl.cumsum(above.to(tl.int32) + (equal.to(tl.int32) << 16), 0)
        equal_before = before >> 16
        wanted = KEEP - tl.sum(above.to(tl.int32), 0)
        chosen = above | (equal & (equal_before <= wanted))
        target = (before & 0xFFFF) + tl.minimum(equal_before, wanted) - 1
        tl.store(places + row * KEEP + target, own, mask=chosen)

    @triton.jit  # type: ignore[untyped-decorator]
    def _take(
        values: tl.tensor,
        places: tl.tensor,
        found: tl.tensor,
        count: tl.tensor,
        number: tl.tensor,
        CHUNK: tl.constexpr,
        KEEP: tl.constexpr,
        TILE: tl.constexpr,
    ) -> None:
        own = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
        inside = own < number
        place = own // KEEP * CHUNK + tl.load(places + own, mask=inside, other=0)
        tl.store(found + own, tl.load(values + place, mask=inside & (place < count), other=0.0), mask=inside)

    @triton.jit  # type: ignore[untyped-decorator]
    def _pack(
        numbers: tl.tensor,
        encoded: tl.tensor,
        count: tl.tensor,
        size: tl.tensor,
        BITS: tl.constexpr,
        TILE: tl.constexpr,
    ) -> None:
        place = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
        number = place * 8 // BITS
        low = tl.load(numbers + number, mask=number < count, other=0)
        high = tl.load(numbers + number + 1, mask=number + 1 < count, other=0)
        both = low | (high << BITS)
        tl.store(encoded + place, (both >> (place * 8 - number * BITS).to(tl.int32)).to(tl.uint8), mask=place < size)

    @triton.jit  # type: ignore[untyped-decorator]
    def _spread(
        book: tl.tensor,
        chosen: tl.tensor,
        places: tl.tensor,
        values: tl.tensor,
        end: tl.tensor,
        count: tl.tensor,
        IS_CODE: tl.constexpr,
        CHUNK: tl.constexpr,
        KEEP: tl.constexpr,
        ROOM: tl.constexpr,
        BITS: tl.constexpr,
    ) -> None:
        row = tl.program_id(0).to(tl.int64)
        whole = row * CHUNK + tl.arange(0, CHUNK)
        tl.store(values + whole, tl.zeros((CHUNK,), tl.float32), mask=whole < count)
        number = row * KEEP + tl.arange(0, ROOM)
        inside = tl.arange(0, ROOM) < KEEP
        byte = number * BITS // 8
        first = tl.load(places + byte, mask=inside, other=0).to(tl.int32)
        second = tl.load(places + byte + 1, mask=inside & (byte + 1 < end), other=0).to(tl.int32)
        third = tl.load(places + byte + 2, mask=inside & (byte + 2 < end), other=0).to(tl.int32)
        three = first | (second << 8) | (third << 16)
        place = row * CHUNK + ((three >> (number * BITS - byte * 8).to(tl.int32)) & (CHUNK - 1))
        if IS_CODE:
            code = tl.load(chosen + number // 4, mask=inside, other=0).to(tl.int32)
            value = tl.load(book + ((code >> (2 * (number % 4)).to(tl.int32)) & 3), mask=inside, other=0.0)
        else:
            value = tl.load(chosen + number, mask=inside, other=0.0)
        tl.debug_barrier()  # the zeros of all threads are written
        tl.store(values + place, value.to(tl.float32), mask=inside & (place < count))

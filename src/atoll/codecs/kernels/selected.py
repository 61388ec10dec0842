"""Kernels of the largest values of each chunk, and of their places."""

import torch
from torch import Tensor

from atoll.codecs.kernels.device import TILE, aligned, tl, triton

__all__ = ["largest", "packed", "spread"]

SELECT_WARPS = 4


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
        chosen = chosen if book is not None else aligned(chosen, 2 * rows * keep, torch.bfloat16)
        table = chosen if book is None else aligned(book, 8, torch.bfloat16)
        shape = {"CHUNK": chunk, "KEEP": keep, "ROOM": triton.next_power_of_2(keep), "BITS": bits}
        _spread[(rows,)](table, chosen, places, values, end, len(values), IS_CODE=book is not None, **shape)


if triton is not None:

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

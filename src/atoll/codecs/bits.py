"""Small integers, packed without gaps."""

import torch
from torch import Tensor

__all__ = ["pack", "packed_size", "unpack", "width"]


def width(largest: int) -> int:
    """Bits that numbers up to `largest` take."""
    return max(1, largest.bit_length())


def packed_size(count: int, bits: int) -> int:
    return (count * bits + 7) // 8


def pack(numbers: Tensor, bits: int) -> Tensor:
    """Bytes that hold each number in `bits` bits, the lowest first."""
    if bits == 8:
        return numbers.to(torch.uint8)
    if bits == 2:
        fours = _padded(numbers.to(torch.uint8), 4).contiguous().view(torch.int32)
        return (fours | (fours >> 6) | (fours >> 12) | (fours >> 18)).to(torch.uint8)  # the lowest byte
    if 8 % bits == 0:
        rows = _padded(numbers.to(torch.uint8), 8 // bits).view(-1, 8 // bits)
        packed = rows[:, 0].clone()
        for place in range(1, rows.shape[1]):
            packed |= rows[:, place] << (bits * place)
        return packed
    if bits == 12:
        pairs = _padded(numbers, 2).view(-1, 2)
        both = pairs[:, 0] | (pairs[:, 1] << 12)
        packed = torch.stack([both & 255, (both >> 8) & 255, both >> 16], dim=1).to(torch.uint8).flatten()
        return packed[: packed_size(len(numbers), bits)]
    places = torch.arange(bits, device=numbers.device)
    single = ((numbers[:, None] >> places) & 1).to(torch.uint8).flatten()
    return pack(single, 1)


def unpack(packed: Tensor, count: int, bits: int) -> Tensor:
    """The numbers (int64; uint8 where they fit a whole part of a byte)."""
    if bits == 8:
        return packed[:count]
    if 8 % bits == 0:
        places = bits * torch.arange(8 // bits, dtype=torch.uint8, device=packed.device)
        rows: Tensor = (packed[:, None] >> places) & (2**bits - 1)
        return rows.flatten()[:count]
    if bits == 12:
        threes = _padded(packed, 3).view(-1, 3).long()
        both = threes[:, 0] | (threes[:, 1] << 8) | (threes[:, 2] << 16)
        return torch.stack([both & 4095, both >> 12], dim=1).flatten()[:count]
    single = unpack(packed, count * bits, 1).long().view(count, bits)
    numbers: Tensor = single << torch.arange(bits, device=packed.device)
    return numbers.sum(1)


def _padded(numbers: Tensor, multiple: int) -> Tensor:
    missing = -len(numbers) % multiple
    return torch.cat([numbers, numbers.new_zeros(missing)]) if missing else numbers

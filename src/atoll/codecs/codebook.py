"""One or two bits a value: the bin that it lies in.  A codebook holds the value of each bin."""

from dataclasses import dataclass

import torch
from torch import Tensor

from atoll.codecs import kernels
from atoll.codecs.base import SLAB, Codec, from_bytes, register, slabs
from atoll.codecs.bits import pack, packed_size, unpack
from atoll.vectors import empty

__all__ = ["Codebook", "bins"]

BLOCK = 4096


@dataclass(frozen=True, slots=True)
class Codebook(Codec):
    """1 bit: the sign; 2 bits: also whether it is beyond 1.5 σ.  A bin stands for the mean of its values.

    Each block of 4096 values has its own codebook, of 16-bit floats.
    """

    bits: int = 2

    def size(self, count: int) -> int:
        return (2 << self.bits) * -(-count // BLOCK) + packed_size(count, self.bits)

    def encode(self, values: Tensor, key: int = 0) -> Tensor:  # noqa: ARG002 - the shape of a codec
        encoded = empty(self.size(len(values)), values.device, torch.uint8)
        if kernels.available(values):
            kernels.codebook_encoded(values, encoded, block=BLOCK, bits=self.bits)
            return encoded
        end = (2 << self.bits) * -(-len(values) // BLOCK)
        books, codes = encoded[:end].view(torch.bfloat16).view(-1, 1 << self.bits), encoded[end:]
        for start, slab in slabs(values, BLOCK):
            whole = len(slab) // BLOCK * BLOCK
            for first, part in ((start, slab[:whole].view(-1, BLOCK)), (start + whole, slab[whole:].view(1, -1))):
                if part.numel():
                    book, code = bins(part, self.bits)
                    books[first // BLOCK : first // BLOCK + len(part)] = book
                    place = packed_size(first, self.bits)
                    codes[place : place + packed_size(part.numel(), self.bits)] = pack(code.flatten(), self.bits)
        return encoded

    def decode(self, encoded: Tensor, count: int, key: int = 0) -> Tensor:  # noqa: ARG002
        if kernels.available(encoded):
            values = torch.empty(count, dtype=torch.float32, device=encoded.device)
            kernels.codebook_decoded(encoded, values, block=BLOCK, bits=self.bits)
            return values
        blocks, entries = -(-count // BLOCK), 2**self.bits
        books = from_bytes(encoded, torch.bfloat16, 0, blocks * entries).float().view(blocks, entries)
        codes = encoded[2 * blocks * entries :]
        each = packed_size(BLOCK, self.bits)
        decoded = empty(blocks * BLOCK, encoded.device)
        step = len(books) if encoded.device.type != "cpu" else SLAB // BLOCK
        for first in range(0, blocks, step):
            book = books[first : first + step]
            code = unpack(codes[first * each : (first + step) * each], len(book) * BLOCK, self.bits)
            missing = len(book) * BLOCK - len(code)
            code = torch.cat([code, code.new_zeros(missing)]) if missing else code
            target = decoded[first * BLOCK : (first + len(book)) * BLOCK].view(-1, BLOCK)
            torch.gather(book, 1, code.view(-1, BLOCK).long(), out=target)
        return decoded[:count]


def bins(rows: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """The codebook and the codes of each row: bins are cut at 0, and with two bits at ±1.5 σ of the row."""
    width = rows.shape[1]
    zero = _below(rows)
    total, many_positive = rows.sum(1), width + _sum(zero)
    total_positive = rows.clamp_min(0).sum(1)
    if bits == 1:
        book = [_mean(total - total_positive, width - many_positive), _mean(total_positive, many_positive)]
        return torch.stack(book, dim=1), (zero + 1).to(torch.uint8)
    edge = 1.5 / width**0.5 * torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    from_high, from_low = rows - edge, rows + edge
    high, low = _below(from_high), _below(from_low)
    many_high, many_low = width + _sum(high), -_sum(low)
    zero += high
    zero += low
    zero += 3
    # The sum of values beyond an edge: how far each is beyond, plus the edge itself for each.
    total_high = from_high.clamp_min_(0).sum(1) + edge[:, 0] * many_high
    total_low = from_low.clamp_max_(0).sum(1) - edge[:, 0] * many_low
    book = [
        _mean(total_low, many_low),
        _mean(total - total_positive - total_low, width - many_positive - many_low),
        _mean(total_positive - total_high, many_positive - many_high),
        _mean(total_high, many_high),
    ]
    return torch.stack(book, dim=1), zero.to(torch.uint8)


def _below(values: Tensor) -> Tensor:
    """−1 where a value has the sign bit, else 0: three times as fast as a comparison."""
    return values.contiguous().view(torch.int32) >> 31


def _sum(numbers: Tensor) -> Tensor:
    return numbers.sum(1, dtype=torch.int32)


def _mean(total: Tensor, many: Tensor) -> Tensor:
    return total / many.clamp_min(1)


register("bits2", lambda _: Codebook(2), "2 bits a value, a codebook for each 4096")
register("bits1", lambda _: Codebook(1), "1 bit a value, a codebook for each 4096")

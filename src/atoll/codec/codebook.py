"""One or two bits a value: which bin it lies in.  A codebook says what each bin means."""

from dataclasses import dataclass

import torch
from torch import Tensor

from atoll.codec.base import Codec, as_bytes, from_bytes, slabs
from atoll.codec.bits import pack, packed_size, unpack

__all__ = ["Codebook", "bins"]

BLOCK = 4096


@dataclass(frozen=True, slots=True)
class Codebook(Codec):
    """1 bit: the sign; 2 bits: also whether it is beyond 1.5 σ.  A bin stands for the mean of what fell into it.

    Each block of 4096 values has its own codebook, of 16-bit floats.
    """

    bits: int = 2

    def size(self, count: int) -> int:
        return (2 << self.bits) * -(-count // BLOCK) + packed_size(count, self.bits)

    def encode(self, values: Tensor, key: int = 0) -> Tensor:  # noqa: ARG002 - the shape of a codec
        books, codes = [], []
        for slab in slabs(values, BLOCK):
            whole = len(slab) // BLOCK * BLOCK
            for part in (slab[:whole].view(-1, BLOCK), slab[whole:].view(1, -1)):
                if part.numel():
                    book, code = bins(part, self.bits)
                    books.append(book.to(torch.bfloat16).flatten())
                    codes.append(pack(code.flatten(), self.bits))
        return as_bytes(*books, *codes) if books else values.new_zeros(0, dtype=torch.uint8)

    def decode(self, encoded: Tensor, count: int, key: int = 0) -> Tensor:  # noqa: ARG002
        blocks, entries = -(-count // BLOCK), 2**self.bits
        books = from_bytes(encoded, torch.bfloat16, 0, blocks * entries).float()
        code = unpack(encoded[2 * blocks * entries :], count, self.bits).long()
        return books[code + entries * (torch.arange(count, device=code.device) // BLOCK)]


def bins(rows: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """The codebook and the codes of each row: bins are cut at 0, and with two bits at ±1.5 σ of the row."""
    above = [rows > 0]
    if bits == 2:
        edge = 1.5 * rows.square().mean(1, keepdim=True).sqrt()
        above = [rows > -edge, *above, rows > edge]
    code = above[0].to(torch.uint8)
    for mark in above[1:]:
        code += mark
    # What lies above an edge, less what lies above the next, is what lies in between.
    sums = [rows.sum(1), *((rows * mark).sum(1) for mark in above), rows.new_zeros(len(rows))]
    counts = [torch.full_like(sums[0], rows.shape[1]), *(mark.sum(1).float() for mark in above), sums[-1]]
    means = [(sums[each] - sums[each + 1]) / (counts[each] - counts[each + 1]).clamp_min(1) for each in range(2**bits)]
    return torch.stack(means, dim=1), code

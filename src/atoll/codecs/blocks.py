"""8 or 4 bits a value, with a scale for each block."""

from dataclasses import dataclass

import torch
from torch import Tensor

from atoll.codecs import kernels
from atoll.codecs.base import SLAB, Codec, from_bytes, register, slabs
from atoll.codecs.bits import pack, packed_size, unpack
from atoll.vectors import empty

__all__ = ["Blocks"]

BLOCK = 256
LEAST = 2.0**-126
"""A block of smaller values is divided by this: the least number that every device computes with."""


@dataclass(frozen=True, slots=True)
class Blocks(Codec):
    """Integers from −127 to 127 (or −7 to 7) times a scale; the scale makes the largest value of a block exact."""

    bits: int = 8

    @property
    def _largest(self) -> int:
        return (1 << (self.bits - 1)) - 1

    def size(self, count: int) -> int:
        return 4 * -(-count // BLOCK) + packed_size(count, self.bits)

    def encode(self, values: Tensor, key: int = 0) -> Tensor:  # noqa: ARG002 - the shape of a codec
        encoded = empty(self.size(len(values)), values.device, torch.uint8)
        if kernels.available(values):
            kernels.blocks_encoded(values, encoded, block=BLOCK, bits=self.bits)
            return encoded
        blocks = -(-len(values) // BLOCK)
        scales, codes = encoded[: 4 * blocks].view(torch.float32), encoded[4 * blocks :]
        for start, slab in slabs(values, BLOCK):
            rows = _rows(slab)
            scale = rows.abs().amax(1, keepdim=True).div_(self._largest)
            code = (rows / scale.clamp_min(LEAST)).round_().clamp_(-self._largest, self._largest).add_(self._largest)
            scales[start // BLOCK : start // BLOCK + len(rows)] = scale.flatten()
            first, end = packed_size(start, self.bits), packed_size(start + len(slab), self.bits)
            codes[first:end] = pack(code.flatten()[: len(slab)].to(torch.uint8), self.bits)
        return encoded

    def decode(self, encoded: Tensor, count: int, key: int = 0) -> Tensor:  # noqa: ARG002
        if kernels.available(encoded):
            values = torch.empty(count, dtype=torch.float32, device=encoded.device)
            kernels.blocks_decoded(encoded, values, block=BLOCK, bits=self.bits)
            return values
        blocks, values = -(-count // BLOCK), empty(count, encoded.device)
        scales, codes = from_bytes(encoded, torch.float32, 0, blocks), encoded[4 * blocks :]
        step = SLAB if encoded.device.type == "cpu" else max(count, 1)
        for start in range(0, count, step):
            slab = values[start : start + step]
            packed = codes[packed_size(start, self.bits) : packed_size(start + len(slab), self.bits)]
            slab.copy_(unpack(packed, len(slab), self.bits)).sub_(self._largest)
            whole = len(slab) // BLOCK * BLOCK
            first = start // BLOCK
            slab[:whole].view(-1, BLOCK).mul_(scales[first : first + whole // BLOCK, None])
            slab[whole:].mul_(scales[-1])
        return values


def _rows(values: Tensor) -> Tensor:
    missing = -len(values) % BLOCK
    return (torch.cat([values, values.new_zeros(missing)]) if missing else values).view(-1, BLOCK)


register("int8", lambda _: Blocks(8), "8 bits a value, a scale for each 256")
register("int4", lambda _: Blocks(4), "4 bits a value, a scale for each 256")

"""Codecs as kernels of a GPU: each reads the values once, and writes the bytes once.

They give the bytes that the same codec gives on a CPU, with two exceptions.  A codebook's entries are means, and a mean
depends on the order of additions: entries may differ in their last bit.  The largest values of a chunk are listed by
place, not in any order.  What is decoded depends on nothing but the bytes, so all members get the same values.

`available` says whether there are such kernels; without them, codecs compute with torch, on a GPU too.
"""

from atoll.codecs.kernels.codebooks import codebook_decoded, codebook_encoded, one_codebook_encoded
from atoll.codecs.kernels.device import available
from atoll.codecs.kernels.scaled import blocks_decoded, blocks_encoded
from atoll.codecs.kernels.selected import largest, packed, spread

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

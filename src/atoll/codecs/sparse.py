"""A few values and their places: the largest of all, the largest of each chunk, or places that all members know."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from atoll.codecs import kernels
from atoll.codecs.base import Codec, as_bytes, from_bytes, register, slabs
from atoll.codecs.bits import pack, packed_size, unpack, width
from atoll.codecs.codebook import bins
from atoll.vectors import zeros

__all__ = ["ChunkTopK", "RandomK", "TopK", "kept"]


def kept(count: int, ratio: float) -> int:
    """How many of `count` values a ratio keeps: at least one."""
    return min(count, max(1, round(ratio * count)))


@dataclass(frozen=True, slots=True)
class TopK(Codec):
    """The largest values of the whole vector, in bfloat16, with packed places."""

    sparse: ClassVar[bool] = True
    ratio: float = 0.01

    def size(self, count: int) -> int:
        keep = kept(count, self.ratio)
        return 2 * keep + packed_size(keep, width(count - 1)) if count else 0

    def encode(self, values: Tensor, key: int = 0) -> Tensor:  # noqa: ARG002 - the shape of a codec
        if not len(values):
            return values.new_zeros(0, dtype=torch.uint8)
        places = values.abs().topk(kept(len(values), self.ratio), sorted=False).indices.sort().values
        return as_bytes(values[places].to(torch.bfloat16), pack(places, width(len(values) - 1)))

    def decode(self, encoded: Tensor, count: int, key: int = 0) -> Tensor:  # noqa: ARG002
        decoded = zeros(count, encoded.device)
        if count:
            keep = kept(count, self.ratio)
            places = unpack(encoded[2 * keep :], keep, width(count - 1))
            decoded[places.long()] = from_bytes(encoded, torch.bfloat16, 0, keep).float()
        return decoded


@dataclass(frozen=True, slots=True)
class ChunkTopK(Codec):
    """The largest `keep` of each `chunk` values (SparseLoCo; DeMo): places take log₂ chunk bits and are fast to find.

    With 2 bits a value, the values are written as bins of one codebook; with 16, as bfloat16.
    """

    sparse: ClassVar[bool] = True
    keep: int = 64
    chunk: int = 4096
    bits: int = 16

    def _shape(self, count: int) -> tuple[int, int]:
        """The number of chunks, and how many values of each are kept."""
        chunks = -(-count // self.chunk)
        return chunks, min(self.keep, self.chunk) if count >= self.chunk else min(self.keep, count)

    def size(self, count: int) -> int:
        chunks, keep = self._shape(count)
        number = chunks * keep
        values = 2 * number if self.bits == 16 else 8 + packed_size(number, 2) if number else 0
        return values + packed_size(number, width(self.chunk - 1))

    def encode(self, values: Tensor, key: int = 0) -> Tensor:  # noqa: ARG002
        if not len(values):
            return values.new_zeros(0, dtype=torch.uint8)
        chunks, keep = self._shape(len(values))
        if kernels.available(values):
            return self._encode_fused(values, chunks, keep)
        chosen, where = self._chosen(values, keep)
        packed = pack(where, width(self.chunk - 1))
        if self.bits == 16:
            return as_bytes(chosen.to(torch.bfloat16), packed)
        book, code = bins(chosen.view(1, -1), 2)
        return as_bytes(book.to(torch.bfloat16), pack(code.flatten(), 2), packed)

    def _encode_fused(self, values: Tensor, chunks: int, keep: int) -> Tensor:
        encoded = torch.empty(self.size(len(values)), dtype=torch.uint8, device=values.device)
        end = len(encoded) - packed_size(chunks * keep, width(self.chunk - 1))
        if self.bits == 16:
            places = kernels.largest(values, encoded[:end].view(torch.bfloat16), chunk=self.chunk, keep=keep)
        else:
            chosen = torch.empty(chunks * keep, dtype=torch.float32, device=values.device)
            places = kernels.largest(values, chosen, chunk=self.chunk, keep=keep)
            kernels.one_codebook_encoded(chosen, encoded[:8].view(torch.bfloat16), encoded[8:end])
        kernels.packed(places, encoded[end:], bits=width(self.chunk - 1))
        return encoded

    def _chosen(self, values: Tensor, keep: int) -> tuple[Tensor, Tensor]:
        """The largest values of all chunks, and their places in their chunks."""
        found, places = [], []
        for _, slab in slabs(values, self.chunk):
            missing = -len(slab) % self.chunk
            rows = (torch.cat([slab, slab.new_zeros(missing)]) if missing else slab).view(-1, self.chunk)
            place = _largest(rows.abs(), keep)
            found.append(rows.gather(1, place).flatten())
            places.append(place.flatten())
        return torch.cat(found), torch.cat(places)

    def decode(self, encoded: Tensor, count: int, key: int = 0) -> Tensor:  # noqa: ARG002
        chunks, keep = self._shape(count)
        number = chunks * keep
        if not number:
            return torch.zeros(0, dtype=torch.float32, device=encoded.device)
        if kernels.available(encoded):
            decoded = torch.empty(count, dtype=torch.float32, device=encoded.device)
            start, end = (0, 2 * number) if self.bits == 16 else (8, 8 + packed_size(number, 2))
            book = None if self.bits == 16 else encoded[:8]
            kernels.spread(book, encoded[start:end], encoded[end:], decoded, chunk=self.chunk, keep=keep)
            return decoded
        if self.bits == 16:
            chosen, end = from_bytes(encoded, torch.bfloat16, 0, number).float(), 2 * number
        else:
            book = from_bytes(encoded, torch.bfloat16, 0, 4).float()
            end = 8 + packed_size(number, 2)
            chosen = book[unpack(encoded[8:end], number, 2).long()]
        places = unpack(encoded[end:], number, width(self.chunk - 1)).long().view(chunks, keep)
        rows = zeros(chunks * self.chunk, encoded.device).view(chunks, self.chunk)
        return rows.scatter_(1, places, chosen.view(chunks, keep)).flatten()[:count]


def _largest(rows: Tensor, keep: int) -> Tensor:
    """The places of the largest `keep` values of each row.

    If a row is split in groups, its largest `keep` all lie in the `keep` groups with the largest maxima: all values of
    other groups are below `keep` maxima.  Maxima are cheap, so groups of four are selected before their values.
    """
    count, width_ = rows.shape
    if width_ % 4 or width_ // 4 < keep:
        return rows.topk(keep, sorted=False).indices
    groups = rows.view(count, 4, width_ // 4)
    columns = _largest(groups.amax(1), keep)
    members = groups.gather(2, columns[:, None].expand(-1, 4, -1)).flatten(1)
    chosen = members.topk(keep, sorted=False).indices
    return chosen // keep * (width_ // 4) + columns.gather(1, chosen % keep)


@dataclass(frozen=True, slots=True)
class RandomK(Codec):
    """Values at random places drawn from the key, one in each run of 1/ratio values: no places are sent, and encoded
    forms of one key can be added.
    """

    summable: ClassVar[bool] = True
    sparse: ClassVar[bool] = True
    ratio: float = 0.01

    def size(self, count: int) -> int:
        return 4 * kept(count, self.ratio) if count else 0

    def _places(self, count: int, key: int, device: torch.device) -> Tensor:
        keep = kept(count, self.ratio)
        edges = torch.linspace(0, count, keep + 1, dtype=torch.float64).round_().long()
        draw = torch.rand(keep, dtype=torch.float64, generator=torch.Generator().manual_seed(key))
        places = edges[:-1] + (draw * (edges[1:] - edges[:-1])).long()
        return places.to(device)

    def encode(self, values: Tensor, key: int = 0) -> Tensor:
        if not len(values):
            return values.new_zeros(0, dtype=torch.uint8)
        return as_bytes(values[self._places(len(values), key, values.device)])

    def decode(self, encoded: Tensor, count: int, key: int = 0) -> Tensor:
        decoded = zeros(count, encoded.device)
        if count:
            keep = kept(count, self.ratio)
            decoded[self._places(count, key, encoded.device)] = from_bytes(encoded, torch.float32, 0, keep)
        return decoded


register("topk", TopK, "the largest, this share of all", number=0.01)
register("chunk", lambda keep: ChunkTopK(int(keep)), "this many of the largest of each 4096", number=64)
register("chunk2", lambda keep: ChunkTopK(int(keep), bits=2), "the same, 2 bits a value", number=64)
register("randk", RandomK, "this share, drawn anew each time, no places sent", number=0.01)

"""Codecs by name: `int8`, `topk/0.01`, `chunk/64`, `chunk2/64`, `lowrank/4`."""

import dataclasses
from collections.abc import Callable

from atoll.codecs.base import Codec
from atoll.codecs.blocks import Blocks
from atoll.codecs.codebook import Codebook
from atoll.codecs.dense import Dense, Half
from atoll.codecs.sparse import ChunkTopK, RandomK, TopK
from atoll.codecs.transform import Cosine, LowRank
from atoll.errors import StrategyError, nearest

__all__ = ["CODECS", "parse_codec", "write_codec"]

CODECS: dict[str, tuple[Callable[[float], Codec], float | None, str]] = {
    "dense": (lambda _: Dense(), None, "every value in 32 bits"),
    "bf16": (lambda _: Half(brain=True), None, "every value in 16 bits, with the range of 32"),
    "fp16": (lambda _: Half(brain=False), None, "every value in 16 bits, finer and of less range"),
    "int8": (lambda _: Blocks(8), None, "8 bits a value, a scale for each 256"),
    "int4": (lambda _: Blocks(4), None, "4 bits a value, a scale for each 256"),
    "bits2": (lambda _: Codebook(2), None, "2 bits a value, a codebook for each 4096"),
    "bits1": (lambda _: Codebook(1), None, "1 bit a value, a codebook for each 4096"),
    "topk": (TopK, 0.01, "the largest, this share of all"),
    "chunk": (lambda keep: ChunkTopK(int(keep)), 64, "the largest so many of each 4096"),
    "chunk2": (lambda keep: ChunkTopK(int(keep), bits=2), 64, "the same, 2 bits a value"),
    "randk": (RandomK, 0.01, "this share, drawn anew each time, no places sent"),
    "dct": (lambda keep: Cosine(int(keep)), 32, "the largest so many cosine coefficients of each 64 × 64"),
    "lowrank": (lambda rank: LowRank(int(rank)), 2, "two factors of this rank of the vector as a matrix"),
}
"""How each is made of its number, that number unless given, and what it keeps."""


def parse_codec(text: str, where: str = "codec") -> Codec:
    """The codec that a user wrote.

    >>> parse_codec("topk/0.05")
    TopK(ratio=0.05)
    """
    name, slash, number = text.partition("/")
    if name not in CODECS:
        raise StrategyError(f"{where}: there is no codec {name!r}; {nearest(name, CODECS)}")
    make, default, _ = CODECS[name]
    if default is None:
        if slash:
            raise StrategyError(f"{where}: codec {name!r} takes no number, not {text!r}")
        return make(0)
    try:
        value = float(number) if slash else default
    except ValueError:
        value = -1.0
    is_share = default < 1
    if is_share and not 0 < value <= 1:
        raise StrategyError(f"{where}: codec {text!r}: expected a share above 0 and up to 1 after the slash")
    if not is_share and not (1 <= value <= 4096 and value == int(value)):
        raise StrategyError(f"{where}: codec {text!r}: expected a whole number from 1 to 4096 after the slash")
    return make(value)


def write_codec(codec: Codec | None) -> str:
    """A codec as a user writes it.

    >>> write_codec(parse_codec("topk"))
    'topk/0.01'
    """
    if codec is None:
        return ""
    number = next((getattr(codec, field.name) for field in dataclasses.fields(codec)), 0)
    for name, (make, default, _) in CODECS.items():
        if make(number if default is not None else 0) == codec:
            return name if default is None else f"{name}/{number:g}"
    raise StrategyError(f"{codec} is none of the codecs that can be written: {', '.join(CODECS)}")

"""Codecs by name: `int8`, `topk/0.01`, `chunk/64`, `chunk2/64`, `lowrank/4`."""

import dataclasses

from atoll.codecs.base import CODECS, Codec
from atoll.errors import StrategyError, nearest
from atoll.plugins import load_plugins

__all__ = ["parse_codec", "write_codec"]


def parse_codec(text: str, where: str = "codec") -> Codec:
    """The codec that a user wrote.

    >>> parse_codec("topk/0.05")
    TopK(ratio=0.05)
    """
    name, slash, number = text.partition("/")
    if name not in CODECS:
        load_plugins()
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

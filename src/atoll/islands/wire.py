"""Encoding of tensors between the stages of an island."""

import math

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from atoll.codecs import Codec

__all__ = ["pack_tensors", "read_tensors", "unpack_tensors"]


def pack_tensors(values: Tensor, wire: Codec, key: int) -> dict[str, Tensor]:
    """Packs a tensor: a codec encodes floating-point values, others are sent as they are."""
    values = values.detach()
    if not values.is_floating_point():
        return {"whole": values.cpu().contiguous()}
    encoded = wire.encode(values.float().flatten(), key)
    kind = torch.empty(0, dtype=values.dtype)
    return {"coded": encoded.cpu(), "shape": torch.tensor(values.shape, dtype=torch.int64), "kind": kind}


def unpack_tensors(tensors: dict[str, Tensor], wire: Codec, key: int) -> Tensor:
    """Unpacks the output of `pack_tensors`; raises `ValueError` if it is malformed."""
    if "whole" in tensors:
        return tensors["whole"]
    shape = [int(size) for size in tensors["shape"]]
    count = math.prod(shape)
    coded = tensors["coded"]
    if min(shape, default=1) < 1 or coded.dtype != torch.uint8 or len(coded) != wire.size(count):
        raise ValueError(f"{len(coded)} bytes for {shape}")
    try:
        return wire.decode(coded, count, key).view(shape).to(tensors["kind"].dtype)
    except (RuntimeError, IndexError) as error:
        raise ValueError(str(error)) from None


def read_tensors(body: bytes | memoryview) -> dict[str, Tensor]:
    """Reads the tensors of a message (safetensors: no code in it); raises `ValueError` if it is malformed."""
    try:
        return safetensors.torch.load(bytes(body))
    except safetensors.SafetensorError as error:
        raise ValueError(str(error)) from None

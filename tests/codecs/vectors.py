"""What tests of codecs share."""

import torch

from atoll.codecs import Codec

ALL = [
    "dense",
    "bf16",
    "fp16",
    "int8",
    "int4",
    "bits2",
    "bits1",
    "topk/0.1",
    "topk",
    "chunk/8",
    "chunk2/8",
    "randk/0.1",
]
ALL += ["dct/16", "lowrank/2"]
COUNTS = [0, 1, 2, 7, 255, 256, 257, 4095, 4096, 4097, 9000]


def vector(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed))


def roundtrip(codec: Codec, values: torch.Tensor, key: int = 0) -> torch.Tensor:
    return codec.decode(codec.encode(values, key), len(values), key)

"""Triton, where there is one, and what all kernels share."""

import torch
from torch import Tensor

__all__ = ["TILE", "aligned", "available", "tl", "triton"]

try:
    import triton
    import triton.language as tl
except ImportError:  # torch for CPUs comes without it
    triton = tl = None

TILE = 4096
"""Values that one program decodes."""


def available(values: Tensor) -> bool:
    """Whether there are kernels for the device of these values."""
    return values.is_cuda and triton is not None


def aligned(encoded: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """The first bytes as numbers; they may be anywhere in memory."""
    first = encoded[:size]
    return (first if first.data_ptr() % dtype.itemsize == 0 else first.clone()).view(dtype)

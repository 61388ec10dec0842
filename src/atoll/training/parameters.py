"""A model's parameters as ranges of one vector.

An index maps the tensors of a model onto ranges of one logical vector and copies them to and from it.  Parameters stay
in place: nothing is re-allocated, so tied weights, `.to()` and checkpoints need no special case.  Tied tensors are one
range; frozen parameters are left out.  For a tensor that is sharded over several processes (FSDP2), the vector has the
local part.

Floating-point buffers (batch-norm statistics) are a vector of their own: they are averaged, and no optimiser, codec or
correction may touch them.
"""

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from atoll.vectors import WHOLE, Vector, empty, zeros

__all__ = ["Parameters", "Range", "local"]


@dataclass(frozen=True, slots=True)
class Range:
    """The range of a tensor in the vector."""

    name: str
    start: int
    stop: int


class Parameters:
    """The index of one model."""

    def __init__(self, model: nn.Module) -> None:
        trained = {name: value for name, value in model.named_parameters() if value.requires_grad}
        buffers = {name: value for name, value in model.named_buffers() if value.is_floating_point()}
        self._trained = list(trained.values())
        self._tensors = [local(tensor.detach()) for tensor in self._trained]
        self._buffers = [local(tensor.detach()) for tensor in buffers.values()]
        self._variances = [tensor for name, tensor in buffers.items() if name.endswith("running_var")]
        ends = np.cumsum([0, *(tensor.numel() for tensor in self._tensors)]).tolist()
        self.ranges = tuple(Range(name, *span) for name, span in zip(trained, itertools.pairwise(ends), strict=True))
        self.size: int = ends[-1]
        self.buffer_size = sum(tensor.numel() for tensor in self._buffers)
        self.device = self._tensors[0].device
        self._ends: list[int] = ends[1:]

    def _views(self, values: Tensor) -> list[Tensor]:
        return _views(values, self._tensors)

    def read(self, span: slice = WHOLE) -> Vector:
        """A copy of all values, or of a span of them."""
        with self._parts(span) as parts:
            return _read(parts, sum(part.numel() for part in parts), self.device)

    def write(self, values: Vector, span: slice = WHOLE) -> None:
        with self._parts(span) as parts:
            _write(parts, values)

    def add(self, change: Vector, span: slice = WHOLE) -> None:
        with torch.no_grad(), self._parts(span) as parts:
            torch._foreach_add_(parts, _views(change, parts))

    @contextmanager
    def _parts(self, span: slice) -> Iterator[list[Tensor]]:
        """The tensors in a span of the vector, and the parts of tensors at its ends."""
        start, stop, _ = span.indices(self.size)
        if (start, stop) == (0, self.size):
            yield self._tensors
            return
        first = bisect_right(self._ends, start)
        parts, copies = [], []
        for place in range(first, bisect_left(self._ends, stop) + 1):
            tensor, range_ = self._tensors[place], self.ranges[place]
            if start <= range_.start and range_.stop <= stop:
                parts.append(tensor)
                continue
            flat = tensor.reshape(-1)
            if flat.data_ptr() != tensor.data_ptr():  # it lies in another order in memory: `channels_last`
                copies.append((tensor, flat))
            parts.append(flat[max(start, range_.start) - range_.start : min(stop, range_.stop) - range_.start])
        yield parts
        for tensor, flat in copies:
            tensor.copy_(flat.view(tensor.shape))

    def read_buffers(self) -> Vector:
        """A copy of all buffers."""
        return _read(self._buffers, self.buffer_size, self.device)

    def write_buffers(self, values: Vector) -> None:
        _write(self._buffers, values)
        for variance in self._variances:  # received values may be negative
            variance.clamp_(min=0)

    def read_gradient(self) -> Vector:
        """A copy of all gradients; 0 for parameters without one."""
        values = zeros(self.size, self.device)
        for view, tensor in zip(self._views(values), self._trained, strict=False):
            if tensor.grad is not None:
                view.copy_(local(tensor.grad))
        return values

    def write_gradient(self, values: Vector) -> None:
        for view, tensor in zip(self._views(values), self._trained, strict=False):
            if tensor.grad is not None and hasattr(tensor.grad, "to_local"):
                local(tensor.grad).copy_(view)
            else:
                tensor.grad = _like(view, tensor)

    def add_gradient(self, change: Vector) -> None:
        self.write_gradient(self.read_gradient() + change)


def _views(values: Tensor, tensors: list[Tensor]) -> list[Tensor]:
    """Splits a vector into views with the shapes of tensors."""
    parts = torch.split(values, [tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]


def _read(tensors: list[Tensor], size: int, device: torch.device) -> Vector:
    values = empty(size, device)
    if tensors:
        with torch.no_grad():
            torch._foreach_copy_(_views(values, tensors), tensors)
    return values


def _write(tensors: list[Tensor], values: Vector) -> None:
    if tensors:
        with torch.no_grad():
            torch._foreach_copy_(tensors, _views(values, tensors))


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that this process has: all of it, unless it is sharded."""
    part: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part


def _like(view: Tensor, tensor: Tensor) -> Tensor:
    return view.detach().clone().to(dtype=tensor.dtype, device=tensor.device)

"""A model's parameters as ranges of one vector.

An index maps the tensors of a model onto ranges of one logical vector and copies them to and from it.  Parameters stay
in place: nothing is re-allocated, so tied weights, `.to()` and checkpoints need no special case.  Tied tensors are one
range; frozen parameters are left out.  For a tensor that is sharded over several processes (FSDP2), the vector has the
local part.

Floating-point buffers (batch-norm statistics) are a vector of their own: they are averaged, and no optimiser, codec or
correction may touch them.
"""

import itertools
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from atoll.vectors import WHOLE, Vector, empty, zeros

__all__ = ["Parameters", "Range", "Tensors", "local"]


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
        self._known: dict[tuple[int, int], _Parts] = {}

    def read(self, span: slice = WHOLE) -> Vector:
        """A copy of all values, or of a span of them."""
        return self.read_each([span])[0]

    def read_each(self, spans: Sequence[slice]) -> list[Vector]:
        """A copy of each of several spans, by one operation: a GPU is told only once.  They share memory."""
        found = [self._parts(span) for span in spans]
        sources = [part for each in found for part in each.parts]
        sizes = [each.size for each in found]
        copy = empty(sum(sizes), self.device)
        if all(source.dtype == copy.dtype for source in sources):
            with torch.no_grad():
                torch.cat(sources, out=copy) if sources else None
        else:
            _copy(list(torch.split(copy, [len(source) for source in sources])), sources)
        return list(torch.split(copy, sizes))

    def write(self, values: Vector, span: slice = WHOLE) -> None:
        found = self._parts(span)
        _copy(found.parts, found.split(values))
        found.put_back()

    def add_each(self, changes: Sequence[tuple[slice, Vector]]) -> None:
        """Adds to several spans: by one operation, but where a tensor must be copied."""
        targets: list[Tensor] = []
        sources: list[Tensor] = []
        for span, change in changes:
            found = self._parts(span)
            if found.copies:
                _add(found.parts, found.split(change))
                found.put_back()
            else:
                targets += found.parts
                sources += found.split(change)
        _add(targets, sources)

    def _parts(self, span: slice) -> "_Parts":
        """The tensors in a span of the vector, and the parts of tensors at its ends."""
        start, stop, _ = span.indices(self.size)
        if (start, stop) not in self._known:
            found = _Parts(*self._cut(start, stop))
            if found.copies:  # of the values as they are now
                return found
            self._known[start, stop] = found
        return self._known[start, stop]

    def _cut(self, start: int, stop: int) -> tuple[list[Tensor], list[tuple[Tensor, Tensor]]]:
        parts, copies = [], []
        for place in range(bisect_right(self._ends, start), len(self.ranges)):
            tensor, range_ = self._tensors[place], self.ranges[place]
            if range_.start >= stop:
                break
            flat = tensor.reshape(-1)
            if flat.data_ptr() != tensor.data_ptr():  # it lies in another order in memory: `channels_last`
                copies.append((tensor, flat))
            parts.append(flat[max(start, range_.start) - range_.start : min(stop, range_.stop) - range_.start])
        return parts, copies

    def read_buffers(self) -> Vector:
        """A copy of all buffers."""
        return _read(self._buffers, self.buffer_size, self.device)

    def write_buffers(self, values: Vector) -> None:
        _copy(self._buffers, _views(values, self._buffers))
        for variance in self._variances:  # received values may be negative
            variance.clamp_(min=0)

    def read_gradient(self) -> Vector:
        """A copy of all gradients; 0 for parameters without one."""
        values = zeros(self.size, self.device)
        for view, tensor in zip(_views(values, self._tensors), self._trained, strict=False):
            if tensor.grad is not None:
                view.copy_(local(tensor.grad))
        return values

    def write_gradient(self, values: Vector) -> None:
        for view, tensor in zip(_views(values, self._tensors), self._trained, strict=False):
            if tensor.grad is not None and hasattr(tensor.grad, "to_local"):
                local(tensor.grad).copy_(view)
            else:
                tensor.grad = _like(view, tensor)

    def add_gradient(self, change: Vector) -> None:
        self.write_gradient(self.read_gradient() + change)


class Tensors:
    """The tensors that a model has.  They may be others at any time: FSDP2 puts whole tensors in the place of shards,
    and `.to()` makes new ones.
    """

    def __init__(self, model: nn.Module) -> None:
        owners = [
            [vars(module)[kind] for kind in ("_parameters", "_buffers", "_modules")] for module in model.modules()
        ]
        self._owners = [owner for three in owners for owner in three]
        self._count = sum(map(len, self._owners))
        self._here = [
            (owner, name, tensor, _address(tensor))
            for parameters, buffers, _ in owners
            for owner in (parameters, buffers)
            for name, tensor in owner.items()
        ]

    @property
    def are_there(self) -> bool:
        """Whether the model still has these, and no more.  It takes a few microseconds, at every step boundary."""
        return sum(map(len, self._owners)) == self._count and all(
            owner.get(name) is tensor and _address(tensor) == address for owner, name, tensor, address in self._here
        )


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None or hasattr(tensor, "to_local") else tensor.data_ptr()


class _Parts:
    """The tensors in a span, each as a vector.

    Args:
        parts: the vectors.
        copies: tensors that lie in another order in memory, and copies of them, of which `parts` has views.
    """

    def __init__(self, parts: list[Tensor], copies: list[tuple[Tensor, Tensor]]) -> None:
        self.parts = parts
        self.copies = copies
        self._sizes = [part.numel() for part in parts]
        self.size = sum(self._sizes)

    def split(self, values: Vector) -> list[Tensor]:
        """A vector as pieces of the sizes of the parts."""
        return list(torch.split(values, self._sizes)) if self._sizes else []

    def put_back(self) -> None:
        """Changes of copies get into the tensors."""
        with torch.no_grad():
            for tensor, flat in self.copies:
                tensor.copy_(flat.view(tensor.shape))


def _views(values: Tensor, tensors: list[Tensor]) -> list[Tensor]:
    """Splits a vector into views with the shapes of tensors."""
    parts = torch.split(values, [tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]


def _read(tensors: list[Tensor], size: int, device: torch.device) -> Vector:
    values = empty(size, device)
    _copy(_views(values, tensors), tensors)
    return values


def _copy(targets: list[Tensor], sources: list[Tensor]) -> None:
    if targets:
        with torch.no_grad():
            torch._foreach_copy_(targets, sources)


def _add(targets: list[Tensor], sources: list[Tensor]) -> None:
    if targets:
        with torch.no_grad():
            torch._foreach_add_(targets, sources)


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that this process has: all of it, unless it is sharded."""
    part: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part


def _like(view: Tensor, tensor: Tensor) -> Tensor:
    return view.detach().clone().to(dtype=tensor.dtype, device=tensor.device)

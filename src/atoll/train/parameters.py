"""A model's parameters as ranges of one vector.

An index maps the tensors of a model onto ranges of one logical vector and moves them to and from a contiguous staging
buffer.  Parameters stay where they are: nothing is re-allocated, so tied weights, `.to()` and checkpoints need no
special case.  Tied tensors are one range; frozen parameters are left out; floating-point buffers (batch-norm
statistics) travel with the parameters, not with gradients.
"""

import itertools
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from atoll.exchange import Vector

__all__ = ["Parameters", "Range"]


@dataclass(frozen=True, slots=True)
class Range:
    """Where a tensor lies in the vector."""

    name: str
    start: int
    stop: int


class Parameters:
    """The index of one model."""

    def __init__(self, model: nn.Module) -> None:
        trained = {name: value for name, value in model.named_parameters() if value.requires_grad}
        buffers = {name: value for name, value in model.named_buffers() if value.is_floating_point()}
        self._trained = list(trained.values())
        self._tensors = [*self._trained, *buffers.values()]
        ends = np.cumsum([0, *(tensor.numel() for tensor in self._tensors)]).tolist()
        names = [*trained, *buffers]
        self.ranges = tuple(Range(name, *span) for name, span in zip(names, itertools.pairwise(ends), strict=True))
        self.size: int = ends[-1]
        self._staging = torch.zeros(self.size, device=self._tensors[0].device)
        self._views = [
            self._staging[each.start : each.stop].view(tensor.shape)
            for each, tensor in zip(self.ranges, self._tensors, strict=True)
        ]

    def read(self) -> Vector:
        """A copy of all values."""
        with torch.no_grad():
            torch._foreach_copy_(self._views, [tensor.detach() for tensor in self._tensors])
        return self._copy()

    def write(self, values: Vector) -> None:
        self._staging.copy_(_tensor(values))
        with torch.no_grad():
            torch._foreach_copy_([tensor.detach() for tensor in self._tensors], self._views)

    def add(self, change: Vector) -> None:
        self.write(self.read() + change)

    def read_gradient(self) -> Vector:
        """A copy of all gradients; 0 where there is none."""
        self._staging.zero_()
        for view, tensor in zip(self._views, self._trained, strict=False):
            if tensor.grad is not None:
                view.copy_(tensor.grad)
        return self._copy()

    def write_gradient(self, values: Vector) -> None:
        self._staging.copy_(_tensor(values))
        for view, tensor in zip(self._views, self._trained, strict=False):
            tensor.grad = _like(view, tensor)

    def add_gradient(self, change: Vector) -> None:
        self.write_gradient(self.read_gradient() + change)

    def _copy(self) -> Vector:
        return self._staging.to("cpu", copy=True).numpy()


def _tensor(values: Vector) -> Tensor:
    return torch.from_numpy(values if values.flags.writeable else values.copy())  # torch cannot see read-only ones


def _like(view: Tensor, tensor: Tensor) -> Tensor:
    return view.detach().clone().to(dtype=tensor.dtype, device=tensor.device)

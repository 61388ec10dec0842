"""A small task whose model is a chain of blocks: what islands are measured on where the model does not matter."""

import functools
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim import SGD

from atoll.training import Examples, Task

__all__ = ["blocks", "small_task"]


class Block(nn.Module):
    """A layer of a chain whose layers are unlike."""

    def __init__(self, wide: int, inner: int) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(wide, inner), nn.Linear(inner, wide)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.other(torch.tanh(self.one(x)))
        return out


def small_task(inner: Sequence[int], *, wide: int = 16, batch: int = 32, lr: float = 0.02) -> Task:
    """Something small to learn, with a chain of blocks."""
    draw = torch.Generator().manual_seed(1)
    inputs = torch.randn(4400, wide, generator=draw)
    targets = (
        torch.tanh(inputs @ torch.randn(wide, wide, generator=draw)) @ torch.randn(wide, 6, generator=draw)
    ).argmax(1)
    return Task(
        name="blocks",
        model=lambda: nn.Sequential(*(Block(wide, each) for each in inner), nn.Linear(wide, 6)),
        optimizer=functools.partial(SGD, lr=lr, momentum=0.9),
        target=0.7,
        batch=batch,
        train=Examples(inputs[:4000], targets[:4000]),
        test=Examples(inputs[4000:], targets[4000:]),
        labels=targets[:4000],
    )


def blocks() -> Task:
    """Eight equal blocks, as a task that processes can load by name."""
    return small_task([64] * 8)

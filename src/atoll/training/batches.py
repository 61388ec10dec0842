"""The order in which a node uses its examples: its shard, in a new order every epoch.

It keeps its position, so that training can resume there; and counts how much of the shard each epoch has used.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from atoll.state import Saved, note, read_note
from atoll.training.shards import Indices

__all__ = ["Batches", "Epoch"]


class Epoch(NamedTuple):
    """One time through a shard."""

    number: int
    examples: int
    """How many different examples it used."""
    of: int


class Batches:
    """The batches of one node, without end.

    Args:
        shard: the node's examples.
        size: the size of a batch; a smaller piece is a batch of its own.
        seed: the seed of the order.
        pieces: into how many pieces, one after the other, the shard is divided.
        on_epoch: called after every epoch.
    """

    def __init__(
        self,
        shard: Indices,
        size: int,
        seed: int,
        *,
        pieces: int = 1,
        on_epoch: Callable[[Epoch], None] = lambda _: None,
    ) -> None:
        self._pieces = np.array_split(shard, pieces)
        self._size = size
        self._count = len(shard)
        self._on_epoch = on_epoch
        self._draw = np.random.default_rng(seed)
        self._epoch = 0
        self._used = 0
        self._piece = 0
        self._place = 0
        self._order = self._draw.permutation(self._pieces[0])

    def take(self, factor: float = 1.0) -> torch.Tensor:
        """The next batch times a factor: a part of it, or more than one batch."""
        if factor <= 1:
            batch = self._next()
            return torch.from_numpy(batch[: max(1, round(factor * len(batch)))])
        whole, rest = divmod(factor, 1.0)
        batches = [self._next() for _ in range(int(whole))]
        last = self._next() if rest * self._size >= 1 else batches[-1][:0]
        return torch.from_numpy(np.concatenate([*batches, last[: round(rest * len(last))]]))

    def _next(self) -> Indices:
        if self._place > 0 and self._place + self._size > len(self._order):
            self._turn_over()
        batch = self._order[self._place : self._place + self._size]
        self._place += self._size
        self._used += len(batch)
        return batch

    def _turn_over(self) -> None:
        """Goes to the next piece, or epoch."""
        self._piece, self._place = self._piece + 1, 0
        if self._piece == len(self._pieces):
            self._on_epoch(Epoch(self._epoch, self._used, self._count))
            self._epoch, self._used, self._piece = self._epoch + 1, 0, 0
        self._order = self._draw.permutation(self._pieces[self._piece])

    def skip(self, examples: int) -> None:
        """Skips this many examples, or a few more."""
        while examples > 0:
            examples -= len(self._next())

    def save(self) -> Saved:
        place = {
            "draw": self._draw.bit_generator.state,
            "epoch": self._epoch,
            "used": self._used,
            "piece": self._piece,
            "place": self._place,
        }
        return {"order": self._order.copy(), "place": note(place)}

    def load(self, saved: Saved) -> None:
        place = read_note(saved["place"])
        self._order = saved["order"]
        self._draw.bit_generator.state = place["draw"]
        self._epoch, self._used = place["epoch"], place["used"]
        self._piece, self._place = place["piece"], place["place"]

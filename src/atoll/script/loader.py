"""A script's data, divided among the nodes that are present now.

All nodes iterate over the same order, which changes every epoch; each takes the indices whose remainder, divided by the
number of present nodes, is its rank.  When a node leaves or joins, the division changes as soon as the others notice,
without a message.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
)

from atoll.errors import TaskError
from atoll.seeds import derive

__all__ = ["Present", "Shard"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Present:
    """A node's rank among the present nodes, and their number."""

    rank: int
    count: int

    def has(self, place: int) -> bool:
        """Whether the item at an index belongs to this node."""
        return place % self.count == self.rank


class Shard:
    """One node's part of some data; every iteration over it is another epoch.

    Args:
        data: a loader, a dataset, or any iterable.
        who: returns the rank and the number of present nodes.
        factor: returns the factor of the batch size.
        seed: the seed of the order.
        taken: called with the number of examples of each batch.
        even: whether all must get the same number of batches, as the processes of one node must; the last few examples
            of an epoch are then left out.
    """

    def __init__(
        self,
        data: Any,
        who: Callable[[], Present],
        *,
        factor: Callable[[], float] = lambda: 1.0,
        seed: int = 0,
        taken: Callable[[int], None] = lambda _: None,
        even: bool = False,
    ) -> None:
        self._data = data
        self._even = even
        self._who = who
        self._taken = taken
        self._places: _Places | None = None
        self._loader: DataLoader[Any] | None = None
        if isinstance(data, DataLoader) and not isinstance(data.dataset, IterableDataset):
            if data.batch_sampler is None:
                raise TaskError("run.shard: a DataLoader without batches: give it a batch_size, or pass its dataset")
            if type(data.sampler) in (RandomSampler, SequentialSampler) and data.batch_size is not None:
                self._places = _Places(data, who, factor, seed, even=even)
            self._loader = _with_batches(data, self._places or _EveryNth(data.batch_sampler, who, even=even))

    def __iter__(self) -> Iterator[Any]:
        for batch, examples in self._of_loader(self._loader) if self._loader is not None else self._every_nth():
            self._taken(examples)
            yield batch

    def _of_loader(self, loader: DataLoader[Any]) -> Iterator[tuple[Any, int]]:
        for batch in loader:
            yield batch, self._places.was_taken() if self._places else 1
        if self._places:
            self._places.turn_over()

    def _every_nth(self) -> Iterator[tuple[Any, int]]:
        data = self._data
        if isinstance(data, Dataset) and not isinstance(data, IterableDataset):  # it has indices
            for place in _turns(range(_size(data)), self._who, even=self._even):
                yield data[place], 1
            return
        for each in _turns(data, self._who, even=self._even):
            yield each, 1

    def __len__(self) -> int:
        return math.ceil(len(self._data) / self._who().count)

    def save(self) -> list[int]:
        """Its position: the epoch and the index."""
        return self._places.save() if self._places else []

    def load(self, saved: list[int]) -> None:
        if self._places and saved:
            self._places.load(*saved)


def _size(dataset: Any) -> int:
    try:
        return len(dataset)
    except TypeError:
        raise TaskError(f"run.shard: a {type(dataset).__name__} has no length: give it a __len__") from None


class _Places(Sampler[list[int]]):
    """Batches of the indices that belong to this node."""

    def __init__(
        self, loader: DataLoader[Any], who: Callable[[], Present], factor: Callable[[], float], seed: int, *, even: bool
    ) -> None:
        assert loader.batch_size is not None
        self._count = _size(loader.dataset)
        self._size = loader.batch_size
        self._drops = loader.drop_last
        self._even = even
        self._shuffles = isinstance(loader.sampler, RandomSampler)
        self._who, self._factor, self._seed = who, factor, seed
        self._epoch = 0
        self._place = 0
        """The position of the consumer; the sampler may be ahead of it."""
        self._ahead: deque[tuple[int, int]] = deque()

    def __iter__(self) -> Iterator[list[int]]:
        order = np.arange(self._count)
        if self._shuffles:
            order = np.random.default_rng(derive(self._seed, "order", str(self._epoch))).permutation(self._count)
        self._ahead.clear()
        place = self._place
        while place < self._count:
            present = self._who()
            rank, count = present.rank, present.count
            size = max(1, round(self._size * self._factor()))
            end = min(self._count, place + size * count)
            mine = order[place + (rank - place) % count : end : count].tolist()
            full = place + size * count <= self._count
            everybody = not self._even or end - place >= count
            place = end
            if mine and everybody and (full or not self._drops):
                self._ahead.append((place, len(mine)))
                yield mine

    def was_taken(self) -> int:
        """Called when the consumer has the next batch; returns its number of examples."""
        self._place, examples = self._ahead.popleft()
        return examples

    def turn_over(self) -> None:
        self._epoch, self._place = self._epoch + 1, 0

    def save(self) -> list[int]:
        return [self._epoch, self._place]

    def load(self, epoch: int, place: int) -> None:
        self._epoch, self._place = epoch, place


class _EveryNth(Sampler[list[int]]):
    """Takes every nth batch of a user's own sampler."""

    def __init__(self, batches: Iterable[list[int]], who: Callable[[], Present], *, even: bool) -> None:
        self._batches = batches
        self._who = who
        self._even = even

    def __iter__(self) -> Iterator[list[int]]:
        return _turns(self._batches, self._who, even=self._even)


def _turns(items: Iterable[T], who: Callable[[], Present], *, even: bool) -> Iterator[T]:
    """The items that belong to this node; with `even`, only from full turns of all nodes."""
    mine: T | None = None
    for place, item in enumerate(items):
        present = who()
        if present.has(place):
            mine = item
            if not even:
                yield item
        if even and place % present.count == present.count - 1 and mine is not None:
            yield mine
            mine = None


def _with_batches(loader: DataLoader[Any], batches: Sampler[list[int]]) -> DataLoader[Any]:
    """The same loader, with other batches."""
    return DataLoader(
        loader.dataset,
        batch_sampler=batches,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
    )

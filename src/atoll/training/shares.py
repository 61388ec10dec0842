"""Parts: the examples, model and optimiser of each node of a run, the same in every world."""

import base64
import hashlib
import zlib

import numpy as np
from numpy.typing import NDArray
from torch import nn

from atoll.errors import TaskError
from atoll.trace import DataUsed, ExamplesUsed, TrainingStarted
from atoll.training.batches import Batches
from atoll.training.damage import Damage
from atoll.training.replica import TrainedReplica
from atoll.training.shards import parse_shards
from atoll.training.task import Task
from atoll.vectors import Vector, bytes_of
from atoll.world.base import World
from atoll.world.faults import Fault

__all__ = ["Parts", "Tester", "data_used", "examples_used", "read_used"]


class Parts:
    """The parts of all nodes of a run.

    Args:
        task: the task.
        members: all nodes.
        shards: how the examples are divided.
        seed: the seed of the run.
        role: `ideal` runs use the task's ideal optimiser.
        faults: faults of computation.
    """

    def __init__(
        self,
        task: Task,
        members: tuple[str, ...],
        *,
        shards: str,
        seed: int,
        role: str = "strategy",
        faults: tuple[Fault, ...] = (),
    ) -> None:
        self._task = task
        self._members = members
        self._shards_name = shards
        self._seed = seed
        self._role = role
        self._faults = faults
        labels = task.labels
        assert labels is not None
        if labels.ndim != 1:
            raise TaskError(f"task {task.name!r}: expected a label for each example to deal them by")
        dealer = parse_shards(shards)
        self._shards = dealer.deal(labels.numpy(), len(members), seed)
        self._pieces = dealer.pieces(len(members))
        self._optimizer = task.ideal_optimizer if role == "ideal" and task.ideal_optimizer else task.optimizer
        self._tester = Tester(task)
        self.used = np.zeros(len(labels), dtype=np.int64)
        """How often each example was used."""

    def replica(self, world: World) -> TrainedReplica:
        """A node's model, with its data."""
        return TrainedReplica(
            world,
            self._members,
            self._task,
            self._shards[self._members.index(world.name)],
            seed=self._seed,
            optimizer=self._optimizer,
            tester=self._tester,
            pieces=self._pieces,
            damage=Damage(world.name, self._faults, self._seed),
            used=self.used,
        )

    def batches(self, place: int, seed: int) -> Batches:
        """The batches of one member, or of an island."""
        return Batches(self._shards[place], self._task.batch, seed, pieces=self._pieces)

    @property
    def count(self) -> int:
        """How many parts the examples are divided into."""
        return len(self._shards)

    @property
    def tester(self) -> "Tester":
        return self._tester

    def started(self, strategy: str, parameters: int, at: float = 0.0) -> TrainingStarted:
        """The first event of the trace."""
        return TrainingStarted(
            at=at,
            task=self._task.name,
            strategy=strategy,
            role=self._role,
            shards=self._shards_name,
            target=self._task.target,
            rising=self._task.rising,
            parameters=parameters,
        )


class Tester:
    """Tests models, with a cache: after an exchange many nodes hold the same bytes."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._known: dict[bytes, float] = {}

    def __call__(self, model: nn.Module, values: Vector) -> float:
        digest = hashlib.blake2b(bytes_of(values), digest_size=16).digest()
        if digest not in self._known:
            if len(self._known) >= 64:
                self._known.pop(next(iter(self._known)))
            self._known[digest] = self._task.test_model(model)
        return self._known[digest]


def data_used(used: NDArray[np.int64], at: float) -> DataUsed:
    """How a run has used the examples, from the number of uses of each."""
    return DataUsed(
        at=at,
        examples=len(used),
        used=int(np.count_nonzero(used)),
        least=int(used.min()),
        mean=float(used.mean()),
        most=int(used.max()),
    )


def examples_used(used: NDArray[np.int64], at: float, node: str) -> ExamplesUsed:
    """How often a node has used each example."""
    return ExamplesUsed(at=at, node=node, counts=base64.b64encode(zlib.compress(used.astype("<i8").tobytes())).decode())


def read_used(event: ExamplesUsed) -> NDArray[np.int64]:
    """The counts given to `examples_used`."""
    return np.frombuffer(zlib.decompress(base64.b64decode(event.counts)), dtype="<i8").astype(np.int64)

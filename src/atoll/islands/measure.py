"""Testing a model that several nodes hold: test examples go forward through the stages, beside training.

A test costs no declared time, but its bytes count as sent.  All nodes have the test examples, so only row numbers are
sent with activations.
"""

import struct
from collections.abc import Callable

import safetensors.torch
from torch import Tensor

from atoll.islands.pipeline import StageSeat
from atoll.islands.stage import StageModel
from atoll.islands.wire import read_tensors
from atoll.world.base import Lane, Message, Spawn, World
from atoll.world.hearing import hear

__all__ = ["Prober"]

PIECE = 100
_HEAD = struct.Struct("<QII")
"""The number of the test, its first row, and the end (one past its last row)."""


class Prober:
    """One stage's part in tests.

    Args:
        world: the stage's world.
        seat: its place in the island.
        model: its layers.
        inputs: the test examples; the first stage uses them.
        measure: the sum of the measure over some outputs, given their rows; for the last stage.
        tested: called with the mean, at the last stage.
    """

    def __init__(
        self,
        world: World,
        seat: StageSeat,
        model: StageModel,
        *,
        inputs: Tensor,
        measure: Callable[[Tensor, slice], float],
        tested: Callable[[float], None],
    ) -> None:
        self._world = world
        self._seat = seat
        self._model = model
        self._inputs = inputs
        self._measure = measure
        self._tested = tested
        self._spawn: Spawn | None = None
        self._number = 0
        self._found: dict[int, dict[int, tuple[int, float]]] = {}

    def start(self, spawn: Spawn) -> None:
        self._spawn = spawn
        if self._seat.before:
            spawn(hear(self._world, "probe", self._hear))

    async def begin(self) -> None:
        """Sends all test examples through; for the first stage."""
        self._number += 1
        for start in range(0, len(self._inputs), PIECE):
            rows = slice(start, min(start + PIECE, len(self._inputs)))
            await self._pass(self._number, rows, self._inputs[rows])

    def _hear(self, message: Message) -> None:
        assert self._spawn is not None
        number, start, stop = _HEAD.unpack(message.head)
        if message.sender == self._seat.before and 0 <= start < stop <= len(self._inputs):
            self._spawn(self._pass(number, slice(start, stop), read_tensors(message.body)["x"].to(self._model.device)))

    async def _pass(self, number: int, rows: slice, inputs: Tensor) -> None:
        outputs = await self._world.aside(lambda: self._model.evaluate(inputs))
        if self._seat.after:
            head = _HEAD.pack(number, rows.start, rows.stop)
            body = safetensors.torch.save({"x": outputs.cpu().contiguous()})
            await self._world.peer(self._seat.after).send("probe", head, body, lane=Lane.BULK)
            return
        found = self._found.setdefault(number, {})
        found[rows.start] = rows.stop - rows.start, self._measure(outputs, rows)
        if sum(count for count, _ in found.values()) == len(self._inputs):
            self._tested(sum(total for _, total in found.values()) / len(self._inputs))
            self._found = {each: rest for each, rest in self._found.items() if each > number}

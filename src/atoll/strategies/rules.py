"""Rules that decide whether an exchange is due: from the change of gradients, or from the drift of models."""

import struct
from collections import deque
from typing import Literal

import numpy as np
import torch

from atoll.seeds import derive
from atoll.strategies.replica import Quantity, Replica
from atoll.strategies.talk import Spawn
from atoll.vectors import Numbers, Vector, length, minus
from atoll.world.base import Lane, Message
from atoll.world.hearing import hear

__all__ = ["GradientChange", "ModelDrift", "Sketch"]


class GradientChange:
    """SelSync (Tyagi & Swany, 2023): the relative change of the smoothed gradient norm is at least δ.

    Δ = |E‖g‖² − E‖g before‖²| / E‖g before‖², E a mean over the last `window` steps whose weights fall by 1 − N/100 a
    step.  Without a step before, there is nothing to compare with: an exchange is due.
    """

    def __init__(self, delta: float, window: int) -> None:
        self._delta = delta
        self._norms: deque[float] = deque(maxlen=window)
        self._before: float | None = None

    def start(self, replica: Replica, spawn: Spawn) -> None:
        """It needs no messages."""

    async def __call__(self, replica: Replica, steps_since: int) -> bool:  # noqa: ARG002 - the shape of a rule
        gradient = await replica.touch(lambda: replica.read(Quantity.GRADIENT))
        norm = await replica.world.offload(lambda: torch.dot(gradient, gradient).item(), values=len(gradient))
        if not np.isfinite(norm):
            return True
        self._norms.append(norm)
        fall = 1 - min(0.99, len(replica.members) / 100)
        weights = fall ** np.arange(len(self._norms))[::-1]
        smoothed = float(weights @ np.array(self._norms) / weights.sum())
        before, self._before = self._before, smoothed
        if before is None or before <= 0:
            return True
        return abs(smoothed - before) / before >= self._delta

    def begins(self, now: float) -> None:
        """The time of exchanges has no effect."""

    async def agreed(self) -> None:
        """The result of an exchange has no effect on the comparison of gradients."""


class Sketch:
    """AMS: signed sums of a vector in random buckets; the median of their squared lengths estimates the vector's."""

    ROWS, COLUMNS = 5, 250

    def __init__(self, size: int, seed: int) -> None:
        draw = np.random.default_rng(seed)
        self._bucket = torch.from_numpy(draw.integers(0, self.COLUMNS, (self.ROWS, size), dtype=np.int16))
        self._sign = torch.from_numpy(draw.integers(0, 2, (self.ROWS, size), dtype=np.int8) * 2 - 1)

    def __call__(self, vector: Vector) -> Numbers:
        if self._sign.device != vector.device:
            self._bucket, self._sign = self._bucket.to(vector.device), self._sign.to(vector.device)
        rows = [
            torch.bincount(bucket, weights=(vector * sign).double(), minlength=self.COLUMNS)
            for bucket, sign in zip(self._bucket, self._sign, strict=True)
        ]
        found: Numbers = torch.cat(rows).float().cpu().numpy()
        return found

    @classmethod
    def squared_length(cls, sketch: Numbers) -> float:
        return float(np.median((sketch.reshape(cls.ROWS, cls.COLUMNS) ** 2).sum(1)))


class ModelDrift:
    """FDA (Theologitis et al., 2024): the models' variance, mean‖u‖² − ‖mean u‖² with u the drift since the last
    exchange, is above Θ.

    At every step a node sends the others its part of that estimate: ‖u‖² and ξ·u (`linear`, 8 bytes; ξ is the
    direction of the last agreed change), ‖u‖² and a sketch of u (`sketch`), or ‖u‖² alone (`naive`).  The last message
    of a peer counts until the next one arrives.

    Θ adapts: it starts as the variance after `first` steps, and changes after each exchange so that exchanges take
    `share` of the time.  Drift grows with the steps and variance with their square.  So if exchanges took twice their
    share, Θ should be four times as large, but it at most doubles or halves at a time.
    """

    _HEAD = struct.Struct("<d")

    def __init__(
        self, estimate: Literal["linear", "sketch", "naive"], *, theta: float, share: float, first: int = 4
    ) -> None:
        self._estimate = estimate
        self._theta = theta or None
        self._calibrates = not theta
        self._share = share
        self._first = first
        self._heard: dict[str, tuple[float, Numbers]] = {}
        self._telling: set[str] = set()
        self._agreed: Vector | None = None
        self._direction: Vector | None = None
        self._sketch: Sketch | None = None
        self._spawn: Spawn | None = None
        self._replica: Replica | None = None
        self._called_s = 0.0
        self._agreed_s = 0.0

    def start(self, replica: Replica, spawn: Spawn) -> None:
        self._replica, self._spawn = replica, spawn
        self._agreed = replica.read(Quantity.PARAMETERS)
        if self._estimate == "sketch":
            self._sketch = Sketch(len(self._agreed), derive(0, "sketch"))
        spawn(hear(replica.world, "drift", self._hear))

    async def __call__(self, replica: Replica, steps_since: int) -> bool:
        values = await replica.touch(lambda: replica.read(Quantity.PARAMETERS))
        squared, told = await replica.world.offload(lambda: self._look(values), values=len(values))
        if not np.isfinite(squared):
            return True  # only the others can help this node
        self._tell(replica, squared, told)
        here = replica.group.view.members
        heard = [said for name, said in self._heard.items() if name in here]
        variance = self._variance([(squared, told), *heard])
        if self._theta is None and steps_since >= self._first:
            self._theta = max(variance, 1e-30)
        return self._theta is not None and variance >= self._theta

    def begins(self, now: float) -> None:
        self._called_s = now

    def _look(self, values: Vector) -> tuple[float, Numbers]:
        """The drift's squared norm and its summary."""
        assert self._agreed is not None
        drift = torch.sub(values, self._agreed, out=values)
        squared = torch.dot(drift, drift).item()
        return squared, self._summary(drift)

    def _summary(self, drift: Vector) -> Numbers:
        if self._sketch:
            return self._sketch(drift)
        if self._estimate == "linear":
            along = 0.0 if self._direction is None else torch.dot(drift, self._direction).item()
            return np.array([along], dtype=np.float32)
        return np.zeros(0, dtype=np.float32)

    def _variance(self, told: list[tuple[float, Numbers]]) -> float:
        squares = float(np.mean([squared for squared, _ in told]))
        mean = np.mean([summary for _, summary in told], axis=0)
        if self._sketch:
            return max(0.0, squares - Sketch.squared_length(mean))
        return squares - float(mean[0]) ** 2 if self._estimate == "linear" else squares

    def _tell(self, replica: Replica, squared: float, told: Numbers) -> None:
        assert self._spawn is not None
        for name in replica.members:
            if name != replica.world.name and name not in self._telling:
                self._telling.add(name)
                self._spawn(self._send(replica, name, self._HEAD.pack(squared), told.tobytes()))

    async def _send(self, replica: Replica, name: str, head: bytes, body: bytes) -> None:
        """For an unreachable peer only one message waits, not one for each step."""
        try:
            await replica.world.peer(name).send("drift", head, body, lane=Lane.CONTROL)
        finally:
            self._telling.discard(name)

    async def agreed(self) -> None:
        assert self._replica is not None
        replica = self._replica
        values = await replica.touch(lambda: replica.read(Quantity.PARAMETERS))
        self._direction = await replica.world.offload(lambda: self._direction_to(values), values=len(values))
        self._agreed = values
        self._heard.clear()  # earlier messages are about the drift before the exchange
        now = self._replica.world.now
        if self._theta is not None and self._calibrates and now > self._agreed_s:
            exchanging = (now - self._called_s) / (now - self._agreed_s)
            self._theta *= min(2.0, max(0.5, (exchanging / self._share) ** 2))
        self._agreed_s = now

    def _direction_to(self, values: Vector) -> Vector | None:
        assert self._agreed is not None
        change = minus(values, self._agreed)
        moved = length(change)
        return change.div_(moved) if moved > 0 else None

    def _hear(self, message: Message) -> None:
        (squared,) = self._HEAD.unpack(message.head)
        summary = np.frombuffer(message.body, dtype=np.float32)
        size = {"linear": 1, "sketch": Sketch.ROWS * Sketch.COLUMNS, "naive": 0}[self._estimate]
        if len(summary) != size or not np.isfinite(squared) or not np.isfinite(summary).all():
            raise ValueError(f"{squared} and {len(summary)} values are no drift")
        self._heard[message.sender] = (squared, summary)

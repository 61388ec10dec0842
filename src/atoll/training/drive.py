"""The driver: one node's steps, and the strategy's actions at their boundaries.

This is the only step loop.  A trainer computes gradients and applies updates: a replica of a task's model, a stage of
an island's pipeline, the numbers of a fuzzer.  A script has its own loop; its optimiser's hooks call the same
boundaries.  A strategy's background work continues while the node computes.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeVar

from atoll.strategies import Replica, Talk

__all__ = ["Background", "Boundary", "Computing", "Local", "Trainer", "drive"]

T = TypeVar("T")


class Trainer(Protocol):
    """A model or stage that a node trains."""

    async def gradient(self) -> None:
        """Returns when the gradient of the next step is ready."""

    async def update(self) -> None:
        """The optimiser's step."""


class Computing(Replica, Protocol):
    """A model that computes its own gradients."""

    @property
    def cost(self) -> float:
        """The cost of the next step, in steps."""

    def compute_gradient(self) -> None:
        """Computes the gradient of the next batch."""

    def update(self) -> None:
        """The optimiser's step."""


class Local:
    """Trains a model that this node holds as a whole."""

    def __init__(self, replica: Computing) -> None:
        self._replica = replica

    async def gradient(self) -> None:
        await self._replica.world.compute(self._replica.compute_gradient, steps=self._replica.cost)

    async def update(self) -> None:
        await self._replica.world.aside(self._replica.update)


Boundary = Callable[[bool], Awaitable[None]]
"""Called after every step, before the next; its argument says whether the model was merged with others."""


async def drive(
    trainer: Trainer,
    talk: Talk,
    background: "Background",
    *,
    goes_on: Callable[[], bool],
    boundary: Boundary | None = None,
) -> None:
    """Trains while `goes_on` returns true; then background work ends too.

    Args:
        trainer: computes gradients and applies updates.
        talk: the node's side of a strategy, started in the background.
        background: the node's tasks.
        goes_on: called before every step.
        boundary: called after every step.
    """
    while goes_on():
        await trainer.gradient()
        await talk.after_gradient()
        await trainer.update()
        merged = await talk.after_step()
        if boundary:
            await boundary(merged)
    background.cancel()


class Background:
    """The tasks of a node: they run in its group and end with its training."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self._group = group
        self._started: dict[asyncio.Task[Any], None] = {}

    def __call__(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = self._group.create_task(work, name=f"{_name_of_current_task()} in the background")
        self._started[task] = None
        task.add_done_callback(lambda done: self._started.pop(done, None))
        return task

    def __len__(self) -> int:
        """How many tasks are running."""
        return len(self._started)

    def cancel(self) -> None:
        for task in list(self._started):
            task.cancel()


def _name_of_current_task() -> str:
    task = asyncio.current_task()
    return task.get_name().removesuffix(" in the background") if task else "somebody"

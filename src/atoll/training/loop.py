"""The node program: train, and talk at step boundaries.

It is the same in every world.  A node trains and exchanges at the same time: what a strategy does in the background
goes on while the node computes.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, TypeVar

from atoll.errors import CheckpointError
from atoll.state import Saved, note, part, read_note, under
from atoll.strategies import Strategy
from atoll.trace import Tested
from atoll.training.replica import TrainedReplica
from atoll.training.task import Task

__all__ = ["Background", "train"]

T = TypeVar("T")


async def train(
    replica: TrainedReplica,
    task: Task,
    strategy: Strategy,
    *,
    steps: int | None = None,
    resume: Saved | None = None,
    at_boundary: Callable[[Callable[[], Saved]], Awaitable[None] | None] | None = None,
) -> None:
    """Trains until cancelled, or for so many steps.

    Args:
        replica: the node's model.
        task: what is learned.
        strategy: how nodes talk.
        steps: how many; any number if left out.
        resume: what the node was, to go on from there.
        at_boundary: called after every step, with what gives the node's state at that moment; the next step waits for
            what it returns.

    Raises:
        CheckpointError: what the node was does not fit what it is.
    """
    world = replica.world
    talk = strategy.talk(replica)
    if resume:
        with _fitting():
            replica.load(part("replica", resume))
    async with asyncio.TaskGroup() as group:
        background = Background(group)
        talk.start(background)
        tested_at = 0
        if resume:
            with _fitting():
                talk.load(part("talk", resume))
                tested_at = int(read_note(resume["tested at"]))

        def save() -> Saved:
            return {**under("replica", replica.save()), **under("talk", talk.save()), "tested at": note(tested_at)}

        while steps is None or replica.steps < steps:
            await world.compute(replica.compute_gradient, steps=replica.cost)
            await talk.after_gradient()
            await world.aside(replica.update)
            merged = await talk.after_step()
            if merged or replica.steps - tested_at >= task.test_every:
                tested_at = replica.steps
                measure = await world.aside(replica.test)
                world.record(
                    Tested(
                        at=world.now,
                        node=world.name,
                        steps=replica.steps,
                        measure=measure,
                        sent_bytes=world.sent_bytes,
                    )
                )
            pause = at_boundary(save) if at_boundary else None
            if pause is not None:
                await pause
        background.cancel()


@contextlib.contextmanager
def _fitting() -> Iterator[None]:
    """What the node was is put in place; that it has other parts or sizes is the user's to know."""
    try:
        yield
    except (KeyError, ValueError, TypeError, IndexError, RuntimeError) as error:
        raise CheckpointError(f"the checkpoint does not fit this model and strategy ({error!r})") from error


class Background:
    """The tasks of a talk: they run in the node's group and end with its training."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self._group = group
        self._started: dict[asyncio.Task[Any], None] = {}

    def __call__(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = self._group.create_task(work, name=f"{_name_of_current_task()} in the background")
        self._started[task] = None
        task.add_done_callback(lambda done: self._started.pop(done, None))
        return task

    def cancel(self) -> None:
        for task in list(self._started):
            task.cancel()


def _name_of_current_task() -> str:
    task = asyncio.current_task()
    return task.get_name().removesuffix(" in the background") if task else "somebody"

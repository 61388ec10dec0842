"""The node program of replicas: trains, tests and saves a task's model.

It is the same in every world.
"""

import asyncio
import contextlib
from collections.abc import Iterator

from atoll.errors import CheckpointError
from atoll.state import AtBoundary, Saved, note, read_note, section, under
from atoll.strategies import Strategy
from atoll.trace import Tested
from atoll.training.drive import Background, Local, drive
from atoll.training.replica import TrainedReplica
from atoll.training.task import Task

__all__ = ["train"]


async def train(
    replica: TrainedReplica,
    task: Task,
    strategy: Strategy,
    *,
    steps: int | None = None,
    resume: Saved | None = None,
    at_boundary: AtBoundary | None = None,
) -> None:
    """Trains until cancelled, or for this many steps.

    Args:
        replica: the node's model.
        task: the task.
        strategy: the communication strategy.
        steps: the number of steps; default: no limit.
        resume: a saved state to resume from.
        at_boundary: called after every step, with a function that returns the node's state; the next step awaits the
            result.

    Raises:
        CheckpointError: the saved state does not fit the node.
    """
    talk = strategy.start(replica)
    if resume:
        with _fitting():
            replica.load(section("replica", resume))
    tested_at = 0

    async def save() -> Saved:
        await talk.settle()
        return {**under("replica", replica.save()), **under("talk", talk.save()), "tested at": note(tested_at)}

    async def boundary(merged: bool) -> None:  # noqa: FBT001 - the shape of a boundary
        nonlocal tested_at
        if merged or replica.steps - tested_at >= task.test_every:
            tested_at = replica.steps
            await _test(replica)
        pause = at_boundary(save) if at_boundary else None
        if pause is not None:
            await pause

    async with asyncio.TaskGroup() as group:
        background = Background(group)
        await replica.world.offload(talk.prepare)
        talk.start(background)
        if resume:
            with _fitting():
                talk.load(section("talk", resume))
                tested_at = int(read_note(resume["tested at"]))
        await drive(
            Local(replica), talk, background, goes_on=lambda: steps is None or replica.steps < steps, boundary=boundary
        )


async def _test(replica: TrainedReplica) -> None:
    world = replica.world
    measure = await world.aside(replica.test)
    world.record(
        Tested(at=world.now, node=world.name, steps=replica.steps, measure=measure, sent_bytes=world.sent_bytes)
    )


@contextlib.contextmanager
def _fitting() -> Iterator[None]:
    """Reports a state with other parts or sizes as an error of the user."""
    try:
        yield
    except (KeyError, ValueError, TypeError, IndexError, RuntimeError) as error:
        raise CheckpointError(f"the checkpoint does not fit this model and strategy ({error!r})") from error

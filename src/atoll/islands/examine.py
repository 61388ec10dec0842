"""When an island's model is tested, and by which node.

If one process sees the whole model (in simulation), the last stage tests it; otherwise test examples go through the
stages.
"""

import asyncio

from atoll.islands.assembly import Assembly
from atoll.islands.curriculum import Exam
from atoll.islands.measure import Prober
from atoll.islands.pipeline import StageSeat
from atoll.islands.stage import StageModel
from atoll.trace import Tested, finite_measure
from atoll.training.drive import Background
from atoll.world.base import World
from atoll.world.scope import Scoped

__all__ = ["Examination"]


class Examination:
    """One node's part in the tests of its island.

    Args:
        world: the node's world.
        seat: its place in the island.
        stage: its layers.
        exam: the test.
        scope: the scope of the island.
        assembly: the island's model as a whole, in simulation.
    """

    def __init__(
        self, world: World, seat: StageSeat, stage: StageModel, exam: Exam, *, scope: str, assembly: Assembly | None
    ) -> None:
        self._world = world
        self._seat = seat
        self._stage = stage
        self._exam = exam
        self._assembly = assembly
        self.tested_at = 0
        """The update after which it was tested last."""
        self._probing: asyncio.Task[None] | None = None
        self._work: Background | None = None
        island = Scoped(world, scope)
        self._prober = Prober(island, seat, stage, inputs=exam.inputs, measure=exam.measured, tested=self._record)

    def start(self, work: Background) -> None:
        self._work = work
        self._prober.start(work)

    def updated(self, *, merged: bool) -> None:
        """Called after an update; tests the model if a test is due, or if it was merged with others."""
        assembly, is_time = self._assembly, self._stage.updates - self.tested_at >= self._exam.every
        if not merged and not is_time:
            return
        if assembly is not None:
            if assembly.nodes[-1] == self._world.name and assembly.is_whole:
                self.tested_at = self._stage.updates
                self._record(assembly.test(), assembly.sent_bytes)
        elif self._seat.before is None and is_time and (self._probing is None or self._probing.done()):
            assert self._work is not None
            self.tested_at = self._stage.updates
            self._probing = self._work(self._prober.begin())

    def _record(self, measure: float, sent_bytes: int | None = None) -> None:
        world = self._world
        world.record(
            Tested(
                at=world.now,
                node=world.name,
                steps=self._stage.updates,
                measure=finite_measure(measure, rising=self._exam.rising),
                sent_bytes=world.sent_bytes if sent_bytes is None else sent_bytes,
            )
        )

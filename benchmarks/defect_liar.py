"""`atoll node`, in a process that takes its time for a step and, where it should, lies to the others.

    python -m benchmarks.defect_liar LIE SECONDS node --join …

It is the real node program; what it says is changed at the few places where it says it: the trailer and the values of
rounds, pushes, changes, and what it claims to have agreed on.
"""

import dataclasses
import math
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from atoll import cli
from atoll.strategies.changes import ChangeWire
from atoll.strategies.pushes import PushTalk
from atoll.strategies.rounds.block import Block, Contribution
from atoll.strategies.rounds.lineage import Standing
from atoll.strategies.rounds.models import ModelRounds
from atoll.strategies.rounds.trailer import Trailer
from atoll.training.replica import TrainedReplica
from atoll.vectors import Numbers, Vector
from atoll.world.base import Buffer

LIES = {
    "none": "four honest nodes",
    "a": "a weight of NaN in the trailer",
    "b": "updates of 10⁶",
    "c": "its own change, the sign turned, times ten",
    "d": "a weight of 10⁶",
    "e": "a later agreement, and a model of NaN",
}
WEIGHTS = {"a": math.nan, "d": 1e6}
CHANGES: dict[str, Callable[[Vector], Vector]] = {
    "b": lambda change: torch.full_like(change, 1e6),
    "c": lambda change: -10 * change,
    "e": lambda change: torch.full_like(change, math.nan),
}


def wrap(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Puts something around a method; it must be there, or the lie is none."""
    before = owner.__dict__[name]
    if isinstance(before, staticmethod):
        setattr(owner, name, staticmethod(make(before.__func__)))
    else:
        setattr(owner, name, make(before))


def lie_in_rounds(lie: str) -> None:
    if lie in WEIGHTS:

        def own(honest: Any) -> Any:
            def lying(*arguments: Any, **more: Any) -> Numbers:
                trailer: Numbers = honest(*arguments, **more)
                trailer[0] = WEIGHTS[lie]
                return trailer

            return lying

        wrap(Trailer, "own", own)

    def payload(honest: Any) -> Any:
        def lying(block: Any, snapshot: Vector | None, weight: float) -> Contribution | None:
            given: Contribution | None = honest(block, snapshot, weight if 0 <= weight <= 1 else 1.0)
            if given is None or lie not in CHANGES or lie == "e":
                return given
            told_whole = getattr(block, "_absolute", False)
            agreed = block.agreed if told_whole and block.agreed is not None else torch.zeros_like(given.values)
            return given._replace(values=agreed + CHANGES[lie](given.values - agreed))

        return lying

    wrap(Block, "payload", payload)


def lie_about_agreements() -> None:
    """It says that it holds the run's model, of more work than anybody has done, and hands out what is not a number."""

    def standing(honest: Any) -> Any:
        def lying(rounds: ModelRounds) -> Standing:
            known: Standing = honest.fget(rounds)
            later = tuple((f"{view} later", number + 10**6) for view, number in known.agreements)
            return dataclasses.replace(known, agreements=later, work=(10**12,) * len(known.work), is_new=False)

        return property(lying)

    def hand_out(honest: Any) -> Any:
        def lying(rounds: ModelRounds) -> list[Vector] | None:
            found: list[Vector] | None = honest(rounds)
            return [torch.full_like(each, math.nan) for each in found] if found is not None else None

        return lying

    wrap(ModelRounds, "_standing", standing)
    wrap(ModelRounds, "_to_hand_out", hand_out)
    wrap(ModelRounds, "stands", lambda _honest: lambda *_: True)


def lie_in_pushes(lie: str) -> None:
    def send(honest: Any) -> Any:
        before: list[Vector] = []

        async def lying(pushes: PushTalk, name: str, number: int, arrival: Any) -> None:
            values = arrival.values
            if lie in CHANGES:
                base = before[-1] if before else values
                before[:] = [values]
                values = base + CHANGES[lie](values - base)
            weight = WEIGHTS.get(lie, arrival.weight)
            await honest(pushes, name, number, dataclasses.replace(arrival, values=values, weight=weight))

        return lying

    wrap(PushTalk, "_send", send)


def _times_a_million(change: Vector) -> Vector:
    return 1e6 * change


def lie_in_changes(lie: str) -> None:
    """A change has no weight: it is not a number, or counts a million times, itself."""
    changes = {**CHANGES, "a": CHANGES["e"], "d": _times_a_million}

    def write(honest: Any) -> Any:
        def lying(wire: ChangeWire, told: Vector, changed: Vector) -> tuple[Vector, Buffer]:
            _, body = honest(wire, told, told + changes[lie](changed - told))
            return changed, body

        return lying

    wrap(ChangeWire, "write", write)


def take_time(seconds: float) -> None:
    def compute(honest: Any) -> Any:
        def slow(replica: TrainedReplica) -> None:
            honest(replica)
            time.sleep(seconds)

        return slow

    wrap(TrainedReplica, "compute_gradient", compute)


def main() -> None:
    lie, seconds = sys.argv[1], float(sys.argv[2])
    take_time(seconds)
    if lie not in LIES:
        sys.exit(f"{lie}: choose from: {', '.join(LIES)}")
    if lie != "none":
        lie_in_rounds(lie)
        lie_in_pushes(lie)
        lie_in_changes(lie)
    if lie == "e":
        lie_about_agreements()
    sys.argv[1:3] = []
    cli.main()


if __name__ == "__main__":
    main()

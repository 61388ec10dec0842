"""One member of four lies in every round; the others learn."""

from pathlib import Path
from typing import Any

import pytest
import torch

from atoll.config import RunConfig
from atoll.network import load_network
from atoll.runs.simulated import simulate_run
from atoll.strategies.rounds.block import Block, Contribution
from atoll.strategies.rounds.driver import Driver
from atoll.strategies.rounds.trailer import Trailer
from atoll.trace import ContributionRefused, Tested, read_trace
from atoll.training.replica import TrainedReplica
from atoll.vectors import Numbers, Vector


@pytest.mark.parametrize("strategy", ["vrl:codec=int8", "allreduce:every=4", "diloco:every=4"])
@pytest.mark.parametrize("lie", ["the sign turned, times ten", "a million", "a weight of a million"])
def test_one_member_that_lies(strategy: str, lie: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It also adds up a share of the values, and its own judge believes it: who is refused again and again is not
    trusted with that either.
    """
    honest, begin = Block.payload, Driver.__init__
    lying: set[int] = set()

    def watch(driver: Driver, *arguments: Any, **more: Any) -> None:
        begin(driver, *arguments, **more)
        if driver._replica.world.name == "3":
            lying.update(id(block) for block in driver.blocks)

    def payload(block: Block, snapshot: Vector | None, weight: float) -> Contribution | None:
        given = honest(block, snapshot, min(weight, 1.0))
        if id(block) not in lying or given is None or "weight" in lie:
            return given
        values = given.values
        agreed = block.origin if block.origin is not None else torch.zeros_like(values)
        lied = agreed - 10 * (values - agreed) if "sign" in lie else torch.full_like(values, 1e6)
        return given._replace(values=lied)

    def own(replica: TrainedReplica, weight: float, *more: Any, alarm: bool = False) -> Numbers:
        return tail(replica, 1e6 if "weight" in lie and replica.world.name == "3" else weight, *more, alarm=alarm)

    tail = Trailer.own
    monkeypatch.setattr(Trailer, "own", staticmethod(own))
    monkeypatch.setattr(Driver, "__init__", watch)
    monkeypatch.setattr(Block, "payload", payload)
    spec = RunConfig(
        network=load_network("perfect:4"), task="digits", strategy=strategy, shards="iid", limit_s=60, stops=False
    )
    simulate_run(spec, tmp_path / "trace")
    events = list(read_trace(tmp_path / "trace"))
    ends = {event.node: event.measure for event in events if isinstance(event, Tested) and event.node != "3"}
    assert min(ends.values()) > 0.85, ends
    named = {event.why.split(":")[0] for event in events if isinstance(event, ContributionRefused)}
    assert "3" in named

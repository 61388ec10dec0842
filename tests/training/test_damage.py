from pathlib import Path

import pytest
import torch

from atoll.config import RunConfig
from atoll.network import load_network
from atoll.runs import simulate_run
from atoll.trace import ContributionRefused, Tested, read_trace
from atoll.training.damage import Damage
from atoll.world.faults import Fault, parse_faults


def test_what_a_broken_machine_makes_of_a_step() -> None:
    faults = (
        Fault("exaggerate", 1, 2, ("1",), factor=100.0),
        Fault("garbage", 3, 4, ("1",)),
        Fault("slow", 0, 9, ("1",), factor=2.0),
    )
    before, after = torch.tensor([1.0, 2.0]), torch.tensor([1.5, 2.0])
    well, broken = Damage("0", faults, 0), Damage("1", faults, 0)
    assert not well.now(1.5)
    assert not broken.now(2.5)
    assert broken(broken.now(1), before, after).tolist() == pytest.approx([51, 2])
    assert (broken(broken.now(3), before, after) - after).abs().min() > 0


@pytest.mark.parametrize("kind", ["garbage", "exaggerate"])
def test_a_robust_mean_outlives_a_node_that_computes_wrongly(tmp_path: Path, kind: str) -> None:
    net = load_network("perfect:5")
    factor = "factor = 100" if kind == "exaggerate" else ""
    script = parse_faults(f'[[fault]]\nkind = "{kind}"\nnodes = "3"\nat = 0\n{factor}', net.node_names)
    ends = {}
    for strategy in ("allreduce:every=4", "allreduce:every=4,robust=median"):
        spec = RunConfig(
            network=net, task="digits", strategy=strategy, shards="iid", limit_s=40, faults=script, stops=False
        )
        simulate_run(spec, tmp_path / "trace")
        events = list(read_trace(tmp_path / "trace"))
        ends[strategy] = {
            event.node: event.measure for event in events if isinstance(event, Tested) and event.node != "3"
        }
        named = {event.why.split(":")[0] for event in events if isinstance(event, ContributionRefused)}
        assert named == {"3"}
    assert min(ends["allreduce:every=4"].values()) > 0.8, "whatever is absurd is refused with every strategy"
    assert min(ends["allreduce:every=4,robust=median"].values()) > 0.9

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from atoll.config import RunConfig
from atoll.errors import CheckpointError
from atoll.network import load_network
from atoll.runs import simulate_run
from atoll.state import Saved
from atoll.trace import CheckpointSaved, Tested, read_trace
from atoll.training.checkpoint import latest, read_node, write_node
from atoll.world.faults import parse_faults

IDENTITY = {"task": "digits", "seed": 3, "nodes": ["a", "b"]}


@given(
    st.dictionaries(
        st.text(min_size=1, max_size=8).filter(lambda name: name != "__metadata__"),
        hnp.arrays(st.sampled_from([np.float32, np.int64, np.uint8]), hnp.array_shapes(min_side=0, max_dims=2)),
        max_size=4,
    )
)
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, saved: Saved) -> None:
    path = tmp_path_factory.mktemp("there") / "node"
    write_node(path, saved, IDENTITY)
    found = read_node(path, IDENTITY)
    assert found.keys() == saved.keys()
    for name, values in saved.items():
        assert (found[name].dtype, found[name].shape) == (values.dtype, values.shape)
        assert found[name].tobytes() == values.tobytes()
    assert [each.name for each in path.parent.iterdir()] == ["node"], "nothing is left beside it"


def test_torn_and_foreign_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "node"
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_node(path, IDENTITY)
    write_node(path, {"x": np.arange(1000, dtype=np.float32)}, IDENTITY)
    whole = path.read_bytes()
    for size in (0, 4, 100, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match="incomplete"):
            read_node(path, IDENTITY)
    path.write_bytes(whole[:-2] + bytes([whole[-2] ^ 1, whole[-1]]))
    with pytest.raises(CheckpointError, match="damaged"):
        read_node(path, IDENTITY)
    path.write_bytes(whole)
    with pytest.raises(CheckpointError, match="another run: seed is 3 there, and 4 here"):
        read_node(path, {**IDENTITY, "seed": 4})
    safetensors.numpy.save_file({"x": np.zeros(3)}, path)
    with pytest.raises(CheckpointError, match="not a checkpoint"):
        read_node(path, IDENTITY)
    with pytest.raises(CheckpointError, match="no checkpoint here"):
        latest(tmp_path)


FAULTS = """
[[fault]]
kind = "crash"
nodes = "1"
at = 8
until = 15
[[fault]]
kind = "partition"
sides = ["0", "[12]"]
at = 17
until = 23
[[fault]]
kind = "corrupt"
between = ["0", "2"]
at = 5
until = 30
"""


@pytest.mark.parametrize(
    "strategy",
    [
        "allreduce:every=2",
        "allreduce:gradient",
        "diloco:every=3,fragments=2,codec=int4,overlap,shared",
        "vrl:codec=int8",
        "gossip:pushsum",
        "gossip:codec=int8",
        "ssp:codec=int8",
        "selsync:lenders=0.5",
        "flexible",
    ],
)
@pytest.mark.parametrize("script", ["", FAULTS])
def test_a_resumed_run_writes_what_the_one_before_it_would_have(tmp_path: Path, strategy: str, script: str) -> None:
    net = load_network("triangle")
    spec = RunConfig(
        network=net,
        task="digits",
        strategy=strategy,
        limit_s=34,
        faults=parse_faults(script, net.node_names),
        stops=False,
        checkpoints=tmp_path / "whole",
        checkpoint_s=10,
    )
    simulate_run(spec, tmp_path / "whole.jsonl")
    stopped = dataclasses.replace(spec, checkpoints=tmp_path / "stopped", limit_s=24)
    simulate_run(stopped, tmp_path / "resumed.jsonl")
    assert latest(tmp_path / "stopped").name == "00000020.000"
    resumed = dataclasses.replace(spec, checkpoints=tmp_path / "stopped", resume=True)
    simulate_run(resumed, tmp_path / "resumed.jsonl")
    assert (tmp_path / "resumed.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    events = list(read_trace(tmp_path / "whole.jsonl"))
    assert [event.at for event in events if isinstance(event, CheckpointSaved)] == [10, 20, 30]
    tests = [event for event in events if isinstance(event, Tested)]
    assert max(event.measure for event in tests) > 0.5
    by_node = {name: [event for event in tests if event.node == name] for name in net.node_names}
    for name, found in by_node.items():
        if not script or name != "1":
            steps = [event.steps for event in found]
            assert steps == sorted(steps)
            assert steps[-1] > 30, "it went on where it was"


@pytest.mark.parametrize("strategy", ["allreduce:every=2", "diloco:every=4", "gossip:pushsum", "ssp", "ssp:codec=int8"])
def test_going_on_from_a_checkpoint_costs_nobody_what_it_has_learned(tmp_path: Path, strategy: str) -> None:
    """`ssp` once counted everybody's changes a second time."""
    spec = RunConfig(
        network=load_network("perfect:3"),
        task="digits",
        strategy=strategy,
        shards="iid",
        limit_s=26,
        stops=False,
        checkpoints=tmp_path / "there",
        checkpoint_s=20,
    )
    simulate_run(spec, tmp_path / "trace")
    tests = [event for event in read_trace(tmp_path / "trace") if isinstance(event, Tested)]
    before = min(event.measure for event in tests if 18 <= event.at <= 20)
    after = min(event.measure for event in tests if event.at > 20)
    assert before > 0.6
    assert after > before - 0.1


SHORT = RunConfig(network=load_network("triangle"), task="digits", strategy="allreduce", limit_s=12, checkpoint_s=5)


def test_a_new_run_forgets_the_checkpoints_of_the_one_before(tmp_path: Path) -> None:
    spec = dataclasses.replace(SHORT, checkpoints=tmp_path / "there")
    simulate_run(spec, tmp_path / "trace")
    simulate_run(dataclasses.replace(spec, checkpoint_s=4, limit_s=7), tmp_path / "trace")
    assert [each.name for each in (tmp_path / "there").iterdir()] == ["00000004.000"]


def test_a_run_of_something_else_is_not_resumed(tmp_path: Path) -> None:
    spec = dataclasses.replace(SHORT, checkpoints=tmp_path / "there")
    simulate_run(spec, tmp_path / "trace")
    for other, what in (({"strategy": "gossip"}, "strategy"), ({"seed": 1}, "seed"), ({"shards": "iid"}, "shards")):
        with pytest.raises(CheckpointError, match=f"another run: {what}"):
            simulate_run(dataclasses.replace(spec, resume=True, **other), tmp_path / "trace")
    with pytest.raises(CheckpointError, match="at 10 s, and the limit is 9 s"):
        simulate_run(dataclasses.replace(spec, resume=True, limit_s=9), tmp_path / "trace")
    place = latest(tmp_path / "there")
    earlier = place.parent / "00000005.000" / "node 1.safetensors"
    for name, change, what in (
        ("trace.jsonl", lambda old: old.replace(b"0", b"1", 1), "damaged"),
        (
            "node 1.safetensors",
            lambda _: earlier.read_bytes(),
            "of another time",
        ),
        ("node 2.safetensors", None, "missing"),
    ):
        old = (place / name).read_bytes()
        (place / name).unlink()
        if change:
            (place / name).write_bytes(change(old))
        with pytest.raises(CheckpointError, match=what):
            simulate_run(dataclasses.replace(spec, resume=True), tmp_path / "trace")
        (place / name).write_bytes(old)
    with pytest.raises(CheckpointError, match="another run: network"):
        simulate_run(dataclasses.replace(spec, resume=True, network=load_network("perfect:3")), tmp_path / "trace")

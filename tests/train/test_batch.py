from pathlib import Path

import pytest

from atoll.errors import TaskError
from atoll.network import load_network
from atoll.train import RunSpec
from atoll.train.batch import run_all

SPEC = RunSpec(network=load_network("perfect:2"), task="digits", strategy="none", limit_s=3.0)


def test_leaving_early_keeps_finished_traces_only(tmp_path: Path) -> None:
    long = RunSpec(
        network=load_network("perfect:2"), task="digits", strategy="allreduce", limit_s=1e6, shards="label", seed=1
    )
    runs = run_all([SPEC, long], tmp_path, jobs=2)
    for done in runs:
        if done is SPEC:
            break
    runs.close()
    assert [path.name for path in tmp_path.glob("*.jsonl")] == [SPEC.file_name]


def test_what_goes_wrong_in_a_run_is_told_here(tmp_path: Path) -> None:
    wrong = RunSpec(network=load_network("perfect:2"), task="nothing", strategy="none")
    with pytest.raises(TaskError, match="there is no task 'nothing'"):
        list(run_all([wrong], tmp_path, jobs=1))

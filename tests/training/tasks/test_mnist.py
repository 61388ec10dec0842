from pathlib import Path

import pytest

from atoll.errors import TaskError
from atoll.training import load_task
from atoll.training.tasks.mnist import read_idx
from tests.training.idx import write_small_mnist


@pytest.mark.parametrize("gzipped", [True, False])
def test_reads_idx_files(tmp_path: Path, gzipped: bool) -> None:  # noqa: FBT001
    task = load_task("mnist", write_small_mnist(tmp_path, gzipped=gzipped))
    assert task.train.inputs.shape == (600, 1, 28, 28)
    assert len(task.test) == 120
    assert sum(p.numel() for p in task.model().parameters()) == 693_962
    assert (task.target, task.batch) == (0.975, 64)


def test_as_odticn_trained_it(tmp_path: Path) -> None:
    task = load_task("mnist-plain", write_small_mnist(tmp_path))
    optimizer = task.optimizer(task.model().parameters())
    assert (optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["momentum"]) == (0.1, 0.0)
    assert task.target == 0.9


def test_wrong_folders_and_files(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="needs data"):
        load_task("mnist")
    with pytest.raises(TaskError, match="is not a folder"):
        load_task("mnist", tmp_path / "none")
    with pytest.raises(TaskError, match=r"expected train-images-idx3-ubyte or train-images-idx3-ubyte\.gz in it"):
        load_task("mnist", tmp_path)
    write_small_mnist(tmp_path, gzipped=False)
    path = tmp_path / "train-labels-idx1-ubyte"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(TaskError, match="expected 600 values, found 595"):
        read_idx(path)
    path.write_bytes(b"hello")
    with pytest.raises(TaskError, match="expected an IDX file"):
        read_idx(path)

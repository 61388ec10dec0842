import random
from pathlib import Path

import pytest
import torch

from atoll.errors import TaskError
from atoll.training import load_task


def write_text(path: Path, length: int = 30_000) -> Path:
    draw = random.Random(0)
    words = ["the", "sea", "ring", "of", "islands", "and", "a", "lagoon"]
    path.write_text(" ".join(draw.choice(words) for _ in range(length // 4))[:length])
    return path


def test_learns_any_text(tmp_path: Path) -> None:
    task = load_task("text", write_text(tmp_path / "sea.txt"))
    torch.manual_seed(0)
    model = task.model()
    assert 200_000 < sum(p.numel() for p in model.parameters()) < 1_000_000
    assert not task.rising
    assert task.batch >= 32
    before = task.test_model(model)
    optimizer = task.optimizer(model.parameters())
    for step in range(20):
        batch = slice(step * 8, step * 8 + 16)
        optimizer.zero_grad()
        task.loss(model(task.train.inputs[batch]), task.train.targets[batch]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert task.test_model(model) < before - 0.5


def test_predicts_the_next_character_and_sees_no_later_one(tmp_path: Path) -> None:
    task = load_task("text", write_text(tmp_path / "sea.txt"))
    assert torch.equal(task.train.inputs[0, 1:], task.train.targets[0, :-1])
    model = task.model()
    changed = task.train.inputs[:1].clone()
    changed[0, -1] = (changed[0, -1] + 1) % 5
    with torch.no_grad():
        one, other = model(task.train.inputs[:1]), model(changed)
    assert torch.allclose(one[0, :-1], other[0, :-1], atol=1e-6)


def test_the_last_tenth_is_held_out_and_shards_follow_the_text(tmp_path: Path) -> None:
    path = write_text(tmp_path / "sea.txt")
    task = load_task("text", path)
    assert len(task.train) + len(path.read_text()) // 640 == pytest.approx(len(path.read_text()) // 64, abs=2)
    assert task.labels is not None
    assert sorted(set(task.labels.tolist())) == list(range(10))


def test_wrong_files(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"expected one \.txt file in it, found 0"):
        load_task("text", tmp_path)
    (tmp_path / "short.txt").write_text("too short")
    with pytest.raises(TaskError, match="expected at least 20800 characters, found 9"):
        load_task("text", tmp_path)
    with pytest.raises(TaskError, match="expected a text file in UTF-8"):
        load_task("text", tmp_path / "none.txt")
    with pytest.raises(TaskError, match="needs data"):
        load_task("text")

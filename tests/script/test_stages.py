"""Scripts whose model several nodes hold: in threads over loopback."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import atoll
from atoll.errors import AtollError, TaskError
from atoll.script.stages import ScriptCurriculum
from atoll.training.task import Examples
from tests.script.test_run import Others

LOSS = nn.functional.cross_entropy


def deep(seed: int = 0) -> nn.Sequential:
    """0.3 MB of weights; twice that with gradients."""
    torch.manual_seed(seed)
    blocks = [layer for i in range(6) for layer in (nn.Linear(128 if i else 16, 128), nn.Tanh())]
    return nn.Sequential(*blocks, nn.Linear(128, 4))


def data() -> TensorDataset:
    draw = torch.Generator().manual_seed(1)
    inputs = torch.randn(400, 16, generator=draw)
    return TensorDataset(inputs, (inputs @ torch.randn(16, 4, generator=draw)).argmax(1))


def loader(**more: Any) -> DataLoader[Any]:
    return DataLoader(data(), 20, **more)


def example() -> tuple[torch.Tensor, torch.Tensor]:
    inputs, targets = next(iter(loader()))
    return inputs, targets


def sgd(model: nn.Module, lr: float = 0.1) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr)


def test_alone_it_learns_what_a_loop_learns() -> None:
    """To the bit: one node holds all of it, and a batch goes forward and backward at once."""
    model, plain = deep(), deep()
    optimizer = sgd(plain)
    for _ in range(2):
        for inputs, targets in loader():
            LOSS(plain(inputs), targets).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
    with atoll.join("none") as run:
        stages = run.wrap_stages(model, sgd(model), example())
        losses = list(stages.train(run.shard(loader()), updates=40))
        assert len(losses) == 40
        assert stages.steps == 40
        assert stages.layers == range(13)
        stages.collect()
    assert losses[-1] < losses[0]
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_two_machines_hold_what_neither_can(tmp_path: Path) -> None:
    """Models that differ at first, a schedule, the end of an island, a checkpoint that both go on from."""
    found: dict[int, dict[str, torch.Tensor]] = {}
    lasts: dict[int, list[float]] = {}
    invited = threading.Event()
    invitation: list[str] = []
    ready = threading.Barrier(2, timeout=60)

    def play(place: int) -> None:
        for life in range(2):
            if place == 0:
                run = atoll.join("allreduce:every=4,overlap", listen="127.0.0.1:0", seats=2)
                invitation[:] = [run.invitation]
                invited.set()
            else:
                assert invited.wait(60)
                run = atoll.join(invitation=invitation[0])
            model = deep(seed=place)
            optimizer = sgd(model)
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.95)
            stages = run.wrap_stages(model, optimizer, example(), memory="700kB", test=example())
            assert run.resume(tmp_path / f"{place}") == (life > 0)
            losses = []
            for loss in stages.train(run.shard(loader(shuffle=True)), updates=80 * (life + 1)):
                losses.append(loss)
                schedule.step()
            assert 0 < len(stages.layers) < 13
            run.checkpoint(tmp_path / f"{place}")
            ready.wait()
            if place == 0:
                invited.clear()
            if place == 0:  # the other one ends, and stays while its layers are wanted
                found[0] = dict(stages.collect().state_dict())
            lasts.setdefault(place, []).extend((losses[0], losses[-1]))
            run.close()
            ready.wait()

    others = Others()
    others(lambda: play(1))
    play(0)
    others.wait()
    first, last, again, _ = lasts[0]
    assert last < 0.7 * first
    assert again < 0.8 * first, "what was learned is not lost"
    fresh = deep(seed=0).state_dict()
    assert not any(torch.equal(each, fresh[name]) for name, each in found[0].items()), "all layers have been learned"
    model = deep()
    model.load_state_dict(found[0])
    inputs, targets = data().tensors
    assert float(LOSS(model(inputs), targets).detach()) < 0.7 * first, "and together they are the model"


def test_an_optimiser_like_the_scripts() -> None:
    model = deep()
    groups: list[dict[str, Any]] = [{"params": model[0].parameters(), "lr": 0.5}, {"params": model[2:].parameters()}]
    optimizer = torch.optim.AdamW(groups, lr=0.1, weight_decay=0.3)
    curriculum = ScriptCurriculum(model, optimizer, Examples(*example()), LOSS, names=("a", "b"))
    for layer, rate in ((0, 0.5), (2, 0.1)):
        made = curriculum.optimizer(list(model[layer].parameters()))
        assert type(made) is torch.optim.AdamW
        assert made.param_groups[0]["lr"] == rate
        assert made.param_groups[0]["weight_decay"] == 0.3
    optimizer.param_groups[0]["lr"] = 0.05
    curriculum.learned(1, 0.0)
    assert curriculum._made[0][0]["lr"] == 0.05

    class Own(torch.optim.SGD):
        def __init__(self, params: Any, secret: int) -> None:
            super().__init__(params, lr=secret)

    curriculum = ScriptCurriculum(model, Own(model.parameters(), 1), Examples(*example()), LOSS, names=("a",))
    with pytest.raises(TaskError, match="a Own cannot be made for a layer"):
        curriculum.optimizer(list(model[0].parameters()))


def test_what_is_not_to_be_trained_is_not() -> None:
    model = deep()
    frozen, trained = model.state_dict()["0.weight"].clone(), model.state_dict()["2.weight"].clone()
    optimizer = sgd(nn.ModuleList(list(model)[2:]))
    with atoll.join("none") as run:
        stages = run.wrap_stages(model, optimizer, example(), islands="auto:pieces=16")
        ragged = DataLoader(data(), 7, shuffle=True)  # and the last batch of an epoch is of one example
        for _ in stages.train(ragged, updates=60):
            pass
        copied = stages.collect()
        assert copied is not model
        assert [name for name, _ in copied.named_parameters()] == [name for name, _ in model.named_parameters()]
        for _ in stages.train(ragged, updates=62):
            pass
        assert stages.steps >= 62, "it goes on"
    assert torch.equal(model.state_dict()["0.weight"], frozen)
    assert not torch.equal(model.state_dict()["2.weight"], trained)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"example_batch": torch.zeros(3)}, "expected two tensors, inputs and targets, not a Tensor"),
        ({"example_batch": (torch.zeros(3),)}, "not a tuple of 1"),
        ({"islands": "a+b"}, "expected auto"),
        ({"memory": "lots"}, "is no size"),
        ({"optimizer": sgd(deep())}, "parameters that are not the model's"),
        ({"test": [1, 2]}, "test: expected two tensors"),
    ],
)
def test_mistakes_are_named(wrong: dict[str, Any], message: str) -> None:
    model = deep()
    with atoll.join("none") as run, pytest.raises(TaskError, match=message):
        run.wrap_stages(**{"model": model, "optimizer": sgd(model), "example_batch": example(), **wrong})


def test_no_data_and_failures_are_told() -> None:
    model = deep()

    def broken(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no such loss")

    nothing: list[tuple[torch.Tensor, torch.Tensor]] = []
    with atoll.join("none") as run:
        stages = run.wrap_stages(model, sgd(model), example())
        with pytest.raises(AtollError, match="called before"):
            run.wrap_stages(model, sgd(model), example())
        with pytest.raises(TaskError, match="there is no data"):
            next(stages.train(nothing))
    model = deep()
    with atoll.join("none") as run:
        stages = run.wrap_stages(model, sgd(model), example(), loss=broken)
        with pytest.raises(AtollError, match="no such loss"):
            _exhaust(stages.train(loader()))


def _exhaust(values: Iterator[float]) -> None:
    for _ in values:
        pass

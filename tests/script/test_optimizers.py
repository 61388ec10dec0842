"""Closures, wrappers, several optimisers, and schedules."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LinearLR, MultiStepLR, ReduceLROnPlateau, SequentialLR

import atoll
from atoll.errors import CheckpointError, StrategyError
from atoll.script.optimizers import Optimizers, with_closure

GRADIENTS = "allreduce:quantity=gradient"


def linear() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def step(model: nn.Module, optimizer: Any) -> None:
    model(torch.ones(4, 3)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


# Closures ---


@pytest.mark.parametrize("strategy", ["none", "allreduce:every=2", GRADIENTS])
@pytest.mark.parametrize("by_name", [False, True])
def test_a_closure_is_called_once(strategy: str, by_name: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """And the step is the same, to the bit; nothing is exchanged before it has made the gradients."""
    plain, wrapped = linear(), linear()
    step(plain, torch.optim.SGD(plain.parameters(), 0.1))
    optimizer = torch.optim.SGD(wrapped.parameters(), 0.1)
    evaluations: list[float] = []

    def closure() -> Any:
        optimizer.zero_grad()
        loss = wrapped(torch.ones(4, 3)).square().mean()
        loss.backward()
        evaluations.append(loss.item())
        return loss

    with atoll.join(strategy) as run:
        run.wrap(wrapped, optimizer)
        at_exchange: list[int] = []
        assert run._agent is not None
        there = run._agent.gradient_is_there
        run._agent.gradient_is_there = lambda: (at_exchange.append(len(evaluations)), there())[1]  # type: ignore[method-assign,func-returns-value]
        loss = optimizer.step(closure=closure) if by_name else optimizer.step(closure)
        assert run.steps == 1
    assert loss is not None
    assert loss.item() == evaluations[0]
    assert len(evaluations) == 1
    assert at_exchange == ([1] if strategy == GRADIENTS else [])
    assert torch.equal(plain.weight, wrapped.weight)


def test_arguments_of_a_step() -> None:
    doubled: Callable[[Any], Any] = lambda closure: lambda: 2 * closure()  # noqa: E731
    found = with_closure(("optimizer", lambda: 3), {}, doubled)
    assert found is not None
    assert found[0][1]() == 6
    found = with_closure(("optimizer",), {"closure": lambda: 4, "more": 1}, doubled)
    assert found is not None
    assert found[1]["closure"]() == 8
    assert found[1]["more"] == 1
    assert with_closure(("optimizer", None), {}, doubled) is None  # as accelerate calls it
    assert with_closure(("optimizer",), {"closure": None}, doubled) is None


def test_several_evaluations_in_a_step() -> None:
    """Parameters can be averaged after such a step; gradients cannot."""
    model = linear()
    optimizer: Any = torch.optim.LBFGS(model.parameters(), max_iter=4)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = model(torch.eye(3)).sub(torch.ones(3, 2)).square().mean()
        loss.backward()
        return loss

    with atoll.join("allreduce:every=1") as run:
        run.wrap(model, optimizer)
        first = optimizer.step(closure).item()
        assert optimizer.step(closure).item() < first
        assert run.steps == 2
    with atoll.join(GRADIENTS) as run, pytest.raises(StrategyError, match=r"LBFGS makes several.*averages parameters"):
        run.wrap(model, optimizer)


class Twice(torch.optim.SGD):
    """As sharpness-aware optimisers do."""

    def step(self, closure: Any = None) -> Any:
        closure()
        return super().step(closure)


def test_an_optimiser_that_evaluates_twice_is_refused_with_gradients() -> None:
    model = linear()
    optimizer = Twice(model.parameters(), 0.1)
    with atoll.join(GRADIENTS) as run:
        run.wrap(model, optimizer)
        with pytest.raises(StrategyError, match="several times in a step"):
            optimizer.step(lambda: model(torch.ones(1, 3)).sum().backward())


@pytest.mark.parametrize("fused", [False, True])
def test_gradients_are_exchanged_without_the_scale_of_a_scaler(fused: bool) -> None:  # noqa: FBT001 - of the test
    """Every node's scale is another one; fused optimisers take it out themselves, while they step."""
    plain, scaled = linear(), linear()
    step(plain, torch.optim.AdamW(plain.parameters(), 0.1, fused=fused))
    optimizer = torch.optim.AdamW(scaled.parameters(), 0.1, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    seen: list[float] = []
    with atoll.join(GRADIENTS) as run:
        run.wrap(scaled, optimizer)
        assert run._agent is not None
        there = run._agent.gradient_is_there

        def look() -> None:
            assert scaled.bias.grad is not None
            seen.append(float(scaled.bias.grad.abs().max()))
            there()

        run._agent.gradient_is_there = look  # type: ignore[method-assign]
        scaler.scale(scaled(torch.ones(4, 3)).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        assert run.steps == 1
    assert seen[0] < 2
    torch.testing.assert_close(scaled.weight, plain.weight)


# Wrappers ---


class Wrapper(torch.optim.Optimizer):
    """As accelerate's: a kind of optimiser that was never made one, around another."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        found: list[dict[str, Any]] = self.optimizer.param_groups
        return found

    def step(self, closure: Any = None) -> Any:
        return self.optimizer.step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: FBT001, FBT002 - as torch has it
        self.optimizer.zero_grad(set_to_none)


@pytest.mark.parametrize("strategy", ["allreduce:every=1", GRADIENTS])
def test_an_optimiser_in_a_wrapper(strategy: str) -> None:
    model = linear()
    wrapper = Wrapper(Wrapper(torch.optim.SGD(model.parameters(), 0.1)))
    with atoll.join(strategy) as run:
        _, given_back = run.wrap(model, wrapper)
        assert given_back is wrapper
        step(model, wrapper)
        assert run.steps == 1


def test_what_is_no_optimiser_is_refused() -> None:
    model = linear()
    with atoll.join("none") as run:
        for wrong, told in (
            (object(), "a object is no torch"),
            (Wrapper(None), "a Wrapper is no torch"),
            ([], "empty"),
        ):
            with pytest.raises(StrategyError, match=told):
                run.wrap(model, wrong)
        with pytest.raises(StrategyError, match=r"expected a torch\.nn\.Module"):
            run.wrap({"model": model}, torch.optim.SGD(model.parameters(), 0.1))  # type: ignore[type-var]
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with pytest.raises(StrategyError, match="twice"):
            run.wrap(model, [optimizer, Wrapper(optimizer)])
        with pytest.raises(StrategyError, match="no state_dict"):
            run.wrap(model, optimizer, scheduler=object())


# Several ---


def train_adversaries(nets: list[nn.Linear], optimizers: list[torch.optim.Optimizer], rounds: int) -> None:
    """Five steps of the critic for each of the generator, which comes last."""
    critic, generator = optimizers
    for _ in range(rounds):
        for _ in range(5):
            critic.zero_grad()
            nets[0](nets[1](torch.ones(4, 3)).detach()).square().mean().backward()
            critic.step()
        generator.zero_grad()
        nets[0](nets[1](torch.ones(4, 3))).mean().backward()
        generator.step()


def adversaries() -> tuple[list[nn.Linear], list[torch.optim.Optimizer]]:
    torch.manual_seed(0)
    nets = [nn.Linear(3, 1), nn.Linear(3, 3)]
    return nets, [torch.optim.AdamW(nets[0].parameters(), 0.01), torch.optim.SGD(nets[1].parameters(), 0.1, 0.9)]


def test_several_models_and_optimisers(tmp_path: Path) -> None:
    """Each trains as it did; a checkpoint holds the state of all, and goes on exactly."""
    nets, optimizers = adversaries()
    train_adversaries(nets, optimizers, 6)
    expected = [copy.deepcopy(each.state_dict()) for each in nets]
    nets, optimizers = adversaries()
    with atoll.join("allreduce:every=1") as run:
        assert run.wrap(nets, optimizers) == (nets, optimizers)
        train_adversaries(nets, optimizers, 3)
        assert run.steps == 3  # of the last one
        run.checkpoint(tmp_path / "node")
    nets, optimizers = adversaries()
    with atoll.join("allreduce:every=1") as run:
        run.wrap(nn.ModuleDict({"critic": nets[0], "generator": nets[1]}), optimizers)
        with pytest.raises(CheckpointError, match="is of another model"):
            run.resume(tmp_path / "node")
    nets, optimizers = adversaries()
    with atoll.join("allreduce:every=1") as run:
        run.wrap(nets, optimizers)
        assert run.resume(tmp_path / "node")
        train_adversaries(nets, optimizers, 3)
    for net, state in zip(nets, expected, strict=True):
        assert all(torch.equal(value, state[name]) for name, value in net.state_dict().items())


def test_gradients_of_several_optimisers_are_refused() -> None:
    """Each would step at its own time, and what is averaged is the gradient of all parameters at once."""
    nets, optimizers = adversaries()
    with atoll.join(GRADIENTS) as run, pytest.raises(StrategyError, match="there are 2 optimisers"):
        run.wrap(nets, optimizers)


# Schedules and settings ---

SCHEDULES: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "lambda": lambda o: LambdaLR(o, lambda at: 1 / (1 + at)),
    "milestones": lambda o: MultiStepLR(o, [3, 6, 9]),
    "sequence": lambda o: SequentialLR(o, [LinearLR(o, total_iters=4), CosineAnnealingLR(o, 20)], [4]),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_rates_go_on_where_they_were(tmp_path: Path, schedule: str) -> None:
    """Of every group, with everything else that groups say; and the schedule goes on."""

    def begin() -> tuple[nn.Linear, torch.optim.AdamW, Any]:
        model = linear()
        groups: list[dict[str, Any]] = [
            {"params": [model.weight], "lr": 0.1},
            {"params": [model.bias], "betas": (0.5, 0.6)},
        ]
        optimizer = torch.optim.AdamW(groups, 0.02)
        return model, optimizer, SCHEDULES[schedule](optimizer)

    def go_on(model: nn.Linear, optimizer: torch.optim.AdamW, rates: Any, steps: int) -> list[list[float]]:
        found = []
        for _ in range(steps):
            step(model, optimizer)
            rates.step()
            found.append([group["lr"] for group in optimizer.param_groups])
        return found

    def change(optimizer: torch.optim.AdamW) -> None:
        optimizer.param_groups[1] |= {"weight_decay": 0.25, "betas": (0.7, 0.8)}

    model, optimizer, rates = begin()
    go_on(model, optimizer, rates, 5)
    change(optimizer)
    expected = go_on(model, optimizer, rates, 5)
    weight = model.weight.detach().clone()
    model, optimizer, rates = begin()
    with atoll.join("allreduce:every=2") as run:
        run.wrap(model, optimizer, scheduler=rates)
        go_on(model, optimizer, rates, 5)
        change(optimizer)
        run.checkpoint(tmp_path / "node")
    model, optimizer, rates = begin()
    with atoll.join("allreduce:every=2") as run:
        run.wrap(model, optimizer, scheduler=rates)
        assert run.resume(tmp_path / "node")
        assert optimizer.param_groups[1]["weight_decay"] == 0.25
        assert optimizer.param_groups[1]["betas"] == (0.7, 0.8)
        assert go_on(model, optimizer, rates, 5) == expected
        assert run.global_step == 10
    assert torch.equal(model.weight, weight)


def test_rates_of_a_checkpoint_without_a_schedule(tmp_path: Path) -> None:
    """A script may set its rates itself."""
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with atoll.join("none") as run:
        run.wrap(model, optimizer)
        optimizer.param_groups[0]["lr"] = 0.003
        run.checkpoint(tmp_path / "node")
        optimizer.param_groups[0]["lr"] = 0.1
        run.resume(tmp_path / "node")
    assert optimizer.param_groups[0]["lr"] == 0.003
    groups: list[dict[str, Any]] = [{"params": [model.weight]}, {"params": [model.bias]}]
    other = torch.optim.SGD(groups, 0.1)
    with atoll.join("none") as run:
        run.wrap(model, other)
        with pytest.raises(CheckpointError, match=r"node: the optimisers have \[2\] groups"):
            run.resume(tmp_path / "node")
    with atoll.join("none") as run:
        run.wrap(model, optimizer, scheduler=LambdaLR(optimizer, lambda _: 1.0))
        with pytest.raises(CheckpointError, match=r"node: has 0 schedules, and run\.wrap was given 1"):
            run.resume(tmp_path / "node")


class Odd:
    """A schedule whose state has no plain words."""

    def state_dict(self) -> dict[str, Any]:
        return {"kept": {"where": object()}}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def test_a_schedule_that_cannot_be_saved(tmp_path: Path) -> None:
    model = linear()
    with atoll.join("none") as run:
        run.wrap(model, torch.optim.SGD(model.parameters(), 0.1), scheduler=Odd())
        with pytest.raises(CheckpointError, match=r"the state of Odd, 'kept', 'where': a object cannot be saved"):
            run.checkpoint(tmp_path / "node")
    assert not (tmp_path / "node").exists()


def test_who_is_handed_a_model_goes_on_at_its_step(tmp_path: Path) -> None:
    """With its schedule too; and so does a checkpoint of it."""
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    schedule = LambdaLR(optimizer, lambda at: 1 / (1 + at))
    plateau = ReduceLROnPlateau(optimizer)
    with atoll.join("allreduce:every=2") as run:
        run.wrap(model, optimizer, scheduler=[schedule, plateau])
        for _ in range(3):
            step(model, optimizer)
            schedule.step()
        assert (run.steps, run.global_step) == (3, 3)
        assert run._agent is not None
        replica = run._agent._replica
        assert replica is not None
        replica.take_over(np.zeros_like(replica.work), {}, 100)
        step(model, optimizer)
        schedule.step()
        assert (run.steps, run.global_step, schedule.last_epoch) == (4, 101, 101)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 / 102)
        replica.take_over(np.zeros_like(replica.work), {}, 50)
        assert run.global_step == 101  # it never goes back
        run.checkpoint(tmp_path / "node")
    with atoll.join("allreduce:every=2") as run:
        model = linear()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        schedule = LambdaLR(optimizer, lambda at: 1 / (1 + at))
        run.wrap(model, optimizer, scheduler=[schedule, ReduceLROnPlateau(optimizer)])
        run.resume(tmp_path / "node")
        step(model, optimizer)
        schedule.step()
        assert (run.steps, run.global_step, schedule.last_epoch) == (5, 102, 102)


def test_settings_that_are_tensors_or_functions() -> None:
    model = linear()
    optimizer = torch.optim.AdamW(model.parameters(), torch.tensor(0.1), capturable=False)
    optimizer.param_groups[0]["adjust"] = min
    rate = optimizer.param_groups[0]["lr"]
    both = Optimizers([optimizer])
    saved = both.save()
    rate.fill_(0.5)
    both.load(saved)
    assert optimizer.param_groups[0]["lr"] is rate
    assert float(rate) == pytest.approx(0.1)
    assert optimizer.param_groups[0]["adjust"] is min

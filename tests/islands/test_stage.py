"""Stages: what comes of a batch is what one process would have made of it, with the weights that it met."""

import itertools
import random
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim import SGD, AdamW, Optimizer

from atoll.islands.stage import WEIGHTS, StageModel, Weights

CLASSES = 3


def make() -> nn.Sequential:
    """Convolution, batch norm, dropout."""
    torch.random.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Conv2d(4, 4, 3),
        nn.Flatten(),
        nn.Linear(64, 16),
        nn.Tanh(),
        nn.Linear(16, CLASSES),
    )


ENDS = (0, 4, 6, 9)


def batch(number: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(number)
    return torch.randn(5, 1, 8, 8, generator=draw), torch.randint(CLASSES, (5,), generator=draw)


def momentum(parameters: Any) -> Optimizer:
    return SGD(parameters, lr=0.05, momentum=0.9)


def staged(optimizer: Callable[[Any], Optimizer] = momentum, **settings: Any) -> list[StageModel]:
    model = make()
    found = []
    for start, stop in itertools.pairwise(ENDS):
        layers = model[start:stop]
        parameters = list(layers.parameters())
        found.append(StageModel(layers, [optimizer(parameters)] if parameters else [], **settings))
    return found


def loss_on(targets: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda outputs: nn.functional.cross_entropy(outputs, targets)


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("optimizer", [momentum, lambda parameters: AdamW(parameters, lr=0.01)])
def test_one_batch_at_a_time_is_what_one_process_does(
    weights: Weights,
    recompute: bool,  # noqa: FBT001
    optimizer: Callable[[Any], Optimizer],
) -> None:
    whole = make()
    alone = optimizer(whole.parameters())
    stages = staged(optimizer, weights=weights, recompute=recompute)
    for number in range(8):
        inputs, targets = batch(number)
        torch.random.manual_seed(number)
        alone.zero_grad()
        expected = nn.functional.cross_entropy(whole(inputs), targets)
        torch.autograd.backward(expected)
        torch.random.manual_seed(number)
        values = inputs
        for stage in stages[:-1]:
            values = stage.forward(number, values)
        loss, gradient = stages[-1].learn(values, loss_on(targets))
        assert loss == float(expected.detach())
        for stage in reversed(stages[:-1]):
            assert gradient is not None
            gradient = stage.backward(number, gradient)
        own = [each.grad for stage in stages for each in stage.layers.parameters()]
        for one, parameter in zip(own, whole.parameters(), strict=True):
            assert one is not None
            assert parameter.grad is not None
            assert torch.equal(one, parameter.grad), "gradients to the last bit"
        alone.step()
        for stage in stages:
            stage.update()
    for stage, (start, stop) in zip(stages, itertools.pairwise(ENDS), strict=True):
        for one, other in zip(stage.layers.state_dict().values(), whole[start:stop].state_dict().values(), strict=True):
            assert torch.equal(one, other), "parameters, and what batch norm has counted"


class Delayed:
    """Delayed updates, written anew: a batch's gradient is that of the whole model, each stage with the weights that
    the batch met there, and is taken off what the stage's weights are when it comes back.
    """

    def __init__(self) -> None:
        model = make()
        self._layers = [model[start:stop] for start, stop in itertools.pairwise(ENDS)]
        self.weights = [{k: v.detach().clone() for k, v in each.named_parameters()} for each in self._layers]
        self._speed = [{k: torch.zeros_like(v) for k, v in each.items()} for each in self.weights]
        self._met: dict[tuple[int, int], tuple[dict[str, Tensor], Tensor]] = {}

    def forward(self, stage: int, number: int, random_state: Tensor) -> None:
        met = {name: value.clone().requires_grad_() for name, value in self.weights[stage].items()}
        self._met[stage, number] = met, random_state

    def update(self, stage: int, number: int) -> None:
        values, targets = batch(number)
        with torch.random.fork_rng():
            for place, layers in enumerate(self._layers):
                met, random_state = self._met[place, number]
                torch.set_rng_state(random_state)
                values = functional_call(layers, met, values)
        loss = nn.functional.cross_entropy(values, targets)
        names = list(self.weights[stage])
        found = torch.autograd.grad(loss, [self._met[stage, number][0][name] for name in names], allow_unused=True)
        for name, gradient in zip(names, found, strict=True):
            assert gradient is not None
            speed = self._speed[stage][name]
            speed.mul_(0.9).add_(gradient)
            self.weights[stage][name] -= 0.05 * speed


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 4), st.booleans())
def test_stashed_weights_are_delayed_updates(seed: int, most: int, recompute: bool) -> None:  # noqa: FBT001
    draw = random.Random(seed)
    torch.random.manual_seed(seed)
    stages, expected = staged(recompute=recompute), Delayed()
    forward: list[deque[tuple[int, Tensor]]] = [deque() for _ in stages]
    backward: list[deque[tuple[int, Tensor]]] = [deque() for _ in stages]
    begun = 0
    late = 0
    for _ in range(60):
        ready = [(place, "backward") for place in range(2) if backward[place]]
        ready += [(0, "forward")] if len(stages[0].held) < most else []
        ready += [(place, "forward") for place in (1, 2) if forward[place]]
        place, what = draw.choice(ready)
        if what == "forward":
            if place == 0:
                number, values, begun = begun, batch(begun)[0], begun + 1
            else:
                number, values = forward[place].popleft()
            expected.forward(place, number, torch.get_rng_state())
            if place < 2:
                forward[place + 1].append((number, stages[place].forward(number, values)))
                continue
            _, gradient = stages[2].learn(values, loss_on(batch(number)[1]))
        else:
            number, given_gradient = backward[place].popleft()
            gradient = stages[place].backward(number, given_gradient)
            late = max(late, stages[place].staleness)
        if place:
            assert gradient is not None
            backward[place - 1].append((number, gradient))
        stages[place].update()
        expected.update(place, number)
        assert stages[place].versions <= most
    assert late < most, "staleness is below how many are let in"
    for stage, weights in zip(stages, expected.weights, strict=True):
        for name, value in stage.layers.named_parameters():
            torch.testing.assert_close(value.detach(), weights[name], rtol=1e-5, atol=1e-6)


def linear(weights: Weights, **settings: Any) -> StageModel:
    layers = nn.Sequential(nn.Linear(2, 2, bias=False))
    with torch.no_grad():
        layers[0].weight.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))  # type: ignore[operator]
    return StageModel(layers, [SGD(layers.parameters(), lr=1.0)], weights=weights, **settings)


def weight_of(stage: StageModel) -> Tensor:
    return next(iter(stage.layers.parameters()))


def test_which_weights_a_backward_pass_has() -> None:
    ones = torch.ones(1, 2)
    found = {}
    for weights in ("stash", "current"):
        stage = linear(weights)
        before = weight_of(stage).detach().clone()
        stage.forward(0, ones)
        stage.forward(1, ones)
        stage.backward(0, ones)
        stage.update()
        now = weight_of(stage).detach().clone()
        found[weights] = stage.backward(1, ones)
        assert stage.staleness == 1
        wanted = before if weights == "stash" else now
        assert found[weights] is not None
        assert torch.equal(found[weights], ones @ wanted)  # type: ignore[arg-type]
    assert not torch.equal(found["stash"], found["current"])  # type: ignore[arg-type]


def test_expected_weights_are_those_that_come_if_updates_go_on() -> None:
    stage, ones = linear("predict"), torch.ones(1, 2)
    outputs, number = {}, 0
    for _ in range(40):  # every gradient is the same, so every update is, and each batch is one update away
        outputs[number] = stage.forward(number, ones)
        number += 1
        if len(stage.held) == 2:
            stage.backward(number - 2, ones)
            stage.update()
    stage.backward(number - 1, ones)
    weight = weight_of(stage).detach()
    torch.testing.assert_close(outputs[number - 1], ones @ weight.T, msg="the forward pass had the weights of now")


def test_what_comes_late_may_count_less() -> None:
    ones = torch.ones(1, 2)
    steps = []
    for slower in (False, True):
        stage = linear("stash", slower=slower)
        stage.forward(0, ones)
        stage.forward(1, ones)
        stage.backward(0, ones)
        stage.update()
        before = weight_of(stage).detach().clone()
        stage.backward(1, ones)
        stage.update()
        steps.append(weight_of(stage).detach() - before)
    torch.testing.assert_close(steps[1], steps[0] / 2)


def test_what_is_given_up_frees_what_it_kept() -> None:
    stage, ones = linear("stash"), torch.ones(1, 2)
    for number in range(3):
        stage.forward(number, ones)
        weight_of(stage).grad = torch.ones(2, 2)
        stage.update()
    assert (stage.held, stage.versions) == ((0, 1, 2), 4)
    stage.give_up(1)
    stage.give_up(7)
    assert (stage.held, stage.versions) == ((0, 2), 3)


def test_no_batch_is_taken_in_for_which_there_is_no_room() -> None:
    stage = staged()[0]
    for number in range(3):
        assert stage.has_room, "nobody has said how much there is"
        stage.forward(number, batch(number)[0])
    most = stage.most_bytes
    stage = staged(memory_bytes=0.7 * most)[0]
    taken = 0
    while stage.has_room:
        stage.forward(taken, batch(taken)[0])
        taken += 1
    assert 0 < taken < 3, "one there always is room for"
    assert stage.used_bytes <= 0.7 * most
    stage.give_up(0)
    assert stage.most_bytes > stage.used_bytes

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from atoll.training.parameters import Parameters, Tensors
from atoll.vectors import WHOLE, of_array


def model() -> nn.Sequential:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 4), nn.Linear(4, 2))
    net[2].requires_grad_(requires_grad=False)
    return net


def first_weight(net: nn.Sequential) -> torch.Tensor:
    return next(net.parameters())


def gradient_of(net: nn.Sequential) -> torch.Tensor:
    gradient = first_weight(net).grad
    assert gradient is not None
    return gradient


def test_ranges_are_named_and_gapless() -> None:
    parameters = Parameters(model())
    assert [each.name for each in parameters.ranges][:2] == ["0.weight", "0.bias"]
    assert "2.weight" not in [each.name for each in parameters.ranges]  # frozen
    assert "1.running_mean" not in [each.name for each in parameters.ranges]  # statistics are no weights
    assert parameters.buffer_size == 8, "and whole numbers travel with neither"
    ends = [0, *(each.stop for each in parameters.ranges)]
    assert [each.start for each in parameters.ranges] == ends[:-1]
    assert parameters.size == ends[-1]


@given(st.integers(0, 100))
def test_what_is_written_is_read(seed: int) -> None:
    net = model()
    parameters = Parameters(net)
    values = of_array(np.random.default_rng(seed).normal(size=parameters.size))
    parameters.write(values)
    assert torch.equal(parameters.read(), values)
    first = parameters.ranges[0]
    np.testing.assert_array_equal(first_weight(net).detach().numpy().ravel(), values[first.start : first.stop])
    parameters.add_each([(WHOLE, torch.ones_like(values))])
    np.testing.assert_allclose(parameters.read(), values + 1)


def test_buffers_are_a_vector_of_their_own() -> None:
    net = model()
    parameters = Parameters(net)
    before = parameters.read()
    np.testing.assert_array_equal(parameters.read_buffers(), [0, 0, 0, 0, 1, 1, 1, 1])
    parameters.write_buffers(torch.tensor([-1.0, 2, 3, 4, 5, -6, 7, 8]))
    np.testing.assert_array_equal(net[1].running_mean, [-1, 2, 3, 4])
    np.testing.assert_array_equal(net[1].running_var, [5, 0, 7, 8], "a variance is not negative")
    np.testing.assert_array_equal(parameters.read(), before)
    assert len(Parameters(nn.Linear(2, 2)).read_buffers()) == 0


def test_a_copy_stays_what_it_was() -> None:
    parameters = Parameters(model())
    before = parameters.read()
    kept = before.clone()
    parameters.write(torch.zeros_like(before))
    np.testing.assert_array_equal(before, kept)


def test_tied_weights_are_one_range() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Linear(3, 3, bias=False)
            self.two = nn.Linear(3, 3, bias=False)
            self.two.weight = self.one.weight

    assert Parameters(Tied()).size == 9


def test_gradients() -> None:
    net = model()
    parameters = Parameters(net)
    assert not parameters.read_gradient().any()
    net(torch.ones(5, 3)).sum().backward()
    gradient = parameters.read_gradient()
    first = parameters.ranges[0]
    np.testing.assert_array_equal(gradient[first.start : first.stop], gradient_of(net).numpy().ravel())
    parameters.write_gradient(gradient * 2)
    np.testing.assert_allclose(parameters.read_gradient(), gradient * 2)


def test_training_goes_on_with_written_values() -> None:
    """Writing does not replace tensors, so the optimiser keeps its own."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    parameters = Parameters(net)
    parameters.write(torch.zeros(parameters.size))
    net(torch.ones(5, 3)).sum().backward()
    optimizer.step()
    assert parameters.read().any()


@given(start=st.integers(0, 100), stop=st.integers(0, 100), channels_last=st.booleans())
def test_a_span_is_read_replaced_and_added_to(start: int, stop: int, *, channels_last: bool) -> None:
    net = nn.Sequential(nn.Conv2d(2, 3, 2), nn.Linear(3, 4))
    if channels_last:
        net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    parameters = Parameters(net)
    start, stop = min(start, stop) % parameters.size, max(start, stop) % parameters.size
    span = slice(min(start, stop), max(start, stop) + 1)
    values = torch.arange(parameters.size, dtype=torch.float32)
    parameters.write(values)
    np.testing.assert_array_equal(parameters.read(span), values[span])
    values[span] += 0.5
    middle = (span.start + span.stop) // 2
    halves = slice(span.start, middle), slice(middle, span.stop)  # the tensor in the middle is in both
    parameters.add_each([(half, torch.full((half.stop - half.start,), 0.5)) for half in halves])
    np.testing.assert_array_equal(parameters.read(), values)
    values[span] = -1
    parameters.write(values[span], span)
    np.testing.assert_array_equal(parameters.read(), values)


@given(st.lists(st.tuples(st.integers(0, 41), st.integers(0, 41)), min_size=1, max_size=5), st.booleans())
def test_several_spans_are_read_at_once(edges: list[tuple[int, int]], half: bool) -> None:  # noqa: FBT001 - drawn
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 1))
    if half:
        net[1].to(torch.bfloat16)
    parameters = Parameters(net)
    assert parameters.size == 41
    spans = [slice(min(pair), max(pair)) for pair in edges]
    for span, found in zip(spans, parameters.read_each(spans), strict=True):
        assert found.dtype == torch.float32
        np.testing.assert_array_equal(found, parameters.read()[span])


@pytest.mark.parametrize(
    "change",
    [
        lambda net: net[0].register_parameter("weight", nn.Parameter(torch.zeros(4, 3))),
        lambda net: net[0].register_parameter("more", nn.Parameter(torch.zeros(3))),
        lambda net: net[1].register_buffer("running_mean", torch.zeros(4)),
        lambda net: net.append(nn.Linear(2, 2)),
        lambda net: net.to(torch.bfloat16),
        lambda net: setattr(net[3], "bias", None),
    ],
)
def test_other_tensors_are_noticed(change: Callable[[nn.Sequential], object]) -> None:
    net = model()
    tensors = Tensors(net)
    net(torch.ones(5, 3)).sum().backward()
    torch.optim.SGD(net.parameters(), lr=0.1).step()
    before = tensors.are_there
    change(net)
    assert (before, tensors.are_there) == (True, False)
    assert Tensors(net).are_there

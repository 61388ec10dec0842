"""Training's stream and that of exchanges: what one writes, the other reads only then, and memory is not lost early."""

import gc
import weakref
from collections.abc import Callable
from functools import partial

import pytest
import torch

from atoll.training.streams import Streams

needs_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
GPU = torch.device("cuda")
SIZE = 1 << 24


def test_without_a_gpu_everything_is_done_at_once() -> None:
    streams = Streams(torch.device("cpu"))
    streams.enter()
    with streams.beside():
        assert streams.at_boundary(lambda: 5) == 5
    values = torch.ones(3)
    assert streams.shared(values) is values


def busy(milliseconds: float) -> None:
    """Keeps the current stream busy; it returns at once."""
    torch.cuda._sleep(int(milliseconds * 2e6))  # type: ignore[no-untyped-call]


def copy(model: torch.Tensor, change: torch.Tensor) -> None:
    model.copy_(change)


@needs_a_gpu
def test_exchanges_see_the_model_as_it_is_at_the_boundary() -> None:
    streams = Streams(GPU)
    model = torch.zeros(SIZE, device=GPU)
    for number in range(20):
        busy(5)
        model.fill_(number)
        seen = streams.at_boundary(lambda: streams.shared(model.clone()))
        model.fill_(-1)  # the next step
        with streams.beside():
            assert (seen == number).all()
        del seen


@needs_a_gpu
def test_training_sees_what_exchanges_have_computed_and_its_memory_stays() -> None:
    streams = Streams(GPU)
    model = torch.zeros(SIZE, device=GPU)
    for number in range(20):
        with streams.beside():
            busy(5)
            change = torch.full((SIZE,), float(number), device=GPU)
        busy(20)  # training is behind
        streams.at_boundary(partial(copy, model, change))
        del change
        with streams.beside():  # would get the same memory
            torch.full((SIZE,), -1.0, device=GPU)
        assert (model == number).all()


@needs_a_gpu
def test_exchanges_do_not_wait_for_steps() -> None:
    streams = Streams(GPU)
    model = torch.zeros(SIZE, device=GPU)
    change = torch.ones_like(model)
    with streams.beside():  # the first time, memory and kernels are loaded, which waits for everything
        torch.ones(5, device=GPU).sum().item()
    streams.at_boundary(lambda: copy(model, change))
    torch.cuda.synchronize()
    busy(500)
    streams.at_boundary(lambda: copy(model, change))  # a change only
    training = torch.cuda.current_stream().record_event()
    with streams.beside():
        assert torch.ones(5, device=GPU).sum().item() == 5
    assert not training.query()
    torch.cuda.synchronize()


@needs_a_gpu
def test_what_is_done_is_let_go() -> None:
    streams = Streams(GPU)

    class Work:
        def __call__(self) -> None:
            busy(50)

    work: Callable[[], None] = Work()
    kept = weakref.ref(work)
    streams.at_boundary(work)
    del work
    gc.collect()
    assert kept() is not None
    torch.cuda.synchronize()
    with streams.beside():
        pass
    assert kept() is None

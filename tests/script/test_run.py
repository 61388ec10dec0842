"""Scripts that train with others: in threads over loopback, and as processes on an emulated network."""

import copy
import gc
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import atoll
from atoll.config import RunConfig
from atoll.errors import AtollError, CheckpointError, StrategyError
from atoll.network import parse_network
from atoll.runs.emulated import run_emulated
from atoll.trace import Computed, Exchanged, Tested, read_trace
from tests.torchrun import run_until_it_ends
from tests.world.emulate.allowed import where_it_is_allowed

TRAINING = Path(__file__).with_name("training.py")
QUICK = parse_network('[[node]]\ncount = 3\nstep_s = 0.001\n[[link]]\namong = "*"\nlatency_ms = 1', name="quick")
ENVIRONMENT = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))


def examples(count: int = 64) -> TensorDataset:
    draw = torch.Generator().manual_seed(1)
    inputs = torch.randn(count, 4, generator=draw)
    return TensorDataset(inputs, (inputs.sum(1) > 0).long())


def train(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Any, epochs: int = 2) -> None:
    torch.manual_seed(7)
    for _ in range(epochs):
        for inputs, targets in batches:
            nn.functional.cross_entropy(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("strategy", ["none", "allreduce:every=4"])
@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
        torch.optim.AdamW,
        lambda p: torch.optim.AdamW(p, fused=True),
        lambda p: torch.optim.SGD(p, 0.1, foreach=True),
    ],
)
def test_alone_it_is_the_same_to_the_bit(strategy: str, make: Callable[[Any], torch.optim.Optimizer]) -> None:
    plain, wrapped = small(), small()
    loader = DataLoader(examples(), 8, shuffle=True)
    train(plain, make(plain.parameters()), loader)
    with atoll.join(strategy) as run:
        _, optimizer = run.wrap(wrapped, make(wrapped.parameters()))
        train(wrapped, optimizer, run.shard(loader))
        assert run.steps == 16
        assert run.members == (run.name,)
    for name, value in plain.state_dict().items():
        assert torch.equal(value, wrapped.state_dict()[name]), name


def test_a_compiled_model_is_the_same_to_the_bit() -> None:
    states = []
    for joins in (False, True):
        model: Any = torch.compile(small(), backend="eager")
        optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), 0.1)
        batches = DataLoader(examples(), 8)
        with atoll.join("allreduce:every=4") as run:
            if joins:
                model, optimizer = run.wrap(model, optimizer)
            train(model, optimizer, batches)
        states.append(model.state_dict())
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


class Others:
    """Threads that play other machines."""

    def __init__(self) -> None:
        self._failures: list[BaseException] = []
        self._threads: list[threading.Thread] = []

    def __call__(self, work: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - told by `wait`
                self._failures.append(error)

        self._threads.append(threading.Thread(target=guarded))
        self._threads[-1].start()

    def wait(self) -> None:
        for thread in self._threads:
            thread.join(60)
        assert not self._failures, self._failures


def test_two_machines(tmp_path: Path) -> None:
    """The second is handed what the first has learned, and both learn together; buffers travel too."""
    first = atoll.join("allreduce:every=2", listen="127.0.0.1:0", seats=4, out=tmp_path)
    model, optimizer = small(), None
    _, optimizer = first.wrap(model, torch.optim.SGD(model.parameters(), 0.1))
    loader = DataLoader(examples(), 8, shuffle=True)
    train(model, optimizer, first.shard(loader), epochs=1)
    together = threading.Event()
    others = Others()

    def join() -> None:
        mine = small()
        nn.init.zeros_(next(mine.parameters()))
        with atoll.join(invitation=first.invitation, out=tmp_path) as run:
            assert run.strategy == "allreduce:every=2"
            _, mine_optimizer = run.wrap(mine, torch.optim.SGD(mine.parameters(), 0.1))
            data = run.shard(DataLoader(examples(), 8, shuffle=True))
            while not together.is_set():
                train(mine, mine_optimizer, data, epochs=1)

    others(join)
    share = first.shard(loader)
    trace = tmp_path / "n0.jsonl"

    def exchanged() -> int:
        events = list(read_trace(trace))
        return sum(isinstance(event, Exchanged) and event.members == 2 for event in events)

    deadline = time.monotonic() + 30
    try:
        while exchanged() < 3 and time.monotonic() < deadline:
            train(model, optimizer, share, epochs=8)
        assert exchanged() >= 3
        assert len(first.members) == 2
        another = nn.Linear(4, 2)
        with (
            atoll.join(invitation=first.invitation) as third,
            pytest.raises(AtollError, match="10 values here and 74 in the run"),
        ):
            third.wrap(another, torch.optim.SGD(another.parameters(), 0.1))
        first.measure(0.5)
    finally:
        together.set()
        others.wait()
        first.close()
    events = list(read_trace(trace))
    assert any(isinstance(event, Tested) and event.measure == 0.5 for event in events)
    assert any(isinstance(event, Computed) for event in events)
    train(model, optimizer, loader)  # it may go on alone
    with pytest.raises(AtollError, match="this run is closed"):
        first.checkpoint(tmp_path / "too late")


def test_a_checkpoint_goes_on_exactly(tmp_path: Path) -> None:
    path = tmp_path / "node.safetensors"
    loader = DataLoader(examples(), 8)

    def run_for(epochs: int, *, resume: bool) -> dict[str, torch.Tensor]:
        model = small()
        with atoll.join("allreduce:every=2") as run:
            _, optimizer = run.wrap(model, torch.optim.AdamW(model.parameters(), 0.01))
            if resume:
                assert run.resume(path)
                assert run.steps == 8
            else:
                assert not run.resume(path)
            for epoch in range(epochs):
                train(model, optimizer, run.shard(loader), epochs=1)
                if epoch == 0 and not resume:
                    run.checkpoint(path)
        return model.state_dict()

    whole = run_for(3, resume=False)
    rest = run_for(2, resume=True)
    for name, value in whole.items():
        assert torch.equal(value, rest[name]), name
    torch.save(rest, tmp_path / "plain.pt")
    small().load_state_dict(torch.load(tmp_path / "plain.pt", weights_only=True))  # without Atoll
    with atoll.join("none") as run, pytest.raises(CheckpointError, match=r"call run\.wrap"):
        run.resume(path)


def test_what_cannot_work_is_refused() -> None:
    model, other = small(), small()
    with atoll.join("none") as run:
        with pytest.raises(StrategyError, match="not the model's"):
            run.wrap(model, torch.optim.SGD(other.parameters(), 0.1))
        run.wrap(model, torch.optim.SGD(model.parameters(), 0.1))
        with pytest.raises(AtollError, match="called before"):
            run.wrap(model, torch.optim.SGD(model.parameters(), 0.1))
    with pytest.raises(StrategyError):
        atoll.join("nonsense")


def test_a_collection_does_not_hold_up_a_step() -> None:
    """Python's collector has little to look at while a run lasts, and all of it afterwards."""
    model = small()
    with atoll.join("none") as run:
        run.wrap(model, torch.optim.SGD(model.parameters(), 0.1))
        assert gc.get_freeze_count() > 10_000
    assert gc.get_freeze_count() == 0


def test_what_models_are_made_of() -> None:
    """Tied and frozen weights, several groups, conversions after the wrap, accumulation, a scheduler, a scaler."""
    torch.manual_seed(0)
    embedding, out = nn.Embedding(10, 4), nn.Linear(4, 10, bias=False)
    out.weight = embedding.weight
    frozen = nn.Linear(4, 4).requires_grad_(requires_grad=False)
    model = nn.Sequential(embedding, frozen, nn.BatchNorm1d(4), out)
    before = copy.deepcopy(frozen.state_dict())
    groups: list[dict[str, Any]] = [{"params": [embedding.weight], "lr": 0.1}, {"params": model[2].parameters()}]
    optimizer = torch.optim.AdamW(groups, 0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)  # steps with infinite gradients are skipped
    with atoll.join("allreduce:every=1") as run:
        run.wrap(model, optimizer)
        model.to(torch.float64).to(torch.float32)
        for step in range(40):
            loss = nn.functional.cross_entropy(model(torch.tensor([1, 2, 3])), torch.tensor([2, 3, 4]))
            scaler.scale(loss * (1e38 if 8 < step < 14 else 1.0)).backward()  # type: ignore[no-untyped-call]
            if step % 2:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                schedule.step()
        assert 0 < run.steps < 20
    assert out.weight is embedding.weight
    assert all(torch.equal(value, before[name]) for name, value in frozen.state_dict().items())


# As processes ---


def emulated(tmp_path: Path, *arguments: str, strategy: str = "", limit_s: float = 60.0) -> Path:
    spec = RunConfig(
        network=QUICK,
        task="training.py",
        strategy=strategy,
        limit_s=limit_s,
        script=(str(TRAINING), str(tmp_path), *arguments),
    )
    trace = tmp_path / "run.jsonl"
    with where_it_is_allowed():
        for _ in run_emulated(spec, trace):
            pass
    return trace


def torchrun(processes: int, *command: str) -> None:
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    run_until_it_ends([*start, *command], env=ENVIRONMENT)


def test_gradients_every_step_are_what_ddp_does(tmp_path: Path) -> None:
    """A hundred steps on three nodes, within rounding; also where the optimiser calls what makes the gradients."""
    more = ["--optimizer", "adamw", "--accumulate", "2"]
    torchrun(3, str(TRAINING), str(tmp_path), "--how", "ddp", *more)
    reference = torch.load(tmp_path / "ddp.0.pt", weights_only=True)
    for closure in ([], ["--closure"]):
        emulated(tmp_path, *more, *closure)
        for node in range(3):
            left = tmp_path / f"atoll.{node}.pt"
            ours = torch.load(left, weights_only=True)
            left.unlink()
            for name, value in reference.items():
                torch.testing.assert_close(ours[name], value, rtol=1e-4, atol=1e-5)


def test_a_script_leaves_a_trace(tmp_path: Path) -> None:
    trace = emulated(tmp_path, "--steps", "20", strategy="allreduce:every=5,patience=100")
    events = list(read_trace(trace))
    rounds = [event for event in events if isinstance(event, Exchanged)]
    assert len({event.node for event in rounds}) == 3
    assert len(rounds) == 3 * 4
    assert len({event.digest for event in rounds}) == 4, "the same bytes on all nodes"
    assert sum(isinstance(event, Computed) for event in events) == 60

"""What the nodes of benchmarks/peers.py run: the training loop of examples/mnist.py, averaged by what users have today.

Needs torchft-nightly and hivemind, which are no part of Atoll's environment.
"""
# ruff: noqa: PLC0415 - each run needs one of them alone

import abc
import json
import os
import runpy
import socket
import time
from collections.abc import Callable, Coroutine
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import TCPStore
from torch.utils.data import DataLoader, Subset

from atoll.world.live.world import LiveWorld

Settings = dict[str, Any]
EXAMPLE = Path(__file__).parents[1] / "examples" / "mnist.py"
FIRST = "10.77.0.1"
DEVICE = "wan0"
TIMEOUT = timedelta(seconds=60)


class Sync(abc.ABC):
    """What averages models after steps."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    project: Callable[[], float]
    """One number of the model; that of a mean of models is the mean of theirs."""
    before: float | None = None
    """What it was before models were averaged last, where that can be seen."""

    @abc.abstractmethod
    def __init__(self, rank: int, count: int, model: nn.Module, settings: Settings) -> None: ...

    def after_step(self) -> bool:
        """Averages if that is due; whether it did, and the result is that of all."""
        return False


class Ddp(Sync):
    """torch's DistributedDataParallel on Gloo: gradients at every step."""

    def __init__(self, rank: int, count: int, model: nn.Module, settings: Settings) -> None:  # noqa: ARG002
        _gloo(rank, count)
        self.model = nn.parallel.DistributedDataParallel(model)
        self.optimizer = _sgd(model)


class Periodic(Sync):
    """torch's PeriodicModelAverager on Gloo: models every few steps."""

    def __init__(self, rank: int, count: int, model: nn.Module, settings: Settings) -> None:
        from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

        _gloo(rank, count)
        self.model = model
        self.optimizer = _sgd(model)
        self._every = settings["every"]
        self._averager = PeriodicModelAverager(period=self._every)
        self._steps = 0

    def after_step(self) -> bool:
        self.before = self.project()
        self._averager.average_parameters(list(self.model.parameters()))
        self._steps += 1
        return bool((self._steps - 1) % self._every == 0)


class Torchft(Sync):
    """torchft's LocalSGD, or DiLoCo; the first node has the lighthouse."""

    def __init__(self, rank: int, count: int, model: nn.Module, settings: Settings) -> None:  # noqa: ARG002
        from torchft.coordination import LighthouseServer
        from torchft.local_sgd import DiLoCo, LocalSGD
        from torchft.manager import Manager
        from torchft.process_group import ProcessGroupGloo

        here = f"10.77.0.{rank + 1}"
        os.environ["GLOO_SOCKET_IFNAME"] = DEVICE
        socket.gethostname = lambda: (
            here
        )  # it tells others to dial its host's name, which all nodes have in common here
        if rank == 0:
            self._lighthouse = LighthouseServer(
                bind="0.0.0.0:29510", min_replicas=2, join_timeout_ms=1000, heartbeat_timeout_ms=5000
            )
        store = TCPStore(here, 29520, is_master=True, wait_for_workers=False)
        self.model = model
        self.optimizer = _sgd(model)
        self._manager = Manager(
            pg=ProcessGroupGloo(timeout=timedelta(seconds=settings["timeout"])),
            min_replica_size=2,
            load_state_dict=self._load,
            state_dict=self._state,
            replica_id=f"node-{rank}",
            store_addr=here,
            store_port=29520,
            rank=0,
            world_size=1,
            lighthouse_addr=f"http://{FIRST}:29510",
            hostname=here,
            timeout=timedelta(seconds=settings["timeout"]),
            quorum_timeout=TIMEOUT,
            use_async_quorum=False,
            init_sync=False,
        )
        self._store = store
        self._steps, self._every = 0, settings["every"]
        if settings["peer"] == "torchft DiLoCo":
            outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
            around: Any = DiLoCo(self._manager, [model], self.optimizer, outer, sync_every=self._every)
        else:
            self.optimizer.register_step_post_hook(lambda *_: self._look())
            around = LocalSGD(self._manager, model, self.optimizer, sync_every=self._every)
        around.__enter__()
        self._around = around

    def after_step(self) -> bool:
        self._steps += 1
        return bool(self._steps % self._every == 0)

    def _look(self) -> None:
        self.before = self.project()

    def _state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def _load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])


class Hivemind(Sync):
    """hivemind's Optimizer with local updates: models averaged in half precision, beside training."""

    def __init__(self, rank: int, count: int, model: nn.Module, settings: Settings) -> None:
        import hivemind

        file = Path(settings["folder"]) / "first-peer"
        listen = [f"/ip4/10.77.0.{rank + 1}/tcp/0"]
        if rank == 0:
            self._dht = hivemind.DHT(host_maddrs=listen, start=True)
            told = file.with_suffix(".new")
            told.write_text("\n".join(str(each) for each in self._dht.get_visible_maddrs()))
            told.rename(file)
        else:
            while not file.exists():
                time.sleep(0.1)
            self._dht = hivemind.DHT(host_maddrs=listen, initial_peers=file.read_text().split(), start=True)
        self.model = model
        self.optimizer = hivemind.Optimizer(
            dht=self._dht,
            run_id="peers",
            target_batch_size=64 * settings["every"] * count,
            batch_size_per_step=64,
            optimizer=_sgd(model),
            use_local_updates=True,
            matchmaking_time=2.0,
            averaging_timeout=settings["timeout"],
            averager_opts={"request_timeout": 1.0},
            delay_state_averaging=True,
            state_averaging_compression=hivemind.compression.Float16Compression(),
            verbose=False,
        )


PEERS: dict[str, type[Sync]] = {
    "torch DDP": Ddp,
    "torch PeriodicModelAverager": Periodic,
    "torchft LocalSGD": Torchft,
    "torchft DiLoCo": Torchft,
    "hivemind": Hivemind,
}


def _gloo(rank: int, count: int) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = DEVICE
    dist.init_process_group("gloo", init_method=f"tcp://{FIRST}:29500", rank=rank, world_size=count)


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def train(world: LiveWorld, settings: Settings) -> Coroutine[Any, Any, dict[str, Any]]:
    """Connects before the run begins; then trains for as long as it is told."""
    names = sorted([world.name, *world.peer_names])
    rank, count = names.index(world.name), len(names)
    example = runpy.run_path(str(EXAMPLE))
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data, test = example["load"](Path(settings["data"]) if settings["data"] else None)
    model = example["make_model"](data.tensors[0].shape[-1])
    sync: list[Sync] = []

    async def run() -> dict[str, Any]:
        return await world.aside(lambda: _loop(world, sync[0], example, (data, test), settings))

    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(settings["seed"]))
    data = Subset(data, order[rank::count].tolist())
    torch.manual_seed(settings["seed"] * count + rank)
    sync.append(PEERS[settings["peer"]](rank, count, model, settings))
    return run()


def _loop(
    world: LiveWorld, sync: Sync, example: dict[str, Any], examples: tuple[Any, Any], settings: Settings
) -> dict[str, Any]:
    """The loop of the example.  A step takes as long as the network says; what is sent during it costs nothing more."""
    model, optimizer = sync.model, sync.optimizer
    own = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
    size = sum(each.numel() for each in own.parameters())
    probe = torch.randn(size, generator=torch.Generator().manual_seed(1)).double()
    folder = Path(settings["folder"])
    step, longest_s = 0, 0.0
    data, test = examples
    loader = DataLoader(data, batch_size=64, shuffle=True)

    def project() -> float:
        return float(torch.cat([each.detach().flatten() for each in own.parameters()]).double() @ probe)

    sync.project = project
    with (folder / f"told.{world.name}.jsonl").open("w", buffering=1) as told:
        since = time.monotonic()
        while not (folder / "stop").exists():
            for images, labels in loader:
                loss = nn.functional.cross_entropy(model(images), labels)
                loss.backward()  # type: ignore[no-untyped-call]
                time.sleep(max(0.0, since + world.step_s - time.monotonic()))
                optimizer.step()
                step += 1
                if sync.after_step():
                    told.write(json.dumps({"synced": step, "before": sync.before, "value": project()}) + "\n")
                optimizer.zero_grad()
                longest_s = max(longest_s, time.monotonic() - since - world.step_s)
                since = time.monotonic()
                if step % settings["test_every"] == 0:
                    found = example["accuracy"](own, test)
                    news = {"tested": world.now, "value": found, "steps": step, "longest_s": longest_s, "at": project()}
                    told.write(json.dumps(news) + "\n")
                if (folder / "stop").exists():
                    break
    return {}

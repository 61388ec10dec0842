"""A script for tests: trains a small model, and leaves what it came to in a file.

training.py FOLDER --how atoll|alone|ddp [--optimizer sgd|adamw] [--accumulate N] [--steps N] [--closure]
"""

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import atoll

BATCH = 4


def data(count: int) -> TensorDataset:
    draw = torch.Generator().manual_seed(1)
    inputs = torch.randn(count, 8, generator=draw)
    return TensorDataset(inputs, (inputs[:, :4].sum(1) > inputs[:, 4:].sum(1)).long())


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("folder", type=Path)
    options.add_argument("--how", default="atoll")
    options.add_argument("--optimizer", default="sgd")
    options.add_argument("--accumulate", type=int, default=1)
    options.add_argument("--steps", type=int, default=100)
    options.add_argument("--closure", action="store_true", help="gradients are made in the optimiser's step")
    options.add_argument("--strategy", default="allreduce:quantity=gradient,patience=100")
    arguments = options.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
    examples = data(3 * BATCH * arguments.steps * arguments.accumulate)
    name = "alone"
    if arguments.how == "ddp":
        torch.distributed.init_process_group("gloo")
        name = str(torch.distributed.get_rank())
        model = nn.parallel.DistributedDataParallel(model)
        loader = DataLoader(examples, BATCH, sampler=DistributedSampler(examples, shuffle=False))
    else:
        loader = DataLoader(examples, BATCH)
    make = {"sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), "adamw": lambda p: torch.optim.AdamW(p, 0.01)}
    optimizer: Any = make[arguments.optimizer](model.parameters())  # type: ignore[no-untyped-call]
    batches: Iterable[Any] = loader
    if arguments.how == "atoll":
        run = atoll.join(strategy=arguments.strategy)
        name = run.name
        if name != "0":  # all begin like the first
            nn.init.ones_(next(model.parameters()))
        run.wrap(model, optimizer)
        batches = run.shard(loader)
    for step, (inputs, targets) in enumerate(batches, 1):

        def closure(inputs: Tensor = inputs, targets: Tensor = targets) -> Any:
            loss = nn.functional.cross_entropy(model(inputs), targets) / arguments.accumulate
            loss.backward()
            return loss

        is_last = step % arguments.accumulate == 0
        if is_last and arguments.closure:
            optimizer.step(closure)
        else:
            closure()
            if is_last:
                optimizer.step()
        if is_last:
            optimizer.zero_grad()
    state = {key.removeprefix("module."): value for key, value in model.state_dict().items()}
    torch.save(state, arguments.folder / f"{arguments.how}.{name}.pt")
    if arguments.how == "ddp":
        torch.distributed.barrier()  # who leaves first may take the others' connections with it
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()

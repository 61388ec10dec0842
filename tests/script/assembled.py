"""A script for tests, under torchrun: leaves its node's whole model before and after every step's exchange.

assembled.py FOLDER ddp|fsdp [--join INVITATION] [--out FOLDER] [--meetings N]

It ends after so many exchanges that changed its model, or when another has ended so.
"""

import argparse
import itertools
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard

import atoll

EVERY = 4
RATE = 0.1
BATCH = 4


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))


def batch(node: str, rank: int, step: int) -> tuple[Tensor, Tensor]:
    """What a process learns from at a step."""
    draw = torch.Generator().manual_seed(1_000_000 * int(node.removeprefix("n")) + 1000 * rank + step)
    inputs = torch.randn(BATCH, 6, generator=draw)
    return inputs, (inputs.sum(1) > 0).long()


def whole(model: nn.Module) -> dict[str, Tensor]:
    """The model as one process would have it; empty on all processes but the first."""
    module = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
    found = get_model_state_dict(module, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    return {name: value.clone() for name, value in found.items() if isinstance(value, Tensor)}


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("folder", type=Path)
    options.add_argument("how", choices=("ddp", "fsdp"))
    options.add_argument("--join")
    options.add_argument("--out", type=Path)
    options.add_argument("--meetings", type=int, default=8)
    arguments = options.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = make_model()
    if arguments.how == "fsdp":
        for layer in (model[0], model[2]):  # type: ignore[index]
            fully_shard(layer)
        fully_shard(model)
    else:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    before: list[dict[str, Tensor]] = []
    after: list[dict[str, Tensor]] = []
    optimizer.register_step_post_hook(lambda *_: before.append(whole(model)))
    run = atoll.join(
        f"allreduce:every={EVERY},patience=100",
        invitation=arguments.join,
        listen=None if arguments.join else "127.0.0.1:0",
        sharded=arguments.how == "fsdp",
        out=arguments.out,
    )
    invitation = run.invitation
    if rank == 0 and not arguments.join:
        print(f"invitation: {invitation}", flush=True)  # noqa: T201 - to the test
    run.wrap(model, optimizer)
    met = 0
    for step in itertools.count():
        inputs, targets = batch(run.name, rank, step)
        nn.functional.cross_entropy(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        after.append(whole(model))
        met += rank == 0 and not torch.equal(before[-1]["0.bias"], after[-1]["0.bias"])
        over = torch.tensor(float(met >= arguments.meetings or (arguments.folder / "over").exists()))
        dist.broadcast(over, 0)
        if over:
            break
    if rank == 0:
        torch.save({"node": run.name, "before": before, "after": after}, arguments.folder / f"{run.name}.pt")
        (arguments.folder / "over").touch()
    run.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

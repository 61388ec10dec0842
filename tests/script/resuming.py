"""A torchrun script for tests: trains with DDP, saves, and goes on from there if it was saved before."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import atoll

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    run = atoll.join("none")
    run.wrap(model, optimizer)
    run.resume(folder / "node")
    for _ in range(5):
        model(torch.full((3, 4), 1.0 + dist.get_rank())).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    run.checkpoint(folder / "node")
    torch.save(model.state_dict(), folder / f"{run.steps}.{dist.get_rank()}.pt")
    run.close()
    dist.destroy_process_group()

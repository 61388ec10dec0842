"""A torchrun script for tests: trains with DDP, saves, and goes on from there if it was saved before.

Every process asks for a file of its own name: only that of the first is ever written.
"""

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
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 7])
    run = atoll.join("none")
    run.wrap(model, optimizer, scheduler=schedule)
    run.resume(folder / f"node {dist.get_rank()}")
    for _ in range(5):
        model(torch.arange(12.0).view(3, 4) * (1.0 + dist.get_rank())).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    run.checkpoint(folder / f"node {dist.get_rank()}")
    rates = {"lr": optimizer.param_groups[0]["lr"], "epoch": schedule.last_epoch, "step": run.global_step}
    torch.save({**model.state_dict(), **rates}, folder / f"{run.steps}.{dist.get_rank()}.pt")
    run.close()
    dist.destroy_process_group()

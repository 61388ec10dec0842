"""The digits of mnist.py with several processes in each node: DDP inside, Atoll between.

    torchrun --nproc-per-node 8 examples/torchrun_ddp.py --listen 0.0.0.0:7700     # prints an invitation
    torchrun --nproc-per-node 4 examples/torchrun_ddp.py --join INVITATION         # any other machine, at any time

Inside a node torch.distributed does the work (NCCL on GPUs, Gloo elsewhere); its first process speaks for the node.
Lines marked with "Atoll" are all that was added to a DDP script.
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from mnist import accuracy, load, make_model
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import atoll  # Atoll


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", type=Path, help="the folder of MNIST; scikit-learn's digits if left out")
    options.add_argument("--epochs", type=int, default=3)
    options.add_argument("--listen", help="HOST:PORT: begin a run")
    options.add_argument("--join", help="an invitation: join one")
    options.add_argument("--out", type=Path, help="a folder for the trace")
    options.add_argument("--save", type=Path, help="a folder for what every process ends with")
    arguments = options.parse_args()
    gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if gpu else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    torch.manual_seed(0)

    train, test = load(arguments.data)
    loader = DataLoader(train, batch_size=32, shuffle=True)
    model = DistributedDataParallel(make_model(train.tensors[0].shape[-1]).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    run = atoll.join(  # Atoll
        strategy="allreduce:every=8,handover=optimizer",
        invitation=arguments.join,
        listen=arguments.listen,
        out=arguments.out,
    )
    if run.invitation:
        print("invitation:", run.invitation, flush=True)
    model, optimizer = run.wrap(model, optimizer)  # Atoll

    for epoch in range(arguments.epochs):
        for images, labels in run.shard(loader):  # Atoll: in place of a DistributedSampler
            nn.functional.cross_entropy(model(images.to(device)), labels.to(device)).backward()
            optimizer.step()
            optimizer.zero_grad()
        if dist.get_rank() == 0:
            value = accuracy(model.module, test)
            run.measure(value)  # Atoll
            print(f"epoch {epoch}: accuracy {value:.4f}", flush=True)
    if arguments.save:
        torch.save(model.module.state_dict(), arguments.save / f"{run.name}.{dist.get_rank()}.pt")
    run.close()  # Atoll
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""The GPT of char_gpt.py, spread over the processes of each node: FSDP2 inside, Atoll between.

    torchrun --nproc-per-node 2 examples/torchrun_fsdp.py --listen 0.0.0.0:7700     # prints an invitation
    torchrun --nproc-per-node 2 examples/torchrun_fsdp.py --join INVITATION         # any other machine, at any time

Every process exchanges the part of the model that it has with those who have the same part elsewhere, all at once; so
nodes must have equally many processes.  Lines marked with "Atoll" are all that was added to an FSDP script.
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from char_gpt import GPT, Text, cross_entropy
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader

import atoll  # Atoll


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", type=Path, help="a text; a module of Python if left out")
    options.add_argument("--steps", type=int, default=300)
    options.add_argument("--width", type=int, default=64)
    options.add_argument("--layers", type=int, default=2)
    options.add_argument("--listen", help="HOST:PORT: begin a run; the next ports are the other processes'")
    options.add_argument("--join", help="an invitation: join one")
    options.add_argument("--out", type=Path, help="a folder for the traces")
    arguments = options.parse_args()
    gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if gpu else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    torch.manual_seed(0)

    text = (arguments.data or Path(argparse.__file__)).read_text()
    letters = sorted(set(text))
    tokens = torch.tensor([letters.index(letter) for letter in text])
    loader = DataLoader(Text(tokens, 64), batch_size=16, shuffle=True, drop_last=True)
    model = GPT(len(letters), 64, arguments.width, arguments.layers, heads=4).to(device)
    mesh = dist.init_device_mesh(device.type, (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    run = atoll.join(  # Atoll
        strategy="allreduce:every=8",
        invitation=arguments.join,
        listen=arguments.listen,
        sharded=True,
        out=arguments.out,
    )
    if dist.get_rank() == 0 and run.invitation:
        print("invitation:", run.invitation, flush=True)
    model, optimizer = run.wrap(model, optimizer)  # Atoll
    batches = run.shard(loader)  # Atoll

    while run.steps < arguments.steps:
        for x, y in batches:
            loss = cross_entropy(model(x.to(device)), y.to(device))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if run.steps % 20 == 0 and dist.get_rank() == 0:
                print(f"step {run.steps}: loss {loss.item():.4f}", flush=True)
            if run.steps >= arguments.steps:
                break
    run.close()  # Atoll
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

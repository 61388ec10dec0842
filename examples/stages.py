"""A transformer that no node need hold alone: its blocks are spread over the nodes that are here.

    python examples/stages.py --data FILE                                                # alone
    atoll run triangle --world emulate examples/stages.py --data FILE --memory 6MB       # three nodes hold it together
    atoll node --listen 0.0.0.0:7700 examples/stages.py --data FILE                      # for real; others join

FILE is any text; without --data it learns a module of Python.  Every node runs this same script; which blocks a node
trains is worked out from how fast nodes and links are, and anew when a node comes or goes.
"""

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import atoll

LENGTH = 32


class Embedding(nn.Module):
    def __init__(self, letters: int, width: int) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(letters, width), nn.Embedding(LENGTH, width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.letters(tokens) + self.places.weight


class Block(nn.Module):
    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.norm, self.heads = nn.LayerNorm(width), heads
        self.attention, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count, length, width = x.shape
        q, k, v = self.attention(self.norm(x)).view(count, length, 3 * self.heads, -1).transpose(1, 2).chunk(3, 1)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(count, length, width))
        return x + self.feed(x)


def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=Path(argparse.__file__))
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--blocks", type=int, default=6)
    parser.add_argument("--updates", type=int, default=400)
    parser.add_argument("--memory", help="what this node may use, as 8GB; what is free if left out")
    parser.add_argument("--save", type=Path, help="where the whole model goes at the end")
    options = parser.parse_args()

    text = options.data.read_text()
    letters = sorted(set(text))
    places = {letter: place for place, letter in enumerate(letters)}
    tokens = torch.tensor([places[letter] for letter in text])
    count = (len(tokens) - 1) // LENGTH
    inputs, targets = (tokens[start : start + count * LENGTH].view(count, LENGTH) for start in (0, 1))
    test = inputs[:50], targets[:50]
    loader = DataLoader(TensorDataset(inputs[50:], targets[50:]), batch_size=16, shuffle=True, drop_last=True)

    torch.manual_seed(0)
    width = options.width
    blocks = [Block(width) for _ in range(options.blocks)]
    model = nn.Sequential(Embedding(len(letters), width), *blocks, nn.LayerNorm(width), nn.Linear(width, len(letters)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    run = atoll.join(strategy="allreduce:every=8,overlap", target=1.5, rising=False)
    stages = run.wrap_stages(
        model,
        optimizer,
        next(iter(loader)),
        loss=loss,
        islands="auto:pieces=4",
        memory=options.memory,
        test=test,
    )
    for value in stages.train(run.shard(loader), updates=options.updates):
        if stages.steps % 50 == 0:
            held = f"layers {stages.layers.start} to {stages.layers.stop - 1}"
            print(f"{run.name}: update {stages.steps}, {held}, loss {value:.3f}", flush=True)
    if options.save:
        torch.save(stages.collect().state_dict(), options.save)
    run.close()


if __name__ == "__main__":
    main()

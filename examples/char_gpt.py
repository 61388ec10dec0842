"""A small GPT on text, by characters: AdamW, tied embeddings, mixed precision, accumulation, a schedule.

    python examples/char_gpt.py --data FILE                                 # alone
    atoll run triangle --world emulate examples/char_gpt.py --data FILE     # three nodes on a bad network
    atoll node --listen 0.0.0.0:7700 examples/char_gpt.py --data FILE       # for real

FILE is any text; without --data it learns a module of Python.  Lines marked with "Atoll" are all that was added.
"""

import argparse
import math
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import atoll  # Atoll


class Text(Dataset):
    """Pieces of a text, with what follows each character."""

    def __init__(self, tokens: torch.Tensor, length: int) -> None:
        self.tokens, self.length = tokens, length

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.length

    def __getitem__(self, place: int) -> tuple[torch.Tensor, torch.Tensor]:
        piece = self.tokens[place * self.length : (place + 1) * self.length + 1]
        return piece[:-1], piece[1:]


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
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


class GPT(nn.Module):
    def __init__(self, letters: int, length: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.embedding, self.places = nn.Embedding(letters, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, letters, bias=False)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.blocks(x)))


def loss_on(model: nn.Module, loader: DataLoader, device: str) -> float:
    model.eval()
    with torch.no_grad():
        losses = [cross_entropy(model(x.to(device)), y.to(device)) for x, y in loader]
    model.train()
    return float(torch.stack(losses).mean())


def cross_entropy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", type=Path)
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options.add_argument("--steps", type=int, default=300)
    options.add_argument("--batch", type=int, default=16)
    options.add_argument("--accumulate", type=int, default=2)
    options.add_argument("--length", type=int, default=64)
    options.add_argument("--width", type=int, default=64)
    options.add_argument("--layers", type=int, default=2)
    options.add_argument("--test-every", type=int, default=50, help="steps")
    options.add_argument("--checkpoint", type=Path, help="save here now and then, and go on from there")
    arguments = options.parse_args()
    device = arguments.device
    torch.manual_seed(0)
    if device == "cpu":
        torch.set_num_threads(1)

    text = (arguments.data or Path(argparse.__file__)).read_text()
    letters = sorted(set(text))
    tokens = torch.tensor([letters.index(letter) for letter in text])
    cut = int(0.9 * len(tokens))
    loader = DataLoader(Text(tokens[:cut], arguments.length), arguments.batch, shuffle=True, drop_last=True)
    held_out = DataLoader(Text(tokens[cut:], arguments.length), 64)
    model = GPT(len(letters), arguments.length, arguments.width, arguments.layers, heads=4).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 20) * (0.55 + 0.45 * math.cos(math.pi * step / arguments.steps))
    )
    scaler = torch.amp.GradScaler(device, enabled=device == "cuda")

    run = atoll.join(strategy="diloco:every=10,rate=0.7,codec=int8,overlap", target=1.5, rising=False)  # Atoll
    model, optimizer = run.wrap(model, optimizer, scheduler=schedule)  # Atoll: the schedule follows the run's steps
    batches = run.shard(loader)  # Atoll
    if arguments.checkpoint:
        run.resume(arguments.checkpoint)  # Atoll

    micro = 0
    while run.global_step < arguments.steps:  # those of a node that was here before us count
        for x, y in batches:
            with torch.autocast(device, dtype=torch.bfloat16):
                loss = cross_entropy(model(x.to(device)), y.to(device))
            scaler.scale(loss / arguments.accumulate).backward()
            micro += 1
            if micro % arguments.accumulate:
                continue
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            schedule.step()
            if run.global_step % arguments.test_every == 0:
                value = loss_on(model, held_out, device)
                run.measure(value)  # Atoll
                rate = optimizer.param_groups[0]["lr"]
                print(f"step {run.global_step}: loss {value:.4f}, rate {rate:.6f}", flush=True)
                if arguments.checkpoint:
                    run.checkpoint(arguments.checkpoint)  # Atoll
            if run.global_step >= arguments.steps:
                break


if __name__ == "__main__":
    main()

"""A script as users write them, for benchmarks/defects.py: a causal convolutional net with batch norm learns Python's
own library, character by character, with AdamW and a schedule of the learning rate.

Every measurement goes to Atoll's trace and, with the machine's own clock and the learning rate, to a log.
"""

import argparse
import inspect
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import atoll

LETTERS, LENGTH, BATCH = 97, 64, 16
HELD_OUT = 20
"""One piece of so many is held out."""
WARMUP, ALL_STEPS = 40, 3000


class Text(Dataset[tuple[Tensor, Tensor]]):
    """Pieces of a text, with what follows each character."""

    def __init__(self, pieces: Tensor) -> None:
        self.pieces = pieces

    def __len__(self) -> int:
        return len(self.pieces)

    def __getitem__(self, place: int) -> tuple[Tensor, Tensor]:
        piece = self.pieces[place].long()
        return piece[:-1], piece[1:]


def read_text() -> tuple[Tensor, Tensor]:
    """Python's own modules in pieces: to learn from, and held out."""
    files = sorted(Path(argparse.__file__).parent.glob("*.py"))
    found = np.frombuffer(b"".join(path.read_bytes() for path in files), dtype=np.uint8)
    table = np.zeros(256, dtype=np.uint8)  # whatever is neither printable nor the end of a line is 0
    table[10], table[32:127] = 1, np.arange(2, 97)
    letters = torch.from_numpy(table[found])
    pieces = letters.unfold(0, LENGTH + 1, LENGTH)
    is_held_out = torch.arange(len(pieces)) % HELD_OUT == 0
    return pieces[~is_held_out], pieces[is_held_out][::16]


class Causal(nn.Module):
    """A convolution over what came before, with batch norm."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.pad = 4 * dilation
        self.convolution = nn.Conv1d(width, width, 5, dilation=dilation)
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = self.norm(self.convolution(nn.functional.pad(x, (self.pad, 0))))
        return x + nn.functional.gelu(mixed)


class Model(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(LETTERS, width)
        self.layers = nn.Sequential(*(Causal(width, dilation) for dilation in (1, 2, 4)))
        self.head = nn.Linear(width, LETTERS)

    def forward(self, letters: Tensor) -> Tensor:
        found: Tensor = self.head(self.layers(self.embedding(letters).transpose(1, 2)).transpose(1, 2))
        return found


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())


@torch.no_grad()
def held_out_loss(model: nn.Module, pieces: Tensor) -> float:
    model.eval()
    found = float(loss_of(model, pieces[:, :-1].long(), pieces[:, 1:].long()))
    model.train()
    return found


def take_part(arguments: argparse.Namespace) -> atoll.Run:
    """Joins; with a key where this version of Atoll takes one."""
    places: dict[str, Any] = {"key": arguments.key, "out": arguments.out}
    known = inspect.signature(atoll.join).parameters
    given = {name: value for name, value in places.items() if name in known and value is not None}
    return atoll.join(
        arguments.strategy,
        listen=arguments.listen,
        invitation=arguments.join,
        target=0.5,
        rising=False,
        seats=8,
        **given,
    )


def read_arguments() -> argparse.Namespace:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--strategy", default="allreduce:every=8")
    options.add_argument("--listen")
    options.add_argument("--join")
    options.add_argument("--key", type=Path)
    options.add_argument("--out", type=Path)
    options.add_argument("--log", type=Path, required=True)
    options.add_argument("--checkpoint", type=Path, help="save here every two seconds, and go on from there")
    options.add_argument("--pace", type=float, default=0.06, help="seconds a step")
    options.add_argument("--measure-every", type=int, default=10, help="steps")
    options.add_argument("--prepare", type=float, default=0.0, help="seconds between joining and wrapping")
    options.add_argument(
        "--hang", type=float, nargs=2, default=(math.inf, 0.0), help="after how long, and for how long"
    )
    return options.parse_args()


def main() -> None:
    arguments = read_arguments()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    learned, held_out = read_text()
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.5e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min(1.0, (step + 1) / WARMUP) * (0.55 + 0.45 * math.cos(math.pi * min(1.0, step / ALL_STEPS))),
    )
    run = take_part(arguments)
    with arguments.log.open("w", buffering=1) as log:

        def say(**what: Any) -> None:
            log.write(json.dumps({"t": time.monotonic(), "name": run.name, **what}) + "\n")

        say(what="joined", invitation=run.invitation)
        time.sleep(arguments.prepare)
        model, optimizer = run.wrap(model, optimizer, scheduler=schedule)
        batches = run.shard(DataLoader(Text(learned), BATCH, shuffle=True, drop_last=True))
        if arguments.checkpoint:
            say(what="resumed" if run.resume(arguments.checkpoint) else "nothing to resume")
        began = saved = time.monotonic()
        hang_at, hang_s = arguments.hang
        while True:
            for x, y in batches:
                since = time.monotonic()
                if since - began > hang_at:
                    hang_at = math.inf
                    say(what="hangs")
                    time.sleep(hang_s)
                    say(what="goes on")
                    since = time.monotonic()
                loss_of(model, x, y).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()
                if run.steps % arguments.measure_every == 0:
                    value = held_out_loss(model, held_out)
                    run.measure(value)
                    say(what="measured", loss=value, steps=run.steps, rate=schedule.get_last_lr()[0])
                    if arguments.checkpoint and time.monotonic() - saved > 2:
                        run.checkpoint(arguments.checkpoint)
                        saved = time.monotonic()
                        say(what="saved", steps=run.steps)
                time.sleep(max(0.0, arguments.pace - (time.monotonic() - since)))


if __name__ == "__main__":
    main()

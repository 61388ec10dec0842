"""`text`: a character transformer of 0.24 million parameters on any text file; the last tenth is held out.

The target is the test loss that gradients averaged every step have after 600 steps at three nodes on perfect links,
measured on tinyshakespeare (`python -m benchmarks.text_target`); another text wants a target of its own.
"""

from collections import OrderedDict
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from atoll.errors import TaskError
from atoll.training.task import Examples, Task
from atoll.training.tasks.registry import built_in

__all__ = ["char_chain", "text"]

CONTEXT = 64
WIDTH = 96
HEADS = 4
LAYERS = 2
BATCH = 32
QUICK = 64
TESTED = 256
"""Held-out sequences that are tested during training."""
TENTHS = 10
TARGET = 1.81


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before_attention = nn.LayerNorm(WIDTH)
        self.mix = nn.Linear(WIDTH, 3 * WIDTH)
        self.project = nn.Linear(WIDTH, WIDTH)
        self.think = _thinking()

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, time, width)."""
        x = x + self.project(_attend(self.mix(self.before_attention(x))))
        return x + self.think(x)  # type: ignore[no-any-return]


def _thinking() -> nn.Sequential:
    return nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))


def _attend(mixed: Tensor) -> Tensor:
    """mixed: (batch, time, 3 × width), queries, keys and values → (batch, time, width)."""
    batch, time, width = mixed.shape
    parts = mixed.view(batch, time, 3, HEADS, width // 3 // HEADS).permute(2, 0, 3, 1, 4)
    attended = nn.functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
    return attended.transpose(1, 2).reshape(batch, time, width // 3)


class CharTransformer(nn.Module):
    """Predicts the next character; the embedding is also the output layer."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(characters, WIDTH)
        self.place = nn.Parameter(torch.zeros(CONTEXT, WIDTH))
        self.blocks = nn.Sequential(*(_Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        nn.init.normal_(self.embed.weight, std=0.05)

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, time) → (batch, time, characters)."""
        hidden = self.norm(self.blocks(self.embed(x) + self.place[: x.shape[1]]))
        return nn.functional.linear(hidden, self.embed.weight)


class _Embedding(nn.Module):
    def __init__(self, characters: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(characters, WIDTH)
        self.place = nn.Parameter(torch.zeros(CONTEXT, WIDTH))
        nn.init.normal_(self.embed.weight, std=0.05)

    def forward(self, x: Tensor) -> Tensor:
        return self.embed(x) + self.place[: x.shape[1]]  # type: ignore[no-any-return]


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before = nn.LayerNorm(WIDTH)
        self.mix = nn.Linear(WIDTH, 3 * WIDTH)
        self.project = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.project(_attend(self.mix(self.before(x))))  # type: ignore[no-any-return]


class _Thought(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.think = _thinking()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.think(x)  # type: ignore[no-any-return]


def char_chain(characters: int, blocks: int = LAYERS) -> nn.Sequential:
    """The same transformer as a chain that can be cut: its output layer has its own weights."""
    out = nn.Linear(WIDTH, characters, bias=False)
    nn.init.normal_(out.weight, std=0.05)
    layers: dict[str, nn.Module] = {"embed": _Embedding(characters)}
    for number in range(1, blocks + 1):
        layers |= {f"attend{number}": _Attention(), f"think{number}": _Thought()}
    return nn.Sequential(OrderedDict([*layers.items(), ("norm", nn.LayerNorm(WIDTH)), ("out", out)]))


def _loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def _measure(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean loss of each sequence."""
    return nn.functional.cross_entropy(outputs.transpose(1, 2), targets, reduction="none").mean(1)


def _adamw(parameters: Iterable[nn.Parameter], *, lr: float) -> AdamW:
    return AdamW(parameters, lr=lr, betas=(0.9, 0.95), weight_decay=0.01)


@built_in("text", needs_data=True)
def text(data: Path) -> Task:
    """The task; `data` is a text file, or a folder with one."""
    path = data
    if data.is_dir():
        found = sorted(data.glob("*.txt"))
        if len(found) != 1:
            raise TaskError(f"task 'text': {data}: expected one .txt file in it, found {len(found)}")
        path = found[0]
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"task 'text': {path}: expected a text file in UTF-8 ({error})") from None
    least = (CONTEXT + 1) * BATCH * TENTHS
    if len(content) < least:
        raise TaskError(f"task 'text': {path}: expected at least {least} characters, found {len(content)}")
    characters = sorted(set(content))
    place = {character: index for index, character in enumerate(characters)}
    codes = torch.tensor([place[character] for character in content])
    count = (len(codes) - 1) // CONTEXT
    inputs = codes[: count * CONTEXT].view(count, CONTEXT)
    targets = codes[1 : count * CONTEXT + 1].view(count, CONTEXT)
    held_out = count // 10
    split = count - held_out
    tested = split + torch.linspace(0, held_out - 1, min(TESTED, held_out)).long()
    return Task(
        name="text",
        model=partial(CharTransformer, len(characters)),
        chain=partial(char_chain, len(characters)),
        optimizer=partial(_adamw, lr=2e-3),
        ideal_optimizer=partial(_adamw, lr=2e-3),
        loss=_loss,
        measure=_measure,
        rising=False,
        target=TARGET,
        batch=BATCH,
        train=Examples(inputs[:split], targets[:split]),
        test=Examples(inputs[tested], targets[tested]),
        quick=QUICK,
        labels=torch.arange(split) * TENTHS // split,  # which tenth of the text it is from
    )

"""One node of `benchmarks.dataplane`: a large model that trains, or sleeps for as long as a step would take.

python -m benchmarks.dataplane_node SETTINGS.json
"""

import json
import resource
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import atoll
from atoll.world.live.session import Session

SHAPES = {"gpt2": (12, 768, 12), "gpt2-medium": (24, 1024, 16), "gpt2-xl": (48, 1600, 25)}
WORDS, CONTEXT, BATCH = 50_304, 512, 8
WARM = 5
"""Steps before a node joins: by then training has all memory that it takes."""


@dataclass(frozen=True)
class Settings:
    """What a node is told."""

    strategy: str
    seconds: float
    parameters: int
    invitation: str
    """A file: the first node writes its invitation there."""
    first: bool
    out: str
    device: str = "cpu"
    shape: str = ""
    """A GPT of this shape is trained; empty: a step is 35 ms of sleep, and changes a few weights."""
    delay_s: float = 0.0
    """How long to wait before joining."""


class Layer(nn.Module):
    """A transformer's layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        count, length, width = x.shape
        split = self.qkv(self.norms[0](x)).view(count, length, 3, self.heads, -1).transpose(1, 3)
        mixed = nn.functional.scaled_dot_product_attention(
            split[:, :, 0], split[:, :, 1], split[:, :, 2], is_causal=True
        )
        x = x + self.out(mixed.transpose(1, 2).reshape(count, length, width))
        return x + torch.as_tensor(self.mlp(self.norms[1](x)))


class Gpt(nn.Module):
    """GPT-2, with the shape of a name."""

    def __init__(self, shape: str) -> None:
        super().__init__()
        layers, width, heads = SHAPES[shape]
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(CONTEXT, width)
        self.layers = nn.ModuleList([Layer(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return nn.functional.linear(self.norm(x), self.words.weight)


class Sleeper:
    """As many weights as are asked for, of which a step changes the first few."""

    def __init__(self, parameters: int) -> None:
        sizes = [min(4_000_000, parameters - start) for start in range(0, parameters, 4_000_000)]
        self.model = nn.Module()
        self.model.weights = nn.ParameterList([nn.Parameter(torch.randn(size) * 0.02) for size in sizes])
        first = next(self.model.parameters())
        first.grad = torch.randn_like(first) * 0.01
        self.optimizer = torch.optim.SGD([first], 1e-3)

    def step(self) -> None:
        time.sleep(0.035)
        self.optimizer.step()


class Learner:
    """Trains a GPT on random tokens, with bf16 autocast and fused AdamW; on a CPU with a batch that it can bear."""

    def __init__(self, shape: str, device: str) -> None:
        with torch.device(device):
            self.model = Gpt(shape)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 3e-4, fused=True)
        self._device = device
        self._tokens = torch.randint(WORDS, (BATCH, CONTEXT + 1) if device != "cpu" else (1, 33), device=device)

    def step(self) -> None:
        with torch.autocast(self._device.partition(":")[0], torch.bfloat16):
            said = self.model(self._tokens[:, :-1])
        loss = nn.functional.cross_entropy(said.flatten(0, 1).float(), self._tokens[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self._device != "cpu":
            torch.cuda.synchronize()


def watch_heartbeats() -> list[float]:
    """Collects the round trips of all heartbeats."""
    found: list[float] = []
    name = "_echoed"
    echoed = getattr(Session, name)

    def look(session: Session, number: int) -> None:
        found.append((time.monotonic_ns() - number) / 1e9)
        echoed(session, number)

    setattr(Session, name, look)
    return found


def run(settings: Settings) -> dict[str, Any]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    beats = watch_heartbeats()
    trainer = Learner(settings.shape, settings.device) if settings.shape else Sleeper(settings.parameters)
    invitation = Path(settings.invitation)
    time.sleep(settings.delay_s)
    for _ in range(WARM):
        trainer.step()
    before = _memory(settings.device)
    if settings.first:
        node = atoll.join(settings.strategy, listen="127.0.0.1:0", seats=2, out=settings.out)
        invitation.write_text(str(node.invitation))
    else:
        while not (invitation.exists() and invitation.read_text()):
            time.sleep(0.05)
        node = atoll.join(invitation=invitation.read_text(), out=settings.out)
    node.wrap(trainer.model, trainer.optimizer)
    boundaries = watch_boundaries(node)
    ends, begins, steps, met = time.monotonic() + settings.seconds, [], [], 0
    while (began := time.monotonic()) < ends:
        trainer.step()
        begins.append(began)
        steps.append(time.monotonic() - began)
        if len(node.members) == 2 and not met:
            met = len(steps)
            beats.clear()
            boundaries.clear()
    found = {
        "name": node.name,
        "parameters": sum(each.numel() for each in trainer.model.parameters()),
        "begins": begins,
        "steps": steps,
        "met": met,
        "beats": list(beats),
        "boundaries": list(boundaries),
        "before_bytes": before,
        "peak_bytes": _memory(settings.device, peak=True),
    }
    node.close()
    return found


def watch_boundaries(node: atoll.Run) -> list[float]:
    """Collects how long training's thread is held up at step boundaries."""
    found: list[float] = []
    name = "step_is_done"
    agent = getattr(node, "_agent")  # noqa: B009 - the benchmark looks inside
    is_done = getattr(agent, name)

    def timed(samples: int, *, stepped: bool) -> None:
        began = time.perf_counter()
        is_done(samples, stepped=stepped)
        found.append(time.perf_counter() - began)

    setattr(agent, name, timed)
    return found


def _memory(device: str, *, peak: bool = False) -> int:
    """The memory of the process, or what it uses of a GPU's: now, or for a GPU and where `peak` is set, the most."""
    if device != "cpu":
        return torch.cuda.max_memory_allocated()
    if peak:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


if __name__ == "__main__":
    place = Path(sys.argv[1])
    place.with_suffix(".found").write_text(json.dumps(run(Settings(**json.loads(place.read_text())))))

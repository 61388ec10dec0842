"""What Atoll costs a script: a step with and without it, and how long an exchange holds up the training thread.  Fills
docs/results/overhead.md.

    python -m benchmarks.overhead                      # 10 M parameters
    python -m benchmarks.overhead --device cuda        # on a GPU
    python -m benchmarks.overhead gpt --device cuda    # examples/char_gpt.py, two nodes as two processes on one GPU

All variants take turns in one process, so that they meet the same noise; the figure is the median.
"""

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median

import torch
from torch import nn

import atoll
from atoll.trace import Computed, Event, Exchanged, read_trace
from benchmarks.common import RESULTS, markdown, put

EXAMPLE = Path(__file__).parents[1] / "examples" / "char_gpt.py"
DOCUMENT = RESULTS / "overhead.md"


class Trainer:
    """A model that takes steps."""

    def __init__(self, device: str, width: int) -> None:
        self.device = device
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-4)
        self.inputs = torch.randn(32, width, device=device)

    @property
    def parameters(self) -> int:
        return sum(each.numel() for each in self.model.parameters())

    def step(self) -> float:
        began = time.perf_counter()
        self.model(self.inputs).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.device != "cpu":
            torch.cuda.synchronize()
        return time.perf_counter() - began

    def copy(self) -> float:
        """How long it takes to read all parameters once."""
        began = time.perf_counter()
        torch.cat([each.detach().flatten() for each in self.model.parameters()]).cpu()
        return time.perf_counter() - began


class HoldUps:
    """How long what is hooked to an optimiser between making this and `end` takes."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.seconds: list[float] = []
        self._optimizer = optimizer
        self._began = 0.0
        optimizer.register_step_post_hook(lambda *_: self._begin())

    def _begin(self) -> None:
        self._began = time.perf_counter()

    def end(self) -> None:
        self._optimizer.register_step_post_hook(lambda *_: self.seconds.append(time.perf_counter() - self._began))


def nothing(arguments: argparse.Namespace) -> list[str]:
    """`none`, beside a script without Atoll."""
    plain, wrapped = (Trainer(arguments.device, arguments.width) for _ in range(2))
    with atoll.join("none") as run:
        run.wrap(wrapped.model, wrapped.optimizer)
        for trainer in (plain, wrapped):
            for _ in range(3):
                trainer.step()
        pairs = [(plain.step(), wrapped.step()) for _ in range(arguments.steps)]
    without, beside = (median(times) for times in zip(*pairs, strict=True))
    added = median(after / before - 1 for before, after in pairs)
    told = f"{without * 1e3:.2f} ms, {beside * 1e3:.2f} ms with `none`"
    return [f"a step, {plain.parameters / 1e6:.0f} M parameters", told, f"{added:+.2%}", "< 3 %"]


def exchange(arguments: argparse.Namespace) -> list[str]:
    """Two nodes in one process, an exchange that is overlapped every few steps."""
    every = 8
    out = Path(arguments.folder)
    first = atoll.join(f"allreduce:every={every},via=direct,overlap", listen="127.0.0.1:0", seats=2, out=out)
    trainer = Trainer(arguments.device, arguments.width)
    held = HoldUps(trainer.optimizer)
    first.wrap(trainer.model, trainer.optimizer)
    held.end()
    over = threading.Event()

    def other() -> None:
        theirs = Trainer(arguments.device, arguments.width)
        with atoll.join(invitation=first.invitation) as run:
            run.wrap(theirs.model, theirs.optimizer)
            while not over.is_set():
                theirs.step()

    thread = threading.Thread(target=other)
    thread.start()
    try:
        while len(first.members) < 2:
            trainer.step()
        for _ in range(3 * every):
            trainer.step()
        held.seconds.clear()
        before = _exchanges(out)
        for _ in range(arguments.steps):
            trainer.step()
    finally:
        over.set()
        thread.join(60)
        first.close()
    count = _exchanges(out) - before
    longest = sorted(held.seconds)[-2 * count :]  # a snapshot, and a result that is taken
    copies = median(trainer.copy() for _ in range(20))
    told = (
        f"{median(longest) * 1e3:.1f} ms at the median ({longest[-1] * 1e3:.1f} at most; {count} exchanges); "
        f"a copy: {copies * 1e3:.1f} ms"
    )
    beyond = f"{(median(longest) - copies) * 1e3:.1f} ms beyond a copy"
    return ["an overlapped exchange holds up training", told, beyond, "< 10 ms"]


def _exchanges(out: Path) -> int:
    time.sleep(0.5)  # a trace is written a few times a second
    return sum(isinstance(event, Exchanged) for event in read_trace(out / "n0.jsonl"))


def gpt(arguments: argparse.Namespace) -> list[list[str]]:
    """Two processes run the example and share a device; with and without exchange in turn."""
    steps_s: dict[str, list[float]] = {strategy: [] for strategy in ("none", arguments.strategy)}
    rounds = 0
    for _ in range(arguments.turns):
        for strategy, found in steps_s.items():
            with tempfile.TemporaryDirectory() as folder:
                trace = _second_of_two(arguments, strategy, Path(folder))
                times = [event.at for event in trace if isinstance(event, Computed)]
                times = times[len(times) // 4 :]  # the first steps load and warm up
                found.append((times[-1] - times[0]) / (len(times) - 1))
                rounds += sum(isinstance(event, Exchanged) for event in trace)
                print(f"{strategy}: {found[-1] * 1e3:.2f} ms a step", flush=True)
    without, beside = (median(found) for found in steps_s.values())
    told = f"{without * 1e3:.2f} ms alone, {beside * 1e3:.2f} ms with `{arguments.strategy}` ({rounds} exchanges)"
    size = f"GPT of width {arguments.gpt_width}, {arguments.layers} layers"
    return [[f"a step of examples/char_gpt.py, {size}, two processes", told, f"{beside / without - 1:+.1%}", "< 5 %"]]


def _second_of_two(arguments: argparse.Namespace, strategy: str, folder: Path) -> list[Event]:
    """Runs the example on two nodes; what the second recorded, beside which the first was all the time."""
    script = [
        *(str(EXAMPLE), "--device", arguments.device),
        *("--width", str(arguments.gpt_width), "--layers", str(arguments.layers), "--length", "256"),
        *("--accumulate", "1", "--test-every", "1000000", *(("--data", arguments.data) if arguments.data else ())),
    ]
    command = [sys.executable, "-m", "atoll", "node", "--out", str(folder)]
    first = subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0", "-s", strategy, *script, "--steps", "1000000"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert first.stdout is not None
        invitation = next(line.split()[3] for line in first.stdout if line.startswith("atoll node --join"))
        more = ["--join", invitation, *script, "--steps", str(arguments.steps)]
        subprocess.run([*command, *more], stdout=subprocess.DEVNULL, timeout=300, check=True)
    finally:
        first.kill()
        first.communicate()
    return list(read_trace(sorted(folder.glob("*.jsonl"))[1]))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("part", choices=("model", "gpt"), nargs="?", default="model")
    options.add_argument("--device", default="cpu")
    options.add_argument("--width", type=int, default=2236, help="of two square layers; 2236 is 10 M parameters")
    options.add_argument("--steps", type=int, default=100)
    options.add_argument("--gpt-width", type=int, default=512)
    options.add_argument("--layers", type=int, default=8)
    options.add_argument("--strategy", default="diloco:every=50,rate=0.7,codec=int8,overlap")
    options.add_argument("--turns", type=int, default=3)
    options.add_argument("--data", help="a text")
    arguments = options.parse_args()
    torch.set_num_threads(1)
    rows = []
    if arguments.part == "gpt":
        put(DOCUMENT, f"gpt {arguments.device}", markdown(["", "measured", "", "goal"], gpt(arguments)))
        return
    with tempfile.TemporaryDirectory() as arguments.folder:
        for part in (nothing, exchange):
            rows.append(part(arguments))
            print(*rows[-1], sep=" | ", flush=True)
    put(DOCUMENT, f"overhead {arguments.device}", markdown(["", "measured", "", "goal"], rows))


if __name__ == "__main__":
    main()

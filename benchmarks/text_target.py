"""The target of `text`: the test loss that gradients averaged every step have after 600 steps on perfect links.

python -m benchmarks.text_target --data FILE [--rates 0.001 0.002 0.004]
"""

import argparse
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from atoll.config import RunConfig
from atoll.network import load_network
from atoll.runs import IDEAL_STRATEGY, simulate_run
from atoll.trace import Tested, read_trace
from atoll.training.tasks.text import _adamw, text

STEPS = 600


def loss_after(task_path: Path, rate: float, steps: int) -> float:
    torch.set_num_threads(1)
    task = replace(text(task_path), ideal_optimizer=partial(_adamw, lr=rate), target=0.0, test_every=100)
    network = load_network("perfect:3")
    spec = RunConfig(
        network=network, task="text", strategy=IDEAL_STRATEGY, shards="iid", limit_s=0.5 * steps + 0.1, role="ideal"
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.jsonl"
        simulate_run(spec, path, task=task)
        return [event.measure for event in read_trace(path) if isinstance(event, Tested)][-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.002])
    parser.add_argument("--steps", type=int, default=STEPS)
    arguments = parser.parse_args()
    for rate in arguments.rates:
        print(f"rate {rate}: loss {loss_after(arguments.data, rate, arguments.steps):.4f}", flush=True)


if __name__ == "__main__":
    main()

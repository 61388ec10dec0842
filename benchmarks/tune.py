"""Finds the learning rate of the ideal: gradients averaged every step, on perfect links.

    python -m benchmarks.tune digits
    python -m benchmarks.tune mnist --data FOLDER

Prints seconds to target for each rate and number of nodes, and the rate with the least geometric mean, which is written
into the task.
"""

import argparse
import dataclasses
import itertools
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, geometric_mean

from torch import nn
from torch.optim import Optimizer

from atoll.config import RunConfig
from atoll.network import load_network
from atoll.report.results import read_result
from atoll.runs import IDEAL_STRATEGY, simulate_run
from atoll.training import load_task

LIMIT_S = 300.0


def _with_rate(make: Callable[..., Optimizer], rate: float, parameters: Iterable[nn.Parameter]) -> Optimizer:
    """The task's own optimiser, with another learning rate."""
    made = make(parameters)
    for group in made.param_groups:
        group["lr"] = rate
    return made


def seconds(name: str, data: Path | None, device: str, case: tuple[float, int, int]) -> float:
    rate, nodes, seed = case
    task = load_task(name, data)
    task = dataclasses.replace(task, ideal_optimizer=partial(_with_rate, task.optimizer, rate))
    spec = RunConfig(
        network=load_network(f"perfect:{nodes}"),
        task=name,
        data=data,
        strategy=IDEAL_STRATEGY,
        seed=seed,
        limit_s=LIMIT_S,
        role="ideal",
        device=device,
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.jsonl"
        simulate_run(spec, path, task=task)
        result = read_result(path)
    assert result is not None
    return result.seconds_to_target or LIMIT_S


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.05, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.2])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--nodes", type=int, nargs="+", default=[3, 6, 9])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    cases = list(itertools.product(arguments.rates, arguments.nodes, range(arguments.seeds)))
    case = partial(seconds, arguments.task, arguments.data, arguments.device)
    with ProcessPoolExecutor(arguments.jobs, mp_context=get_context("spawn")) as pool:
        found = dict(zip(cases, pool.map(case, cases), strict=True))
    best: dict[float, float] = {}
    for rate in arguments.rates:
        means = [fmean(found[rate, nodes, seed] for seed in range(arguments.seeds)) for nodes in arguments.nodes]
        best[rate] = geometric_mean(means)
        told = "  ".join(f"{nodes} nodes {mean:6.1f} s" for nodes, mean in zip(arguments.nodes, means, strict=True))
        print(f"rate {rate:<5} {told}")
    print(f"best: {min(best, key=lambda rate: best[rate])}")


if __name__ == "__main__":
    main()

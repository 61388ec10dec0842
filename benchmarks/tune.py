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
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from statistics import fmean, geometric_mean

from torch import nn
from torch.optim import SGD

from atoll.network import load_network
from atoll.report.results import read_result
from atoll.train import IDEAL_STRATEGY, RunSpec, load_task, simulate

LIMIT_S = 300.0


def _sgd(parameters: "list[nn.Parameter]", lr: float, momentum: float) -> SGD:
    return SGD(parameters, lr=lr, momentum=momentum)


def seconds(name: str, data: Path | None, rate: float, nodes: int, seed: int) -> float:
    task = load_task(name, data)
    momentum = task.optimizer(task.model().parameters()).param_groups[0]["momentum"]
    task = dataclasses.replace(task, ideal_optimizer=partial(_sgd, lr=rate, momentum=momentum))
    network = load_network(f"perfect:{nodes}")
    spec = RunSpec(
        network=network, task=name, data=data, strategy=IDEAL_STRATEGY, seed=seed, limit_s=LIMIT_S, role="ideal"
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.jsonl"
        simulate(spec, path, task=task)
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
    arguments = parser.parse_args()
    cases = list(itertools.product(arguments.rates, arguments.nodes, range(arguments.seeds)))
    with ProcessPoolExecutor(2) as pool:
        found = dict(zip(cases, pool.map(partial(_case, arguments.task, arguments.data), cases), strict=True))
    best: dict[float, float] = {}
    for rate in arguments.rates:
        means = [fmean(found[rate, nodes, seed] for seed in range(arguments.seeds)) for nodes in arguments.nodes]
        best[rate] = geometric_mean(means)
        told = "  ".join(f"{nodes} nodes {mean:6.1f} s" for nodes, mean in zip(arguments.nodes, means, strict=True))
        print(f"rate {rate:<5} {told}")
    print(f"best: {min(best, key=lambda rate: best[rate])}")


def _case(task: str, data: Path | None, case: tuple[float, int, int]) -> float:
    return seconds(task, data, *case)


if __name__ == "__main__":
    main()

"""A thousand nodes gossip for a hundred rounds of `digits`: seconds and memory, and what twice as many cost.

    python -m benchmarks.many

Each node takes a hundred steps and pushes to one random peer after each.  Exits with 1 where a target is missed.
"""

import multiprocessing
import resource
import sys
import time

import numpy as np
import torch

from atoll.network import Network, parse_network
from atoll.strategies import parse_strategy
from atoll.training import load_task
from atoll.training.loop import train
from atoll.training.replica import TrainedReplica
from atoll.training.shares import Tester
from atoll.world import Simulation
from atoll.world.sim.world import SimWorld

ROUNDS = 100


def star(count: int) -> Network:
    return parse_network(
        f'hubs = ["hub"]\n[[node]]\ncount = {count}\n'
        '[[link]]\nbetween = ["[0-9]*", "hub"]\nlatency_ms = 20\nrate_mbps = 100',
        name="star",
    )


def measure(count: int, answers: "multiprocessing.Queue[tuple[float, float, float]]") -> None:
    torch.set_num_threads(1)
    task = load_task("digits")
    strategy = parse_strategy("gossip:fanout=1,merge=age")
    network = star(count)
    members = network.node_names
    # More nodes than a shard's worth of examples: each draws 64 of all, with its own seed.
    draw = np.random.default_rng(0)
    shards = [draw.choice(len(task.train), 64, replace=False) for _ in members]
    tester = Tester(task)
    measures: list[float] = []

    async def program(world: SimWorld) -> None:
        place = int(world.name)
        replica = TrainedReplica(world, members, task, shards[place], seed=0, optimizer=task.optimizer, tester=tester)
        await train(replica, task, strategy, steps=ROUNDS)
        measures.append(replica.test())

    began = time.perf_counter()
    Simulation(network, seed=0).run(program)
    taken = time.perf_counter() - began
    answers.put((taken, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, sum(measures) / len(measures)))


def in_a_process(count: int) -> tuple[float, float, float]:
    context = multiprocessing.get_context("spawn")
    answers: multiprocessing.Queue[tuple[float, float, float]] = context.Queue()
    process = context.Process(target=measure, args=(count, answers))
    process.start()
    answer = answers.get(timeout=1800)
    process.join()
    return answer


def main() -> None:
    found = {count: in_a_process(count) for count in (500, 1000)}
    for count, (taken, memory_gb, accuracy) in found.items():
        print(f"{count} nodes: {taken:.1f} s, {memory_gb:.2f} GB, accuracy {accuracy:.1%}")
    ratio = found[1000][0] / found[500][0]
    print(f"twice as many: {ratio:.2f} × the time")
    if found[1000][0] > 180 or found[1000][1] > 3 or ratio > 2.3:
        sys.exit(1)


if __name__ == "__main__":
    main()

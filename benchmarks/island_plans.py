"""Plans of islands: against all there are, against simple cuts and Ravnest's objective, and for many nodes."""

import argparse
import itertools
import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median

import numpy as np
from tests.islands.brute import best_of_all, partitions

from atoll.config import RunConfig
from atoll.errors import TaskError
from atoll.islands import Costs, Island, Layer, Machine, MachineLinks, Plan, Terms, equal_cuts, form, survey
from atoll.islands.layout import Layout, Survey, survey_task
from atoll.islands.settings import parse_islands
from atoll.network import Network, parse_network
from atoll.runs import simulate_run
from atoll.runs.emulated import run_emulated
from atoll.trace import Computed, Emulated, read_trace
from atoll.training import Task
from benchmarks.common import RESULTS, markdown, put
from benchmarks.island_task import blocks, small_task

__all__ = ["against", "emulated", "large", "planner"]

DOCUMENT = RESULTS / "islands.md"


def drawn(seed: int, nodes: int, layers: int) -> tuple[Network, list[Layer], float]:
    """A random network of nodes with unlike speed and memory, and a random model that no node can hold."""
    draw = np.random.default_rng(seed)
    chain = [
        Layer(
            str(place),
            float(draw.uniform(1, 10)),
            float(draw.uniform(1e2, 1e4)),
            float(draw.uniform(1e3, 2e4)),
            float(draw.uniform(1e5, 3e6)),
        )
        for place in range(layers)
    ]
    whole = Costs(chain, Terms(batch=8)).memory_of(0, layers, 1).total
    sites = draw.integers(0, max(2, nodes // 3), nodes)
    described = f"hubs = {[f's{site}' for site in sorted(set(sites.tolist()))]}\n".replace("'", '"')
    for node, site in enumerate(sites):
        step, memory = draw.uniform(0.3, 2), whole * draw.uniform(0.35, 1.2) / 1e9
        described += f'[[node]]\nnames = ["n{node}"]\nstep_s = {step:.3f}\nmemory_gb = {memory:.9f}\n'
        described += f'[[link]]\nbetween = ["n{node}", "s{site}"]\nlatency_ms = {draw.uniform(0.1, 2):.2f}\n'
        described += f"rate_mbps = {draw.uniform(50, 1000):.0f}\n"
    for one, other in itertools.combinations(sorted(set(sites.tolist())), 2):
        described += f'[[link]]\nbetween = ["s{one}", "s{other}"]\nlatency_ms = {draw.uniform(5, 90):.1f}\n'
        described += f"rate_mbps = {draw.uniform(2, 50):.1f}\n"
    return parse_network(described, name=f"drawn {seed}"), chain, whole


def by_ravnest(
    layers: Sequence[Layer], machines: Sequence[Machine], pairs: MachineLinks, terms: Terms
) -> list[list[int]]:
    """The clusters that Ravnest's published objective prefers, of all there are: 100·Σ max(0, L − RAM_c) plus the
    spread of ΣRAM/bandwidth.  One large cluster scores 0, so as many clusters as any has at the least score are taken.
    """
    need = Costs(layers, terms).memory_of(0, len(layers), 1).total
    rate = [float(np.median(np.delete(pairs.bytes_a_second[place], place))) for place in range(len(machines))]
    best: tuple[float, int, list[list[int]]] = (math.inf, 0, [])
    for islands in partitions(range(len(machines))):
        if sum(map(len, islands)) < len(machines):
            continue  # everybody is in a cluster
        memory = [sum(machines[place].memory_bytes for place in island) for island in islands]
        spread = [sum(machines[place].memory_bytes / rate[place] for place in island) for island in islands]
        score = 100 * sum(max(0.0, need - each) for each in memory) + max(spread) - min(spread)
        best = min(best, (score, -len(islands), [list(island) for island in islands]))
    return best[2]


def planner(arguments: argparse.Namespace) -> None:
    gaps, seconds = [], []
    for seed in range(arguments.seeds):
        nodes = 3 + seed % 6
        if nodes == 8 and seed >= 12:
            nodes = 5  # eight at a time take a minute to look at all
        network, layers, _ = drawn(seed, nodes, 6 + seed % 5)
        terms = Terms(batch=8)
        machines, pairs = survey(network, layers, batch=8)
        best = best_of_all(layers, machines, pairs, terms)
        if not best:
            continue
        since = time.perf_counter()
        found = form(layers, machines, pairs, terms)[0].samples_a_second
        seconds.append(time.perf_counter() - since)
        gaps.append(1 - found / best)
        print(f"seed {seed}: {nodes} nodes, {found:.4g} of {best:.4g}", flush=True)
    rows = [
        ["cases", f"{len(gaps)}, of 3 to 8 nodes"],
        ["found the best", f"{sum(gap < 1e-6 for gap in gaps)}"],
        ["worse than the best by, at most", f"{max(gaps):.2%}"],
        ["seconds a plan, at most", f"{max(seconds):.2f}"],
    ]
    put(DOCUMENT, "planner", markdown(["planner against all plans", ""], rows))
    against(arguments)


def against(arguments: argparse.Namespace) -> None:
    """Plans as found, by simple cuts and by Ravnest's objective: predicted and simulated."""
    ratios: dict[str, list[tuple[float, float]]] = {"equal cuts": [], "Ravnest's objective": []}
    off = []
    for seed in range(100, 100 + arguments.cases):
        network, task = trained(seed)
        found = survey_task(network, task, parse_islands("auto"))
        costs = Costs(found.layers, found.terms)
        try:
            best = found.plans()[0]
        except TaskError:
            continue
        ours = simulated(network, task, best, found)
        off.append(ours / best.samples_a_second - 1)
        told = [f"seed {seed}: {best.name}, {best.samples_a_second:.4g} predicted, {ours:.4g} simulated"]
        others = {
            "equal cuts": [list(island.order) for island in best.islands],
            "Ravnest's objective": by_ravnest(found.layers, found.machines, found.pairs, found.terms),
        }
        for name, groups in others.items():
            cuts = [
                (tuple(group), equal_cuts(costs, [found.machines[i] for i in group], found.pairs.hops(group)))
                for group in groups
            ]
            islands = [Island(order, cut) for order, cut in cuts if cut]
            samples = sum(found.terms.batch / island.cut.batch_s for island in islands)
            plan = Plan(tuple(islands), (), samples, 0.0, name)
            real = simulated(network, task, plan, found) if islands else 0.0
            ratios[name].append((samples / best.samples_a_second, real / ours))
            told.append(f"{name} {samples:.4g} and {real:.4g}")
        print("; ".join(told), flush=True)
    rows = [
        [
            name,
            f"{len(pairs)}",
            f"{sum(predicted == 0 for predicted, _ in pairs)}",
            *(_times([pair[side] for pair in pairs]) for side in (0, 1)),
        ]
        for name, pairs in ratios.items()
    ]
    heads = ["against", "cases", "in which nothing of it fits", "predicted: times faster", "simulated: times faster"]
    text = markdown(heads, rows)
    text += f"\n\nSimulated samples a second against predicted, {len(off)} plans: {fmean(off):+.1%} on average, "
    text += f"from {min(off):+.1%} to {max(off):+.1%}."
    put(DOCUMENT, "against", text)


def _times(shares: list[float]) -> str:
    """How many times faster the plan is, over the cases in which the other one runs at all."""
    times = [1 / share for share in shares if share > 0]
    return f"{median(times):.2f} (from {min(times):.2f} to {max(times):.2f})" if times else "–"


def trained(seed: int) -> tuple[Network, Task]:
    """A random network, and a task whose model no node of it can hold, or few."""
    draw = np.random.default_rng(seed)
    task = small_task([int(each) for each in draw.integers(4, 200, 9)])
    network, _, whole = drawn(seed, int(draw.integers(4, 7)), 9)
    found = survey_task(network, task, parse_islands("auto"))
    need = Costs(found.layers, found.terms).memory_of(0, len(found.layers), 1).total
    scale = need / whole
    nodes = tuple(replace(each, memory_bytes=round((each.memory_bytes or 0) * scale)) for each in network.nodes)
    return replace(network, nodes=nodes), task


def simulated(network: Network, task: Task, plan: Plan, found: Survey, seconds: float = 120.0) -> float:
    """Samples a second that a plan comes to, without averaging, after the pipelines are full."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.jsonl"
        spec = RunConfig(
            network=network, task=task.name, strategy="none", shards="iid", islands="auto", limit_s=seconds, stops=False
        )
        simulate_run(spec, path, task=task, layout=Layout(plan, found, parse_islands("auto")))
        lasts = {found.machines[island.order[-1]].name for island in plan.islands}
        done = [event for event in read_trace(path) if isinstance(event, Computed) and event.node in lasts]
    return sum(event.at > seconds / 4 for event in done) * task.batch / (seconds * 3 / 4)


def emulated(arguments: argparse.Namespace) -> None:
    """Plans for random networks, as predicted, simulated, and with real processes over real TCP."""
    rows, seconds = [], arguments.limit
    for seed in range(200, 200 + arguments.cases):
        draw = np.random.default_rng(seed)
        task, count = blocks(), int(draw.integers(4, 7))
        network, _, whole = drawn(seed, count, 9)
        found = survey_task(network, task, parse_islands("auto"))
        scale = Costs(found.layers, found.terms).memory_of(0, len(found.layers), 1).total / whole
        nodes = tuple(replace(each, memory_bytes=round((each.memory_bytes or 0) * scale)) for each in network.nodes)
        network = replace(network, nodes=nodes)
        try:
            plan = survey_task(network, task, parse_islands("auto")).plans()[0]
        except TaskError:
            continue
        # A process of torch takes more than these nodes have: the same islands, on nodes with enough.
        islands = "/".join("+".join(found.machines[place].name for place in each.order) for each in plan.islands)
        network = replace(network, nodes=tuple(replace(each, memory_bytes=None) for each in network.nodes))
        found = survey_task(network, task, parse_islands(islands))
        plan = found.plan_of(parse_islands(islands).islands)
        spec = RunConfig(
            network=network,
            task="benchmarks.island_task:blocks",
            strategy="none",
            shards="iid",
            islands=islands,
            limit_s=seconds,
            stops=False,
        )
        lasts = {found.machines[island.order[-1]].name for island in plan.islands}
        rates = []
        for real in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "t.jsonl"
                if real:
                    for _ in run_emulated(spec, path):
                        pass
                else:
                    simulate_run(spec, path)
                events = list(read_trace(path))
            passes = [event for event in events if isinstance(event, Computed) and event.node in lasts]
            rates.append(sum(event.at > seconds / 4 for event in passes) * task.batch / (seconds * 3 / 4))
        valid = all(event.valid for event in events if isinstance(event, Emulated))
        predicted = plan.samples_a_second
        rows.append(
            [
                f"{seed}: {count} nodes, {plan.name}",
                f"{predicted:.1f}",
                *(f"{rate:.1f} ({rate / predicted - 1:+.1%})" for rate in rates),
                "yes" if valid else "no",
            ]
        )
        print(*rows[-1], sep=" | ", flush=True)
    put(DOCUMENT, "emulated", markdown(["case", "predicted", "simulated", "emulated", "the switch kept up"], rows))


def large(arguments: argparse.Namespace) -> None:
    rows = []
    for seed in range(3):
        network, layers, _ = drawn(seed, 64, 24)
        machines, pairs = survey(network, layers, batch=8)
        since = time.perf_counter()
        plans = form(layers, machines, pairs, Terms(batch=8), seed=arguments.seed)
        took = time.perf_counter() - since
        rules = max(plan.samples_a_second for plan in plans if not plan.how.startswith("a search"))
        rows.append(
            [
                f"{seed}",
                plans[0].name,
                f"{took:.1f} s",
                f"{plans[0].samples_a_second / rules:.2f}",
            ]
        )
        print(*rows[-1], flush=True)
    put(DOCUMENT, "large", markdown(["64 nodes, seed", "plan", "took", "times the best simple rule"], rows))

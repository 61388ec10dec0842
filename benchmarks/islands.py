"""Islands: plans, pipelines without waiting, and how they grow.  Fills docs/results/islands.md.

    python -m benchmarks.islands planner               # against all plans, equal cuts, and Ravnest's rule
    python -m benchmarks.islands large                 # 64 nodes
    python -m benchmarks.islands pipeline              # four uneven nodes: without waiting, and synchronously
    python -m benchmarks.islands schedules             # the same stages under torch's synchronous schedules
    python -m benchmarks.islands speedup               # 1, 2, 4 and 8 islands
    python -m benchmarks.islands kills                 # each node of `nine` in turn; with --emulate for real
    python -m benchmarks.islands nine --data FOLDER    # a transformer that no node can hold, on `nine`

Simulated; minutes each, `nine` half an hour on two cores.
"""

import argparse
import functools
import itertools
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.pipelining.schedules import _get_1f1b_rank_ops
from torch.optim import SGD

from atoll.errors import TaskError
from atoll.island import (
    Costs,
    Island,
    Layer,
    Machine,
    Pairs,
    Plan,
    Terms,
    best_cut,
    equal_cuts,
    form,
    survey,
)
from atoll.network import Network, load_network, parse_network
from atoll.report.results import read_result
from atoll.trace import Computed, Event, IslandsFormed, StageReported, Tested, read_trace
from atoll.train import Examples, RunSpec, Task, simulate
from atoll.train.emulated import run_emulated
from atoll.train.islands import Layout, Survey, parse_islands, survey_task
from atoll.train.tasks.text import char_chain, text
from atoll.world.faults import parse_faults
from benchmarks.common import RESULTS, markdown, put

DOCUMENT = RESULTS / "islands.md"


# Plans ---


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


def partitions(places: Sequence[int]) -> Iterator[list[tuple[int, ...]]]:
    """All ways to put some of these into sets."""
    if not places:
        yield []
        return
    first, rest = places[0], places[1:]
    yield from partitions(rest)
    for size in range(len(rest) + 1):
        for others in itertools.combinations(rest, size):
            left = [place for place in rest if place not in others]
            for more in partitions(left):
                yield [(first, *others), *more]


def best_of_all(layers: Sequence[Layer], machines: Sequence[Machine], pairs: Pairs, terms: Terms) -> float:
    """Samples a second of the best islands, orders and cuts, all looked at."""
    costs = Costs(layers, terms)
    value: dict[tuple[int, ...], float] = {}
    for size in range(1, len(machines) + 1):
        for some in itertools.combinations(range(len(machines)), size):
            cuts = (
                best_cut(costs, [machines[place] for place in order], pairs.hops(order))
                for order in itertools.permutations(some)
            )
            value[some] = max((terms.batch / each.batch_s for each in cuts if each), default=0.0)
    return max(sum(value[some] for some in islands) for islands in partitions(range(len(machines))))


def by_ravnest(layers: Sequence[Layer], machines: Sequence[Machine], pairs: Pairs, terms: Terms) -> list[list[int]]:
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
        _, found = survey_task(network, task, parse_islands("auto"))
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


class Block(nn.Module):
    """A layer of a chain whose layers are unlike."""

    def __init__(self, wide: int, inner: int) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(wide, inner), nn.Linear(inner, wide)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.other(torch.tanh(self.one(x)))
        return out


def small_task(inner: Sequence[int], *, wide: int = 16, batch: int = 32, lr: float = 0.02) -> Task:
    """Something small to learn, with a chain of blocks."""
    draw = torch.Generator().manual_seed(1)
    inputs = torch.randn(4400, wide, generator=draw)
    targets = (
        torch.tanh(inputs @ torch.randn(wide, wide, generator=draw)) @ torch.randn(wide, 6, generator=draw)
    ).argmax(1)
    return Task(
        name="blocks",
        model=lambda: nn.Sequential(*(Block(wide, each) for each in inner), nn.Linear(wide, 6)),
        optimizer=functools.partial(SGD, lr=lr, momentum=0.9),
        target=0.7,
        batch=batch,
        train=Examples(inputs[:4000], targets[:4000]),
        test=Examples(inputs[4000:], targets[4000:]),
        labels=targets[:4000],
    )


def trained(seed: int) -> tuple[Network, Task]:
    """A random network, and a task whose model no node of it can hold, or few."""
    draw = np.random.default_rng(seed)
    task = small_task([int(each) for each in draw.integers(4, 200, 9)])
    network, _, whole = drawn(seed, int(draw.integers(4, 7)), 9)
    _, found = survey_task(network, task, parse_islands("auto"))
    need = Costs(found.layers, found.terms).memory_of(0, len(found.layers), 1).total
    scale = need / whole
    nodes = tuple(replace(each, memory_bytes=round((each.memory_bytes or 0) * scale)) for each in network.nodes)
    return replace(network, nodes=nodes), task


def simulated(network: Network, task: Task, plan: Plan, found: Survey, seconds: float = 120.0) -> float:
    """Samples a second that a plan comes to, without averaging, after the pipelines are full."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.jsonl"
        spec = RunSpec(
            network=network, task=task.name, strategy="none", shards="iid", islands="auto", limit_s=seconds, stops=False
        )
        simulate(spec, path, task=task, layout=Layout(plan, found, parse_islands("auto")))
        lasts = {found.machines[island.order[-1]].name for island in plan.islands}
        done = [event for event in read_trace(path) if isinstance(event, Computed) and event.node in lasts]
    return sum(event.at > seconds / 4 for event in done) * task.batch / (seconds * 3 / 4)


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


# Pipelines ---


def busy_shares(events: list[Event], since: float, until: float) -> dict[str, float]:
    found: dict[str, float] = {}
    for event in events:
        if isinstance(event, Computed):
            inside = min(event.at, until) - max(event.since, since)
            found[event.node] = found.get(event.node, 0.0) + max(0.0, inside) / (until - since)
    return found


def pipeline(arguments: argparse.Namespace) -> None:
    """Speeds 1, 1, 2, 4; links of 20 ms."""
    network = parse_network(
        '[[node]]\nnames = ["a", "b"]\nstep_s = 4.0\n[[node]]\nnames = ["c"]\nstep_s = 2.0\n'
        '[[node]]\nnames = ["d"]\nstep_s = 1.0\n[[link]]\namong = "*"\nlatency_ms = 20\nrate_mbps = 100\n',
        name="uneven",
    )
    # 32 equal blocks: 4, 4, 8 and 16 of them take the same time on the four machines.
    task = small_task([64] * 31 + [64], batch=64)
    seconds = arguments.limit
    rows = []
    base: dict[bool, float] = {}
    for recompute in (False, True):
        extra = ",recompute" if recompute else ""
        ways = [("without waiting", f"a+b+c+d:weights=stash{extra}")]
        ways += [(f"synchronous, {pieces} pieces", f"a+b+c+d:flush={pieces}{extra}") for pieces in (4, 8, 16, 32)]
        for name, islands in ways:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "t.jsonl"
                spec = RunSpec(
                    network=network,
                    task=task.name,
                    strategy="none",
                    shards="iid",
                    islands=islands,
                    limit_s=seconds,
                    stops=False,
                )
                simulate(spec, path, task=task)
                events = list(read_trace(path))
            since = seconds / 4
            pieces = int(islands.split("flush=")[1].split(",")[0]) if "flush" in islands else 1
            last = [event for event in events if isinstance(event, Computed) and event.node == "d"]
            samples = sum(event.at > since for event in last) * task.batch / pieces / (seconds - since)
            busy = busy_shares(events, since, seconds)
            base.setdefault(recompute, samples)
            rows.append(
                [
                    name,
                    "yes" if recompute else "no",
                    f"{samples:.2f}",
                    f"{base[recompute] / samples:.2f}",
                    ", ".join(f"{busy[node]:.1%}" for node in "abcd"),
                ]
            )
            print(*rows[-1], sep=" | ", flush=True)
    heads = ["schedule", "recompute", "samples a second", "without waiting is faster by", "busy: speeds 1, 1, 2, 4"]
    put(DOCUMENT, "pipeline", markdown(heads, rows))


def schedules(_: argparse.Namespace) -> None:
    """Synchronous schedules of torch.distributed.pipelining on the same four stages: what their tables of operations
    take if every operation starts as soon as its rank and what it needs are ready, for ever, batch after batch.
    """
    rows = []
    without = 64 / stage_seconds()  # every stage busy all the time
    for pieces in (4, 8, 16, 32):
        found = {name: 64 / table_seconds(pieces, zero_bubble=flag) for name, flag in (("1F1B", False), ("ZB", True))}
        rows.append([f"{pieces}", *(f"{each:.1f} ({each / without:.0%} busy)" for each in found.values())])
        print(*rows[-1], sep=" | ", flush=True)
    put(DOCUMENT, "schedules", markdown(["pieces", "1F1B, samples a second", "zero-bubble (ZB-H1)"], rows))


def stage_seconds() -> float:
    """What each of the four stages takes for a batch of 64: an eighth of the blocks at speed 1."""
    return 4.0 / 8


def table_seconds(pieces: int, *, zero_bubble: bool, latency_s: float = 0.02, ranks: int = 4) -> float:
    """Seconds a batch, by torch's own tables."""
    tables = []
    for rank in range(ranks):
        warm = min(pieces, ranks - rank)
        table = _get_1f1b_rank_ops(  # type: ignore[no-untyped-call]
            1, ranks, warm, pieces - warm, warm, rank, lambda _, rank=rank: rank, lambda _, rank=rank: rank,
            num_1f1b_microbatches=rank, enable_zero_bubble=zero_bubble,
        )  # fmt: skip
        tables.append([each for each in table if each is not None])
    forward = stage_seconds() / pieces / 3
    takes = {"FORWARD": forward, "FULL_BACKWARD": 2 * forward, "BACKWARD_INPUT": forward, "BACKWARD_WEIGHT": forward}
    done: dict[tuple[str, int, int], float] = {}
    clocks, places = [0.0] * ranks, [0] * ranks
    while any(places[rank] < len(tables[rank]) for rank in range(ranks)):
        for rank in range(ranks):
            if places[rank] == len(tables[rank]):
                continue
            action = tables[rank][places[rank]]
            kind, piece = action.computation_type.name, action.microbatch_index
            needs: list[tuple[str, int, int]] = []
            if kind == "FORWARD" and rank:
                needs = [("FORWARD", rank - 1, piece)]
            elif kind in {"FULL_BACKWARD", "BACKWARD_INPUT"} and rank < ranks - 1:
                needs = [(kind, rank + 1, piece)]
            if all(need in done for need in needs):
                ready = max([clocks[rank], *(done[need] + latency_s for need in needs)])
                clocks[rank] = done[kind, rank, piece] = ready + takes[kind]
                places[rank] += 1
    return max(clocks)


def speedup(arguments: argparse.Namespace) -> None:
    """Islands of three nodes, more and more of them."""
    rows = []
    one = 0.0
    for count in (1, 2, 4, 8):
        names = [[f"i{island}{stage}" for stage in "abc"] for island in range(count)]
        nodes = "".join(f'[[node]]\nnames = ["{name}"]\nstep_s = 0.6\n' for island in names for name in island)
        network = parse_network(f'{nodes}[[link]]\namong = "*"\nlatency_ms = 10\nrate_mbps = 100\n', name=f"{count}")
        islands = "/".join("+".join(island) for island in names)
        task = small_task([64] * 8)
        arrived, samples, stale = [], [], []
        for seed in range(arguments.seeds):
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "t.jsonl"
                spec = RunSpec(
                    network=network,
                    task=task.name,
                    strategy="allreduce:every=4,overlap",
                    shards="iid",
                    islands=islands,
                    seed=seed,
                    limit_s=arguments.limit,
                )
                simulate(spec, path, task=task)
                result = read_result(path)
                events = list(read_trace(path))
            assert result is not None
            arrived.append(result.seconds_to_target or math.inf)
            lasts = {island[-1] for island in names}
            done = [event for event in events if isinstance(event, Computed) and event.node in lasts]
            samples.append(len(done) * task.batch / result.ended_s)
            stale += [(event.stale_most, event.holds - 1) for event in events if isinstance(event, StageReported)]
        one = one or fmean(samples)
        rows.append(
            [
                f"{count}",
                f"{fmean(samples):.1f}",
                f"{fmean(samples) / one:.2f}",
                f"{fmean(arrived):.1f}" if math.isfinite(max(arrived)) else "not all arrive",
                f"{max(stale)[0]} (bound {max(bound for _, bound in stale)})",
            ]
        )
        print(*rows[-1], sep=" | ", flush=True)
    heads = ["islands of three", "samples a second", "times one island", "seconds to target", "updates late, at most"]
    put(DOCUMENT, "speedup", markdown(heads, rows))


def kills(arguments: argparse.Namespace) -> None:
    """Each node of `nine` in turn is killed for good at 20 s; in emulation those that are named."""
    network = load_network("nine")
    rows = []
    for node in arguments.nodes or network.node_names:
        fault = f'[[fault]]\nkind = "crash"\nnodes = ["{node}"]\nat = 20.0\n'
        spec = RunSpec(
            network=network,
            task="benchmarks.islands:blocks",
            strategy="allreduce:every=4,overlap",
            shards="iid",
            islands="A1+A2+A3/B1+B2+B3/C1+C2+C3:memory=170kB",
            limit_s=60.0,
            stops=False,
            faults=parse_faults(fault, network.node_names),
        )
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "t.jsonl"
            if arguments.emulate:
                for _ in run_emulated(spec, path):
                    pass
            else:
                simulate(spec, path)
            events = list(read_trace(path))
        idle: dict[str, float] = {}
        last: dict[str, float] = {}
        for event in events:
            if isinstance(event, Computed):
                if event.node in last and event.since > 15:
                    idle[event.node] = max(idle.get(event.node, 0.0), event.since - last[event.node])
                last[event.node] = event.at
        formed = [event for event in events if isinstance(event, IslandsFormed)]
        after = next(event for event in formed if event.at > 20)
        same = [name for name in network.node_names if name[0] != node[0]]
        kept = [name for name in same if any(name in each and each in formed[0].islands for each in after.islands)]
        rest = [name for name in network.node_names if name not in kept and name != node]
        measures = [event.measure for event in events if isinstance(event, Tested)]
        rows.append(
            [
                node,
                f"{max(idle[name] for name in kept):.2f} s",
                f"{max(idle[name] for name in rest):.2f} s",
                "; ".join(after.islands),
                f"{max(measures[-3:]):.3f}",
            ]
        )
        print(*rows[-1], sep=" | ", flush=True)
    heads = [
        "killed",
        "longest idle, islands that stay",
        "of the broken one, and who is joined with it",
        "islands after",
        "accuracy at 60 s",
    ]
    put(DOCUMENT, f"kills {'emulated' if arguments.emulate else 'simulated'}", markdown(heads, rows))


def blocks() -> Task:
    """Eight equal blocks, as a task that processes can load by name."""
    return small_task([64] * 8)


# A transformer on `nine` ---


def nine(arguments: argparse.Namespace) -> None:
    task = text(arguments.data)
    characters = int(task.train.inputs.max()) + 1
    task = replace(task, chain=functools.partial(char_chain, characters, arguments.blocks))
    network = load_network("nine")
    memory = arguments.memory
    _, found = survey_task(network, task, parse_islands(f"auto:memory={memory}"))
    plan = found.plans()[0]
    alone = Costs(found.layers, found.terms).memory_of(0, len(found.layers), 1).total
    print(
        f"in one piece {alone / 1e6:.1f} MB, nodes have {memory}: {plan.name}, {plan.samples_a_second:.4g}", flush=True
    )
    islands = "/".join("+".join(found.machines[place].name for place in island.order) for island in plan.islands)
    rows = []
    cases = [(f"{islands}:memory={memory}", f"allreduce:every={every},overlap") for every in arguments.every]
    cases += [
        (f"{islands}:memory={memory},flush={pieces}", f"allreduce:every={every}")
        for pieces in arguments.pieces
        for every in arguments.every
    ]
    for islands, strategy in cases:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "t.jsonl"
            spec = RunSpec(
                network=network,
                task="text",
                strategy=strategy,
                shards="iid",
                islands=islands,
                limit_s=arguments.limit,
                seed=arguments.seed,
            )
            since = time.perf_counter()
            simulate(spec, path, task=task)
            result = read_result(path)
        assert result is not None
        rows.append(
            [
                "synchronous" if "flush" in islands else "without waiting",
                f"`{strategy}`",
                islands.split("flush=")[1] if "flush" in islands else "",
                f"{result.seconds_to_target:.1f}" if result.seconds_to_target else "not reached",
                f"{result.best:.3f}",
                f"{result.steps_to_target:.0f}",
            ]
        )
        print(*rows[-1], f"{time.perf_counter() - since:.0f} s", sep=" | ", flush=True)
        heads = ["islands", "between them", "pieces", "seconds to target", "best loss", "steps"]
        put(DOCUMENT, "nine", markdown(heads, rows))


PARTS: dict[str, Callable[[argparse.Namespace], None]] = {
    "planner": planner,
    "against": against,
    "large": large,
    "pipeline": pipeline,
    "schedules": schedules,
    "speedup": speedup,
    "kills": kills,
    "nine": nine,
}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("part", choices=PARTS)
    options.add_argument("--seeds", type=int, default=5)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--cases", type=int, default=20)
    options.add_argument("--limit", type=float, default=400.0)
    options.add_argument("--data", type=Path)
    options.add_argument("--blocks", type=int, default=4)
    options.add_argument("--memory", default="40MB")
    options.add_argument("--emulate", action="store_true")
    options.add_argument("--nodes", nargs="+")
    options.add_argument("--every", type=int, nargs="+", default=[4, 8])
    options.add_argument("--pieces", type=int, nargs="+", default=[4, 8])
    arguments = options.parse_args()
    PARTS[arguments.part](arguments)


if __name__ == "__main__":
    main()

"""Islands: plans, pipelines without waiting, and how they grow.  Fills docs/results/islands.md.

    python -m benchmarks.islands planner               # against all plans, equal cuts, and Ravnest's rule
    python -m benchmarks.islands emulated --cases 6 --limit 30   # predictions against real processes
    python -m benchmarks.islands large                 # 64 nodes
    python -m benchmarks.islands pipeline              # four uneven nodes: without waiting, and synchronously
    python -m benchmarks.islands schedules             # the same stages under torch's synchronous schedules
    python -m benchmarks.islands speedup               # 1, 2, 4 and 8 islands
    python -m benchmarks.islands kills                 # each node of `nine` in turn; with --emulate for real
    python -m benchmarks.islands nine --data FOLDER    # a transformer that no node can hold, on `nine`

Simulated; minutes each; a seed of `nine` takes half an hour of a core.
"""

import argparse
import functools
import itertools
import math
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from torch.distributed.pipelining.schedules import _get_1f1b_rank_ops

from atoll.config import RunConfig
from atoll.network import load_network, parse_network
from atoll.report.results import read_result
from atoll.runs import simulate_run
from atoll.runs.emulated import run_emulated
from atoll.trace import Computed, Emulated, Event, IslandsFormed, StageReported, Tested, read_trace
from atoll.training import Task
from atoll.training.tasks.text import char_chain, text
from atoll.world.faults import parse_faults
from benchmarks.common import RESULTS, markdown, put
from benchmarks.island_plans import against, emulated, large, planner
from benchmarks.island_task import small_task

DOCUMENT = RESULTS / "islands.md"


# Pipelines ---


def traced(spec: RunConfig, task: Task) -> list[Event]:
    """What happened in a simulated run."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.jsonl"
        simulate_run(spec, path, task=task)
        return list(read_trace(path))


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
            spec = RunConfig(
                network=network,
                task=task.name,
                strategy="none",
                shards="iid",
                islands=islands,
                limit_s=seconds,
                stops=False,
            )
            events = traced(spec, task)
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
                spec = RunConfig(
                    network=network,
                    task=task.name,
                    strategy="allreduce:every=4,overlap",
                    shards="iid",
                    islands=islands,
                    seed=seed,
                    limit_s=arguments.limit,
                )
                simulate_run(spec, path, task=task)
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
        spec = RunConfig(
            network=network,
            task="benchmarks.island_task:blocks",
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
                simulate_run(spec, path)
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
        kept = [name for name in same if any(name in each and each in formed[0].described for each in after.described)]
        rest = [name for name in network.node_names if name not in kept and name != node]
        measures = [event.measure for event in events if isinstance(event, Tested)]
        rows.append(
            [
                node,
                f"{max(idle[name] for name in kept):.2f} s",
                f"{max(idle[name] for name in rest):.2f} s",
                "; ".join(after.described),
                f"{max(measures[-3:]):.3f}",
                *("yes" if event.valid else "no" for event in events if isinstance(event, Emulated)),
            ]
        )
        print(*rows[-1], sep=" | ", flush=True)
    heads = [
        "killed",
        "longest idle, islands that stay",
        "of the broken one, and who is joined with it",
        "islands after",
        "accuracy at 60 s",
        *(["the switch kept up"] if arguments.emulate else []),
    ]
    put(DOCUMENT, f"kills {'emulated' if arguments.emulate else 'simulated'}", markdown(heads, rows))


# A transformer on `nine` ---


LOSSES = (2.4, 2.3, 2.2, 2.1, 2.0, 1.9)
"""On the way to the target."""


def nine(arguments: argparse.Namespace) -> None:
    """An island for each site, without waiting and synchronously: seconds to a loss, mean of the islands."""
    task = text(arguments.data)
    characters = int(task.train.inputs.max()) + 1
    task = replace(task, chain=functools.partial(char_chain, characters, arguments.blocks))
    network, sites = load_network("nine"), "A1+A2+A3/B1+B2+B3/C1+C2+C3"
    cases = [(f"{sites}:pieces={arguments.pieces[0]}", "allreduce:every=8,overlap")]
    cases += [(f"{sites}:flush={count}", f"allreduce:every={e}") for count in arguments.flush for e in arguments.every]
    rows = []
    for (islands, strategy), seed in itertools.product(cases, range(arguments.seed, arguments.seed + arguments.seeds)):
        spec = RunConfig(
            network=network,
            task="text",
            strategy=strategy,
            shards="iid",
            islands=islands,
            limit_s=arguments.limit,
            seed=seed,
            device=arguments.device,
        )
        tests = [event for event in traced(spec, task) if isinstance(event, Tested)]
        means = _means(tests)
        arrived = [next((at for at, loss in means if loss <= goal), math.nan) for goal in (*LOSSES, task.target)]
        rows.append([islands.split(":")[1], f"`{strategy}`", f"{seed}", *(f"{at:.0f} s" for at in arrived)])
        print(*rows[-1], sep=" | ", flush=True)
        heads = ["islands", "between them", "seed", *(f"loss {goal}" for goal in LOSSES), f"target {task.target:.2f}"]
        put(DOCUMENT, "nine", markdown(heads, rows).replace("nan s", "–"))


def _means(tests: list[Tested]) -> list[tuple[float, float]]:
    """Over time: the mean of what each island tested last, once all have."""
    last: dict[str, float] = {}
    nodes = len({event.node for event in tests})
    found = []
    for event in tests:
        last[event.node] = event.measure
        if len(last) == nodes:
            found.append((event.at, fmean(last.values())))
    return found


PARTS: dict[str, Callable[[argparse.Namespace], None]] = {
    "planner": planner,
    "against": against,
    "emulated": emulated,
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
    options.add_argument("--device", default="cpu")
    options.add_argument("--blocks", type=int, default=6)
    options.add_argument("--emulate", action="store_true")
    options.add_argument("--nodes", nargs="+")
    options.add_argument("--every", type=int, nargs="+", default=[128])
    options.add_argument("--pieces", type=int, nargs=1, default=[16])
    options.add_argument("--flush", type=int, nargs="+", default=[8])
    arguments = options.parse_args()
    PARTS[arguments.part](arguments)


if __name__ == "__main__":
    main()

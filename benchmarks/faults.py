"""What happens when nodes and links fail.  Fills docs/results/faults.md.

    python -m benchmarks.faults waits        # how long anybody's training stands still; two minutes on one core
    python -m benchmarks.faults partition    # both sides go on, and merge: against no partition, and waiting it out
    python -m benchmarks.faults merging      # what two sides that were apart are merged to, by how they are merged
    python -m benchmarks.faults robust       # one node in five computes wrongly

Waits are of three nodes at 50 Mbit/s with a round trip of 20 ms, half a second a step, digits, iid shards, training for
two virtual minutes after the fault: the scenarios of the table "Faults" that peers were measured on.
"""

import argparse
import dataclasses
import tempfile
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from torch import nn

from atoll.codecs import parse_codec
from atoll.config import RunConfig
from atoll.network import Network, load_network, parse_network
from atoll.runs import simulate_run
from atoll.trace import Computed, Event, Exchanged, Tested, read_trace
from atoll.training import Task, load_task, parse_shards
from atoll.training.batches import Batches
from atoll.training.parameters import Parameters
from atoll.training.shards import Indices
from atoll.vectors import Vector
from atoll.world.faults import parse_faults
from benchmarks.common import RESULTS, markdown, put

NETWORK = """
[[node]]
count = {count}
step_s = 0.5
[[link]]
among = "*"
latency_ms = 10
rate_mbps = 50
"""
DOCUMENT = RESULTS / "faults.md"
STRATEGIES = ["allreduce", "allreduce:every=4", "allreduce:quantity=gradient", "vrl:codec=int8", "gossip"]
AT = 20.0
HALF = 0.5
WATCHED_S = (79.0, 90.0, 140.0)


@dataclass(frozen=True)
class Scenario:
    """One row of the table."""

    name: str
    nodes: int
    script: str
    ends: float | None
    """When all is well again."""


def fault(kind: str, about: str, until: float | None) -> str:
    return f'[[fault]]\nkind = "{kind}"\n{about}\nat = {AT}\n' + (f"until = {until}\n" if until else "")


SCENARIOS = [
    Scenario("a peer crashes and begins anew after 10 s", 3, fault("crash", 'nodes = "1"', 30), 30),
    Scenario("the first node crashes and begins anew after 10 s", 3, fault("crash", 'nodes = "0"', 30), 30),
    Scenario("a peer vanishes for good", 3, fault("crash", 'nodes = "2"', None), None),
    Scenario("the first node vanishes for good", 3, fault("crash", 'nodes = "0"', None), None),
    Scenario("one link of three is cut for 20 s", 3, fault("cut", 'between = ["0", "1"]', 40), 40),
    Scenario("a peer is cut off for 20 s", 3, fault("cut", 'between = ["0", "[12]"]', 40), 40),
    Scenario("the only link is cut for 60 s", 2, fault("cut", 'between = ["0", "1"]', 80), 80),
    Scenario("a peer stands still for 20 s", 3, fault("stall", 'nodes = "1"', 40), 40),
]


def run(net: Network, strategy: str, script: str, limit_s: float, *, shards: str = "iid", seed: int = 0) -> list[Event]:
    """What happens until the limit, whether or not the target is reached."""
    spec = RunConfig(
        network=net,
        task="digits",
        strategy=strategy,
        shards=shards,
        seed=seed,
        limit_s=limit_s,
        faults=parse_faults(script, net.node_names),
        stops=False,
    )
    with tempfile.TemporaryDirectory() as folder:
        simulate_run(spec, Path(folder) / "trace")
        return list(read_trace(Path(folder) / "trace"))


def measure(scenario: Scenario, strategy: str) -> list[Event]:
    net = parse_network(NETWORK.format(count=scenario.nodes), name="three")
    return run(net, strategy, scenario.script, (scenario.ends or AT) + 120)


def longest_wait_s(events: list[Event], who: Callable[[str], bool], since: float = AT - 5) -> float:
    """The longest time between the ends of two steps, beyond the half second that a step takes."""
    last: dict[str, float] = {}
    longest = 0.0
    for event in events:
        if isinstance(event, Computed) and who(event.node):
            if event.at > since and event.node in last:
                longest = max(longest, event.at - last[event.node] - 0.5)
            last[event.node] = event.at
    return longest


def together_again_s(events: list[Event], scenario: Scenario) -> float | None:
    """How long after the end of the fault the first exchange of all was taken."""
    if scenario.ends is None:
        return None
    after = [
        event.at - scenario.ends
        for event in events
        if isinstance(event, Exchanged) and event.at > scenario.ends and event.members == scenario.nodes
    ]
    return min(after, default=None)


def waits() -> None:
    rows = []
    for scenario in SCENARIOS:
        gone = scenario.script.split('nodes = "')[1][0] if "nodes" in scenario.script else ""
        for strategy in STRATEGIES:
            events = measure(scenario, strategy)
            again = together_again_s(events, scenario)

            def others(node: str, gone: str = gone) -> bool:
                return node != gone

            after = "" if scenario.ends is None else f"{longest_wait_s(events, others, scenario.ends):.2f}"
            shown = "" if again is None or strategy == "gossip" else f"{again:.1f}"
            rows.append([scenario.name, f"`{strategy}`", f"{longest_wait_s(events, others):.2f}", after, shown])
            print(*rows[-1], sep=" | ", flush=True)
    heads = [
        "what happens",
        "strategy",
        "longest wait of a step, s",
        "of these after its end",
        "all meet again after, s",
    ]
    put(DOCUMENT, "waits", markdown(heads, rows))
    detours()


def detours() -> None:
    """How much later a number of steps is done when a link goes away, than had it never been there."""
    rows = []
    whole = NETWORK.format(count=3)
    without = whole.replace('among = "*"', 'between = ["2", "*"]')
    for strategy in STRATEGIES:
        done = []
        for text, script in ((without, ""), (whole, fault("cut", 'between = ["0", "1"]', None))):
            events = run(parse_network(text, name="three"), strategy, script, 200)
            done.append(sorted(event.at for event in events if isinstance(event, Computed))[300])
        rows.append([f"`{strategy}`", *(f"{each:.1f}" for each in done), f"{done[1] - done[0]:+.1f}"])
        print(*rows[-1], sep=" | ", flush=True)
    heads = ["strategy", "100 steps a node without the link, s", "with a link that is cut at 20 s, s", "later by, s"]
    put(DOCUMENT, "detours", markdown(heads, rows))


def partition() -> None:
    cut = load_network("partition")
    whole = dataclasses.replace(cut, links=tuple(dataclasses.replace(link, outages=()) for link in cut.links))
    waiting = '[[fault]]\nkind = "stall"\nnodes = "*"\nat = 20\nuntil = 80'
    cases = {
        "no partition": (whole, ""),
        "both sides go on, and merge": (cut, ""),
        "everybody waits until it is over": (whole, waiting),
    }
    rows = []
    for shards in ("dirichlet:0.3", "label"):
        for strategy in ("allreduce:every=4", "vrl:codec=int4"):
            for name, (net, script) in cases.items():
                found = [_followed(run(net, strategy, script, 140, shards=shards, seed=seed)) for seed in range(5)]
                arrived = [each[0] for each in found if each[0] is not None]
                shown = f"{fmean(arrived):.1f}" if len(arrived) == len(found) else f"{len(arrived)} of 5 arrive"
                then = [f"{fmean(each[1][time] for each in found):.1%}" for time in WATCHED_S]
                rows.append([shards, f"`{strategy}`", name, shown, *then])
                print(*rows[-1], sep=" | ", flush=True)
    heads = ["shards", "strategy", "", "seconds to 95 %", *(f"at {time:g} s" for time in WATCHED_S)]
    put(DOCUMENT, "partition", markdown(heads, rows))


def _followed(events: list[Event]) -> tuple[float | None, dict[float, float]]:
    """When half of six nodes had 95 %, and what all had on average at some times."""
    last: dict[str, float] = {}
    then: dict[float, float] = {}
    arrived = None
    for event in events:
        if isinstance(event, Tested):
            last[event.node] = event.measure
            if arrived is None and sum(measure >= 0.95 for measure in last.values()) >= 3:
                arrived = event.at
            then |= {time: fmean(last.values()) for time in WATCHED_S if event.at <= time}
    return arrived, then


def merging() -> None:
    """Two sides go on from one model, each on its own half of the data, one of them three times as long."""
    task = load_task("digits")

    def merged(old: Vector, one: Vector, other: Vector) -> dict[str, Vector]:
        mine, theirs = one - old, other - old
        return {
            "the better side alone": max(one, other, key=lambda each: _accuracy(task, each)),
            "raw weights, equal": HALF * (one + other),
            "raw weights in 2 bits, equal": _coded(one * HALF) + _coded(other * HALF),
            "changes, equal": old + HALF * mine + HALF * theirs,
            "changes, by work": old + 0.75 * mine + 0.25 * theirs,
            "changes in 2 bits, equal": old + _coded(mine * HALF) + _coded(theirs * HALF),
            "changes, added up": old + mine + theirs,
        }

    found: dict[str, list[float]] = defaultdict(list)
    for seed in range(5):
        sides = parse_shards("dirichlet:0.3").deal(task.train.targets.numpy(), 2, seed)
        both = np.concatenate(sides)
        old = _trained(task, None, both, 40, seed)
        one, other = _trained(task, old, sides[0], 180, seed + 1), _trained(task, old, sides[1], 60, seed + 2)
        for name, values in merged(old, one, other).items():
            found[name].append(_accuracy(task, values))
    rows = [[name, f"{fmean(each):.1%}", f"{min(each):.1%}"] for name, each in found.items()]
    put(DOCUMENT, "merging", markdown(["merged by", "accuracy", "lowest of five seeds"], rows))
    print(*rows, sep="\n")


def _model(task: Task, values: Vector | None) -> tuple[nn.Module, Parameters]:
    torch.manual_seed(0)
    model = task.model()
    parameters = Parameters(model)
    if values is not None:
        parameters.write(values)
    return model, parameters


def _trained(task: Task, values: Vector | None, shard: Indices, steps: int, seed: int) -> Vector:
    model, parameters = _model(task, values)
    optimizer, batches = task.optimizer(model.parameters()), Batches(shard, task.batch, seed)
    for _ in range(steps):
        batch = batches.take()
        optimizer.zero_grad()
        loss = task.loss(model(task.train.inputs[batch]), task.train.targets[batch])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return parameters.read()


def _accuracy(task: Task, values: Vector) -> float:
    return task.test_model(_model(task, values)[0])


def _coded(values: Vector) -> Vector:
    codec = parse_codec("bits2")
    return codec.decode(codec.encode(values, 0), len(values), 0)


def robust() -> None:
    net = load_network("perfect:5")
    kinds = {"nothing": "", "garbage": 'kind = "garbage"', "steps × 100": 'kind = "exaggerate"\nfactor = 100'}
    rows = []
    for rule in ("no", "median", "trimmed", "clipped"):
        strategy = "allreduce:every=4" + ("" if rule == "no" else f",robust={rule}")
        row = [f"`{strategy}`"]
        for kind in kinds.values():
            script = f'[[fault]]\n{kind}\nnodes = "3"\nat = 0\n' if kind else ""
            ends = []
            for seed in range(5):
                tests = [each for each in run(net, strategy, script, 60, seed=seed) if isinstance(each, Tested)]
                ends.append(fmean({each.node: each.measure for each in tests if each.node != "3"}.values()))
            row.append(f"{fmean(ends):.1%}")
        rows.append(row)
        print(*row, sep=" | ", flush=True)
    put(DOCUMENT, "robust", markdown(["strategy", *(f"node 3: {name}" for name in kinds)], rows))


PARTS: dict[str, Callable[[], None]] = {"waits": waits, "partition": partition, "merging": merging, "robust": robust}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("part", choices=PARTS)
    PARTS[options.parse_args().part]()


if __name__ == "__main__":
    main()

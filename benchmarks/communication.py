"""Say less, say it when it matters: what compression, selective exchange and flexible collectives are worth.  Fills
docs/results/communication.md.

    python -m benchmarks.communication all --data FOLDER         # mnist: every strategy on triangle, nine and commute
    python -m benchmarks.communication selsync --data FOLDER     # mnist: δ from 0.1 to 0.5
    python -m benchmarks.communication flexible --data FOLDER    # mnist: against every fixed way and ratio
    python -m benchmarks.communication phases --data FOLDER      # mnist: the same, phase by phase
    python -m benchmarks.communication frontier --data FILE      # text: loss against bytes at equal steps

With --device cuda and --jobs 14 each takes minutes; on two cores, hours.  --task digits needs no data.
"""

import argparse
import math
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, median

from atoll.config import RunConfig
from atoll.network import load_network
from atoll.report.results import Comparison, Row
from atoll.runs import IDEAL_STRATEGY
from atoll.runs.batch import run_all
from atoll.trace import Exchanged, Planned, Tested, read_trace
from benchmarks.common import RESULTS, markdown, parser, put, run_plan, seconds

DOCUMENT = RESULTS / "communication.md"
SHARDS = ("dirichlet:0.3", "label")
WAYS = ("direct", "ring", "tree", "own")
STRATEGIES = [
    "none",
    "allreduce:every=4,codec=int8",
    "allreduce:overlap,shared,codec=int8",
    "vrl:codec=int4",
    "vrl:every=1,codec=int4",
    "vrl:codec=int4,overlap,warmup=5",
    "vrl:every=4,codec=chunk2/256,overlap,warmup=5",
    "diloco:every=8,rate=1,codec=int8",
    "sparseloco:every=8",
    "selsync:codec=int8",
    "fda:codec=int8",
    "flexible",
    "powersgd",
    "demo",
    "noloco:every=8",
    "daso",
    "decent",
    "admm",
    "gossip:codec=int8",
    "ssp:codec=int8",
]


def _bytes_a_parameter_and_step(row: Row, parameters: int) -> float:
    return fmean(run.bytes_sent / run.nodes / parameters / max(run.steps_to_target, 1) for run in row.runs)


def _table(found: Comparison, parameters: int) -> str:
    rows = [
        [
            f"`{row.strategy}`",
            seconds(row),
            "–" if row.ratio is None else f"{row.ratio:.2f}",
            "" if row.ratio_on_perfect is None else f"{row.ratio_on_perfect:.2f}",
            f"{_bytes_a_parameter_and_step(row, parameters):.3g}",
            f"{row.mean('waiting_share'):.0%}",
            f"{row.mean('best'):.4g}",
        ]
        for row in found.rows()
    ]
    heads = [
        "strategy",
        "seconds",
        "of ideal",
        "of ideal on free links",
        "bytes a parameter and step",
        "waiting",
        "best",
    ]
    return markdown(heads, rows)


def every_strategy(arguments: argparse.Namespace) -> None:
    for network in arguments.only or ["triangle", "nine", "commute"]:
        for shards in arguments.shards:
            found = _plan(arguments, network, arguments.strategies or STRATEGIES, shards)
            none = next((row for row in found.rows() if row.strategy == "none"), None)
            counts = none is not None and (none.ratio is None or none.ratio >= 2)
            title = (
                f"**{network}**, {arguments.task}, {shards} shards, ideal {found.rows()[0].ideal_seconds or 0:.1f} s"
            )
            title += "" if counts else "; by the yardsticks this case does not count: `none` is within twice the ideal"
            put(DOCUMENT, f"all {network} {shards}", f"{title}\n\n{_table(found, arguments.parameters)}")


def selsync(arguments: argparse.Namespace) -> None:
    deltas = [0.1, 0.2, 0.3, 0.4, 0.5]
    lines = []
    for shards in ("iid", "label"):
        for network in arguments.only or ["triangle"]:
            strategies = ["allreduce:direct", *(f"selsync:delta={delta}" for delta in deltas)]
            found = _plan(arguments, network, strategies, shards)
            for row in found.rows():
                steps = row.mean("steps_to_target")
                exchanges = row.mean("exchanges")
                lines.append(
                    [
                        network,
                        shards,
                        f"`{row.strategy}`",
                        seconds(row),
                        f"{steps:.0f}",
                        f"{exchanges:.0f}",
                        f"{1 - min(1.0, exchanges / max(steps, 1)):.2f}",
                    ]
                )
    heads = ["network", "shards", "strategy", "seconds", "steps", "exchanges", "local share"]
    put(DOCUMENT, "selsync", markdown(heads, lines))


def flexible(arguments: argparse.Namespace) -> None:
    ways = [f"flexible:ratio={ratio},way=direct" for ratio in (0.1, 0.03, 0.01, 0.003, 0.001)]
    ways += [f"flexible:ratio=0.01,way={way}" for way in WAYS if way != "direct"]
    for network in arguments.only or ["flexible-c1", "flexible-staircase"]:
        found = _plan(
            arguments, network, ["flexible", *(arguments.strategies or ways), "allreduce:direct,gradient"], "iid"
        )
        put(DOCUMENT, f"flexible {network}", f"**{network}**\n\n{_table(found, arguments.parameters)}")


def phases(arguments: argparse.Namespace) -> None:
    for network in arguments.only or ["flexible-c1", "flexible-staircase"]:
        put(DOCUMENT, f"phases {network}", _phases(arguments, network))


def _phases(arguments: argparse.Namespace, network: str) -> str:
    """In each phase: how long a step takes with what was chosen, and with each fixed way of the same ratio; and how
    long exchanges were expected to take, and took.
    """
    run = load_network(network)
    count = len(run.links[0].there.phases)
    length_s = (run.run_s or 0.0) / count
    # With equal links a ring has direct's bytes and more latencies, and a tree more of both.
    fixed = [f"flexible:ratio=0.01,way={way}" for way in ("direct", "own")]
    specs = [
        RunConfig(
            network=run,
            task=arguments.task,
            data=arguments.data,
            strategy=strategy,
            shards="iid",
            limit_s=run.run_s or 0.0,
            stops=False,
            device=arguments.device,
        )
        for strategy in ("flexible", "flexible:ratio=0.01", *fixed)
    ]
    a_step: dict[str, list[float]] = {}
    predictions: list[tuple[float, float]] = []
    chosen: list[Counter[str]] = [Counter() for _ in range(count)]
    with tempfile.TemporaryDirectory() as folder:
        list(run_all(specs, Path(folder), jobs=arguments.jobs))
        for spec in specs:
            planned: dict[str, Planned] = {}
            taken: dict[str, float] = {}
            steps: list[list[float]] = [[] for _ in range(count)]
            for event in read_trace(Path(folder) / spec.file_name):
                phase = min(int(event.at / length_s), count - 1)
                if isinstance(event, Planned) and event.seconds > 0:
                    planned.setdefault(event.name, event)
                    if spec.strategy == "flexible":
                        chosen[phase][f"{event.via} {event.ratio:.2g}"] += 1
                elif isinstance(event, Exchanged):
                    taken[event.name] = max(taken.get(event.name, 0.0), event.at - event.since)
                    if event.node == run.nodes[0].name:
                        steps[phase].append(event.at)
            a_step[spec.strategy] = [
                (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else math.nan for times in steps
            ]
            if spec.strategy == "flexible":
                predictions = [(plan.seconds, taken[name]) for name, plan in planned.items() if taken.get(name)]
    rows = []
    for phase in range(count):
        best = min(fixed, key=lambda strategy: a_step[strategy][phase])
        free = a_step["flexible:ratio=0.01"][phase]
        rows.append(
            [
                str(phase + 1),
                ", ".join(
                    f"{what} ({count / chosen[phase].total():.0%})" for what, count in chosen[phase].most_common(2)
                ),
                f"{a_step['flexible'][phase]:.3f}",
                f"{free:.3f}",
                f"{a_step[best][phase]:.3f} (`{best.rpartition('=')[2]}`)",
                f"{free / a_step[best][phase]:.3f}",
            ]
        )
    heads = ["phase", "chosen", "seconds a step", "with ratio 0.01", "best fixed way of ratio 0.01", "of the best"]
    off = [abs(expected / took - 1) for expected, took in predictions]
    within = sum(each <= 0.1 for each in off) / max(len(off), 1)
    told = f"Predicted times: off by {median(off):.1%} (median); {within:.0%} of {len(off)} exchanges within 10 %."
    return f"{markdown(heads, rows)}\n\n{told}"


def frontier(arguments: argparse.Namespace) -> None:
    """Every strategy takes the same number of steps; what loss it then has, and what it said until then."""
    network = load_network("perfect:4")
    step_s = network.nodes[0].step_s
    strategies = (
        [IDEAL_STRATEGY, "none", *arguments.strategies]
        if arguments.strategies
        else [
            IDEAL_STRATEGY,
            "none",
            *(
                f"diloco:every={every},rate={rate},momentum={momentum}"
                for every in (15, 30)
                for rate in (0.7, 1)
                for momentum in (0.5, 0.8)
            ),
            *(f"diloco:every=15,rate=1,momentum=0.5,codec={codec}" for codec in ("int8", "int4", "bits2")),
            *(f"sparseloco:every={every},rate={rate}" for every in (15, 30) for rate in (0.7, 1)),
            "sparseloco:every=15,momentum=0.5",
        ]
    )
    specs = [
        RunConfig(
            network=network,
            task=arguments.task,
            data=arguments.data,
            strategy=strategy,
            shards="label",
            seed=seed,
            limit_s=arguments.steps * step_s,
            device=arguments.device,
        )
        for strategy in strategies
        for seed in range(arguments.seeds)
    ]
    ends: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for spec in run_all(specs, Path(folder), jobs=arguments.jobs):
            if spec is not None:
                last = {
                    event.node: event
                    for event in read_trace(Path(folder) / spec.file_name)
                    if isinstance(event, Tested)
                }
                said = sum(event.sent_bytes / event.steps for event in last.values()) / len(last) / arguments.parameters
                ends.setdefault(spec.strategy, []).append((fmean(event.measure for event in last.values()), said))
    dense = fmean(loss for loss, _ in ends[IDEAL_STRATEGY])
    rows = [
        [
            f"`{name}`",
            f"{fmean(loss for loss, _ in found):.4f}",
            f"{fmean(loss for loss, _ in found) / dense - 1:+.1%}",
            f"{fmean(said for _, said in found):.3g}",
        ]
        for name, found in sorted(ends.items(), key=lambda item: fmean(loss for loss, _ in item[1]))
    ]
    put(DOCUMENT, "frontier", markdown(["strategy", "loss", "against dense", "bytes a parameter and step"], rows))


def _plan(arguments: argparse.Namespace, network: str, strategies: list[str], shards: str) -> Comparison:
    return run_plan(arguments, network, strategies, task=arguments.task, data=arguments.data, shards=shards)


PARTS: dict[str, Callable[[argparse.Namespace], None]] = {
    "all": every_strategy,
    "selsync": selsync,
    "flexible": flexible,
    "phases": phases,
    "frontier": frontier,
}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("part", choices=PARTS)
    options.add_argument("--task", default="mnist")
    options.add_argument("--data", type=Path)
    options.add_argument("--steps", type=int, default=600, help="of the frontier")
    options.add_argument("--only", nargs="+", help="networks")
    options.add_argument("--shards", nargs="+", default=SHARDS)
    options.add_argument("--strategies", nargs="+")
    arguments = options.parse_args()
    arguments.parameters = {"digits": 4810, "mnist": 693_962, "text": 236_256}.get(arguments.task, 1)
    PARTS[arguments.part](arguments)


if __name__ == "__main__":
    main()

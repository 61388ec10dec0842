"""What users have today, beside Atoll: examples/mnist.py on the emulated `triangle`.  Fills docs/results/peers.md.

    pip install torchft-nightly hivemind                       # in an environment of their own, with Atoll in it too
    python -m benchmarks.peers --data FOLDER tune              # one seed, several H each
    python -m benchmarks.peers --data FOLDER                   # all, each with its best H

All have the same model, data, batch, optimiser, step time, target, and links that come and go at the same moments.
Runs are in real time, and each takes as long as it says.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean, median, pstdev
from typing import Any

from atoll.config import RunConfig
from atoll.errors import EmulationError
from atoll.network import load_network
from atoll.report.results import read_result
from atoll.runs.emulated import is_valid, run_emulated
from atoll.trace import Tested, Waited, read_trace
from atoll.world.emulate.supervisor import Emulation, emulate
from benchmarks.common import RESULTS, markdown, put
from benchmarks.peer_nodes import PEERS

DOCUMENT = RESULTS / "peers.md"
EXAMPLE = Path(__file__).parents[1] / "examples" / "mnist.py"
TARGET = 0.975
BEST = {
    "torch DDP": 1,
    "torch PeriodicModelAverager": 32,
    "torchft LocalSGD": 32,
    "torchft DiLoCo": 32,
    "hivemind": 32,
}
ATOLL = ("vrl:codec=int4,overlap,warmup=5", "allreduce:every=4,overlap,codec=int8")


@dataclass(frozen=True, slots=True)
class Result:
    seconds: float | None
    """Until half of the nodes had the target."""
    best: float
    longest_wait_s: float
    agrees: float | None = None
    """How far models were from the true mean after they were averaged (where that cannot be seen, from each other),
    of how far they move in a run.
    """
    failure: str = ""


def run_peer(arguments: argparse.Namespace, peer: str, every: int, seed: int) -> Result:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        network = load_network(arguments.network)
        what = Emulation(
            network=network,
            program="benchmarks.peer_nodes:train",
            settings={
                "peer": peer,
                "every": every,
                "seed": seed,
                "data": str(arguments.data.resolve()) if arguments.data else "",
                "folder": name,
                "test_every": arguments.test_every,
                "timeout": arguments.timeout,
            },
            folder=folder,
            seed=seed,
            limit_s=arguments.limit + 30,
        )
        failure, valid = "", True
        try:
            with emulate(what) as running:
                told_s = 0.0
                while running.poll(0.5):
                    reached, _ = _reached(folder, len(network.nodes))
                    if told_s == 0.0 and (reached is not None or running.now > arguments.limit):
                        (folder / "stop").touch()
                        told_s = time.monotonic()
                    elif told_s and time.monotonic() - told_s > 5:
                        running.stop()
                valid = running.stats is None or is_valid(running.stats)
        except EmulationError as error:  # how a peer ends is a result
            failure = str(error)
        if not valid:
            failure = "the switch was late"
        reached, best = _reached(folder, len(network.nodes))
        told = [_lines(path) for path in sorted(folder.glob("told.*.jsonl"))]
        longest = max((line.get("longest_s", 0.0) for lines in told for line in lines), default=0.0)
        return Result(reached, best, longest, _agreement(told), failure)


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def _reached(folder: Path, count: int) -> tuple[float | None, float]:
    """When half of the nodes had the target, and the best that any had."""
    firsts, best = [], 0.0
    for path in folder.glob("told.*.jsonl"):
        tests = [line for line in _lines(path) if "tested" in line]
        best = max([best, *(line["value"] for line in tests)])
        firsts += [line["tested"] for line in tests if line["value"] >= TARGET][:1]
    needed = (count + 1) // 2
    return (sorted(firsts)[needed - 1] if len(firsts) >= needed else None), best


def _agreement(told: list[list[dict[str, Any]]]) -> float | None:
    """The median over all averages that all nodes took part in."""
    synced = [{line["synced"]: line for line in lines if "synced" in line} for lines in told]
    if not any(synced):  # it averages beside training: how far apart models are then
        tests = [{line["steps"]: line["at"] for line in lines if "tested" in line} for lines in told]
        synced = [{step: {"before": None, "value": value} for step, value in each.items()} for each in tests]
    common = sorted(set.intersection(*(set(each) for each in synced))) if synced else []
    if len(common) < 2:
        return None
    off = []
    for step in common:
        lines = [each[step] for each in synced]
        seen = all(line["before"] is not None for line in lines)
        mean = fmean(line["before"] if seen else line["value"] for line in lines)
        off.append(max(abs(line["value"] - mean) for line in lines))
    moved = pstdev([synced[0][step]["value"] for step in common])
    return median(off) / moved if moved > 0 else None


def run_atoll(arguments: argparse.Namespace, strategy: str, seed: int) -> Result:
    script = [str(EXAMPLE), "--epochs", "50", "--test-every", str(arguments.test_every)]
    if arguments.data:
        script += ["--data", str(arguments.data.resolve())]
    spec = RunConfig(
        network=load_network(arguments.network),
        task="script mnist.py",
        strategy=strategy,
        seed=seed,
        limit_s=arguments.limit,
        script=tuple(script),
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.jsonl"
        for _ in run_emulated(spec, path):
            pass
        found = read_result(path)
        events = list(read_trace(path))
    assert found is not None, "it has begun"
    best = max((event.measure for event in events if isinstance(event, Tested)), default=0.0)
    longest = max((event.at - event.since for event in events if isinstance(event, Waited)), default=0.0)
    return Result(found.seconds_to_target, best, longest)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("part", choices=("all", "tune"), nargs="?", default="all")
    options.add_argument("--data", type=Path)
    options.add_argument("--network", default="triangle")
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--limit", type=float, default=300.0)
    options.add_argument("--timeout", type=float, default=20.0, help="of torchft and hivemind, seconds")
    options.add_argument("--test-every", type=int, default=20)
    options.add_argument("--jobs", type=int, default=2, help="runs at a time")
    options.add_argument("--every", type=int, nargs="+", default=[4, 16, 64], help="of tuning")
    options.add_argument("--only", nargs="+")
    arguments = options.parse_args()
    cases: list[tuple[str, int, Callable[[int], Result]]] = [
        (f"Atoll, `{strategy}`", 0, partial(run_atoll, arguments, strategy)) for strategy in ATOLL
    ]
    for peer in PEERS:
        tried = [BEST[peer]] if arguments.part == "all" or peer == "torch DDP" else arguments.every
        cases += [(peer, every, partial(run_peer, arguments, peer, every)) for every in tried]
    if arguments.only:
        cases = [case for case in cases if any(each in case[0] for each in arguments.only)]
    seeds = range(1 if arguments.part == "tune" else arguments.seeds)
    with ThreadPoolExecutor(arguments.jobs) as pool:
        begun = [[pool.submit(run, seed) for seed in seeds] for _, _, run in cases]
        rows = []
        for (name, every, _), futures in zip(cases, begun, strict=True):
            found = [future.result() for future in futures]
            rows.append(_row(name, every, found))
            print(*rows[-1], sep=" | ", flush=True)
    heads = ["", "H", "seconds to 97.5 %", "mean", "best", "longest wait of a step", "off the true mean"]
    put(DOCUMENT, arguments.part, markdown(heads, rows))


def _row(name: str, every: int, found: list[Result]) -> list[str]:
    seconds = [each.seconds for each in found]
    told = ", ".join(
        f"{value:.0f}" if value is not None else f"> limit ({each.failure or 'no'})"
        for each, value in zip(found, seconds, strict=True)
    )
    mean = f"{fmean(value for value in seconds if value is not None):.0f} s" if None not in seconds else "–"
    agrees = [each.agrees for each in found if each.agrees is not None]
    return [
        name,
        str(every or ""),
        told,
        mean,
        f"{max(each.best for each in found):.4f}",
        f"{max(each.longest_wait_s for each in found):.1f} s",
        f"{fmean(agrees):.1e}" if agrees else "",
    ]


if __name__ == "__main__":
    main()

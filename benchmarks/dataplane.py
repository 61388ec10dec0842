"""Models of real size between two nodes, as two processes on one machine.  Fills docs/results/dataplane.md.

    python -m benchmarks.dataplane large                         # 124 M parameters, 35 ms of sleep for a step
    python -m benchmarks.dataplane large --device cuda --shape gpt2      # GPT-2, bf16 autocast, fused AdamW
    python -m benchmarks.dataplane large --device cuda --shape gpt2-xl --seconds 120
    python -m benchmarks.dataplane join                          # what a newcomer costs the others
    python -m benchmarks.dataplane checkpoint                    # beside torch.save
    python -m benchmarks.dataplane flexible                      # beside sending everything, and beside its predictions

About a minute for each strategy.  Nothing else should run on the machine meanwhile.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch

import atoll
from atoll.network import Network
from atoll.trace import Event, Exchanged, Planned, ReachChanged, read_trace
from benchmarks.common import RESULTS, markdown, put
from benchmarks.dataplane_node import Sleeper
from benchmarks.live import mesh, on_loopback, run

DOCUMENT = RESULTS / "dataplane.md"
STRATEGIES = (
    "none",
    "diloco:every=50,codec=int8,overlap",
    "diloco:every=50,codec=chunk2/64,overlap",
    "allreduce:every=50",
    "allreduce:every=50,overlap",
    "diloco:every=50,codec=int8,overlap,state=bfloat16",
)


def two_nodes(
    strategy: str, *, delay_s: float = 0.0, keep: Path | None = None, **settings: Any
) -> list[dict[str, Any]]:
    """Runs two processes, and adds to what each found the events of its trace.  `keep`: a folder for all of it."""
    with tempfile.TemporaryDirectory() as folder:
        nodes = []
        for place in range(2):
            told = {
                "strategy": strategy,
                "first": place == 0,
                "invitation": f"{folder}/invitation",
                "out": folder,
                "delay_s": delay_s if place else 0.0,
                **settings,
            }
            if place:
                told["seconds"] -= delay_s
            file = Path(folder) / f"{place}.json"
            file.write_text(json.dumps(told))
            command = [sys.executable, "-m", "benchmarks.dataplane_node", str(file)]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            with file.with_suffix(".log").open("wb") as log:
                nodes.append(subprocess.Popen(command, env=environment, stderr=log))
        for place, node in enumerate(nodes):
            if node.wait(timeout=settings["seconds"] + 300):
                said = (Path(folder) / f"{place}.log").read_text()
                raise SystemExit(f"{said[-3000:]}\na node has failed with exit status {node.returncode}")
        found = [json.loads((Path(folder) / f"{place}.found").read_text()) for place in range(2)]
        if keep is not None:
            shutil.copytree(folder, keep / strategy.replace(":", "-"))
        for each in found:
            each["events"] = list(read_trace(Path(folder) / f"{each['name']}.jsonl"))
        return found


def large(arguments: argparse.Namespace) -> None:
    rows: list[list[str]] = []
    alone = 0.0
    for strategy in arguments.strategies or STRATEGIES:
        nodes = two_nodes(
            strategy,
            keep=arguments.keep,
            seconds=arguments.seconds,
            parameters=int(arguments.parameters),
            device=arguments.device,
            shape=arguments.shape,
        )
        row, alone = _row(strategy, nodes, alone)
        rows.append(row)
        print(*row, sep=" | ", flush=True)
    heads = ["strategy", "rounds due", "done", "seconds a round", "lost a healthy peer", "step, ms", "longest"]
    heads += ["boundary, median, 99 %", "heartbeats, 99 %", "memory beyond training"]
    name = arguments.shape or f"{arguments.parameters / 1e6:.0f} M"
    put(DOCUMENT, f"large {name} {arguments.device}", markdown(heads, rows))


def _row(strategy: str, nodes: list[dict[str, Any]], alone: float) -> tuple[list[str], float]:
    steps = _together(nodes)
    mean = fmean(steps)
    alone = mean if strategy == "none" else alone
    every = int(strategy.partition("every=")[2].split(",")[0]) if "every=" in strategy else 0
    due = [(len(node["steps"]) - node["met"]) // every if every else 0 for node in nodes]
    rounds = [{event.name: event for event in _of(node["events"], Exchanged)} for node in nodes]
    # One of them leaves first, which is no loss.
    ends = min(event.at for node in nodes for event in node["events"][-1:])
    lost = sum(
        not event.reachable and event.at < ends - 0.5 for node in nodes for event in _of(node["events"], ReachChanged)
    )
    held = sorted(seconds for node in nodes for seconds in node["boundaries"])
    beats = sorted(seconds for node in nodes for seconds in node["beats"])
    weights = 4 * nodes[0]["parameters"]
    beyond = max((node["peak_bytes"] - node["before_bytes"]) / weights for node in nodes)
    more = f" ({mean / alone - 1:+.1%})" if alone and strategy != "none" else ""
    # Nodes do not begin a round at the same time: it takes from when the last of them begins it.
    shared = [[each[name] for each in rounds] for name in rounds[0] if all(name in each for each in rounds)]
    took = sorted(max(event.at for event in each) - max(event.since for event in each) for each in shared)
    return [
        f"`{strategy}`",
        "–" if not every else f"{min(due)}",
        "–" if not every else f"{min(len(each) for each in rounds)}",
        "–" if not took else f"{median(took):.2f} (at most {took[-1]:.2f})",
        str(lost),
        f"{mean * 1e3:.1f}{more}",
        f"{max(steps) * 1e3:.0f} ms, {max(steps) / median(steps):.1f} × the median",
        f"{held[len(held) // 2] * 1e3:.2f} ms, {held[int(0.99 * len(held))] * 1e3:.1f} ms",
        f"{beats[int(0.99 * len(beats))] * 1e3:.0f} ms (at most {beats[-1] * 1e3:.0f})" if beats else "–",
        f"{beyond:.1f} × the weights",
    ], alone


def _together(nodes: list[dict[str, Any]]) -> list[float]:
    """The durations of the steps while both nodes train: a GPU that they share is quicker for one alone."""
    first = max(node["begins"][node["met"]] for node in nodes)
    last = min(node["begins"][-1] for node in nodes)
    return [
        seconds
        for node in nodes
        for began, seconds in zip(node["begins"], node["steps"], strict=True)
        if first <= began and began + seconds <= last
    ]


def _of(events: list[Event], kind: type[Any]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def join(arguments: argparse.Namespace) -> None:
    """The first node trains alone, then a newcomer is handed the model."""
    first, _ = two_nodes(
        "allreduce:every=1000", delay_s=20.0, seconds=arguments.seconds, parameters=int(arguments.parameters)
    )
    before = median(first["steps"][: first["met"]])
    joining = first["steps"][first["met"] :]
    held = sum(max(0.0, seconds - before) for seconds in joining)
    row = [
        f"{arguments.parameters / 1e6:.0f} M",
        f"{before * 1e3:.1f} ms alone, {fmean(joining) * 1e3:.1f} from then on",
        f"{held:.2f} s in {sum(joining):.0f} s ({held / sum(joining):.1%})",
        "< 2 %",
    ]
    print(*row, sep=" | ")
    heads = ["parameters", "the host's step", "held up since a newcomer came", "goal"]
    put(DOCUMENT, "join", markdown(heads, [row]))


def checkpoint(arguments: argparse.Namespace) -> None:
    """`run.checkpoint` beside `torch.save` of the same model and optimiser."""
    sleeper = Sleeper(int(arguments.parameters))
    rows = []
    with tempfile.TemporaryDirectory() as folder, atoll.join("allreduce:every=50", out=folder) as run:
        run.wrap(sleeper.model, sleeper.optimizer)
        for name, save in (("`run.checkpoint`", run.checkpoint), ("`torch.save`", partial(_torch_save, sleeper))):
            took = []
            for number in range(3):
                path = Path(folder) / f"{number}.saved"
                began = time.perf_counter()
                save(path)
                with path.open("rb+") as file:
                    os.fsync(file.fileno())
                took.append(time.perf_counter() - began)
                size = path.stat().st_size
                path.unlink()
            rows.append([name, f"{median(took):.2f}", f"{size / 1e6:.0f}"])
            print(*rows[-1], sep=" | ")
    put(DOCUMENT, "checkpoint", markdown(["with fsync", "seconds", "MB"], rows))


def _torch_save(sleeper: Sleeper, path: Path) -> None:
    torch.save([sleeper.model.state_dict(), sleeper.optimizer.state_dict()], path)


def flexible(_: argparse.Namespace) -> None:
    """Exchanges of gradients by `flexible` and by sending everything, on loopback and at 100 Mbit/s."""
    rows = []
    for parameters in (10_000_000, 124_000_000):
        dense_s = 0.0
        for where in ("loopback", "100 Mbit/s"):
            for strategy in ("allreduce:quantity=gradient,via=direct", "flexible"):
                found = _exchanged(strategy, parameters, None if where == "loopback" else mesh(2, 100, 20))
                took, predicted, ways = found
                dense_s = median(took) if strategy != "flexible" else dense_s
                errors = sorted(abs(guess / real - 1) for guess, real in predicted)
                rows.append(
                    [
                        f"{parameters / 1e6:.0f} M, {where}",
                        f"`{strategy}`",
                        f"{median(took):.2f} ({min(took):.2f}–{max(took):.2f})",
                        f"{median(took) / dense_s:.2f}",
                        ", ".join(ways) or "–",
                        f"{median(errors):.0%}, {errors[int(0.9 * len(errors))]:.0%}" if errors else "–",
                    ]
                )
                print(*rows[-1], sep=" | ", flush=True)
    heads = ["parameters, link", "strategy", "seconds an exchange", "of `direct`", "plans"]
    heads += ["predictions are off by, median, 90 %"]
    put(DOCUMENT, "flexible", markdown(heads, rows))


def _exchanged(
    strategy: str, parameters: int, network: Network | None
) -> tuple[list[float], list[tuple[float, float]], list[str]]:
    """The seconds of exchanges, with what was predicted for each, and the plans that were made."""
    warm = 1 if strategy != "flexible" else 8  # until it knows the links, and what each plan costs
    settings: dict[str, Any] = {"strategy": strategy, "values": parameters}
    settings["count"] = warm + (4 if parameters > 20e6 else 20)
    if network is None:
        nodes = on_loopback("gradients", limit_s=900.0, **settings)
    else:
        nodes = run(network, "gradients", limit_s=900.0, **settings)
    exchanged = [{event.name: event for event in _of(node["events"], Exchanged)} for node in nodes.values()]
    planned = {event.name: event for node in nodes.values() for event in _of(node["events"], Planned)}
    # Nodes do not begin a round at the same time: it takes from when the last of them begins it.
    took = {
        name: max(each[name].at for each in exchanged) - max(each[name].since for each in exchanged)
        for name in exchanged[0]
        if all(name in each for each in exchanged)
    }
    names = list(took)[warm:]
    predicted = [(planned[name].seconds, took[name]) for name in names if name in planned]
    ways = dict.fromkeys(f"{planned[name].via} {planned[name].ratio:.2g}" for name in names if name in planned)
    return [took[name] for name in names], predicted, list(ways)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["large", "join", "checkpoint", "flexible"])
    parser.add_argument("--strategies", nargs="*", help="default: six")
    parser.add_argument("--keep", type=Path, help="a folder for traces, and how long each step took")
    parser.add_argument("--parameters", type=float, default=124e6)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--shape", default="", help="train a GPT of this shape: gpt2, gpt2-medium, gpt2-xl")
    arguments = parser.parse_args()
    {"large": large, "join": join, "checkpoint": checkpoint, "flexible": flexible}[arguments.what](arguments)


if __name__ == "__main__":
    main()

"""The live world on emulated networks, beside Gloo in the same network.  Fills docs/results/live.md.

    python -m benchmarks.live exchanges     # all-reduce where bandwidth, where latency, where both count
    python -m benchmarks.live lossy         # 25 MB over a long link that loses packets
    python -m benchmarks.live strands       # the same without BBR: how many connections bulk takes
    python -m benchmarks.live outages       # links that go away in the middle
    python -m benchmarks.live nodes         # partitions, nodes that are killed, vanish, and are replaced
    python -m benchmarks.live heartbeats    # 200 MB at 10 Mbit/s: who is suspected, and how late heartbeats are
    python -m benchmarks.live loopback      # GB/s without a network, with and without TLS
    python -m benchmarks.live agreement     # simulated and emulated, side by side: seconds and exchange times

In real time: seconds to minutes each, `agreement` an hour.  Nothing else should run on the machine meanwhile.
"""

import argparse
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from atoll.config import RunConfig
from atoll.network import Network, load_network, parse_network
from atoll.report.results import RunResult, read_result
from atoll.runs import simulate_run
from atoll.runs.emulated import is_valid, run_emulated
from atoll.trace import Exchanged, Tested, Waited, WayMeasured, read_trace
from atoll.world.emulate.supervisor import CONGESTION, Emulation, emulate
from atoll.world.faults import parse_faults
from atoll.world.live.host import best_congestion
from atoll.world.live.process import NodeFile
from benchmarks.common import RESULTS, markdown, put

DOCUMENT = RESULTS / "live.md"
HEADERS = 1500 / 1448


def mesh(count: int, rate_mbps: float, round_trip_ms: float, step_s: float = 1e-6, *, loss: float = 0.0) -> Network:
    text = f'[[node]]\ncount = {count}\nstep_s = {step_s}\n[[link]]\namong = "*"\nloss = {loss}\n'
    return parse_network(f"{text}latency_ms = {round_trip_ms / 2}\nrate_mbps = {rate_mbps}", name=f"mesh of {count}")


def run(
    network: Network, program: str, *, faults: str = "", limit_s: float = 300.0, congestion: str = "", **settings: Any
) -> dict[str, Any]:
    """Runs a program of live_nodes.py on all nodes of an emulated network; what each returned, with its `events`."""
    with tempfile.TemporaryDirectory() as folder:
        what = Emulation(
            network=network,
            program=f"benchmarks.live_nodes:{program}",
            settings=settings,
            folder=Path(folder),
            faults=parse_faults(faults, network.node_names),
            limit_s=limit_s,
            congestion=congestion or best_congestion() or CONGESTION,  # as nodes on real machines, and Gloo here
        )
        with emulate(what) as running:
            stats = running.wait()
        if not is_valid(stats):
            print(f"!! the switch was late: {stats.late_share:.1%} of packets, {stats.latest_s * 1e3:.0f} ms at most")
        return found_in(Path(folder))


def found_in(folder: Path) -> dict[str, Any]:
    """What the nodes of a folder have returned, each with its `events`."""
    names = [path.name.split(".")[1] for path in sorted(folder.glob("node.*.json")) if path.name.count(".") == 2]
    return {
        name: json.loads((folder / f"node.{name}.json").read_text())
        | {"events": list(read_trace(folder / f"node.{name}.0.jsonl"))}
        for name in names
    }


# All-reduce ---


def exchanges(arguments: argparse.Namespace) -> None:
    rows = []
    cases = [
        ("3 nodes, 10 MB, 50 Mbit/s a link, RTT 20 ms", mesh(3, 50, 20), 10_000_000, _direct_ideal(3, 10e6, 50, 20), 0),
        ("3 nodes, 4 KB, 50 Mbit/s, RTT 20 ms", mesh(3, 50, 20), 4_000, 0.010, 0.030),
        ("8 nodes, 1 MB, 100 Mbit/s, RTT 100 ms", mesh(8, 100, 100), 1_000_000, _direct_ideal(8, 1e6, 100, 100), 0.40),
    ]
    for name, network, size, ideal, goal in cases:
        if arguments.only and not any(each in name for each in arguments.only):
            continue
        settings: dict[str, Any] = {"bytes": size, "count": 20, "warm": 5}
        ours = {
            via: _summary(run(network, "exchanges", strategy=f"allreduce:via={via}", **settings))
            for via in ("direct", "gather")
        }
        gloo = _summary(run(network, "gloo", at="tcp://10.77.0.1:29500", **settings))
        best = min(ours, key=lambda via: ours[via][0])
        bound = goal or 1.03 * ideal
        rows.append(
            [
                name,
                f"{gloo[0]:.3f} ({gloo[1]:.3f}–{gloo[2]:.3f})",
                *(f"{found[0]:.3f} ({found[1]:.3f}–{found[2]:.3f})" for found in ours.values()),
                f"{ideal:.3f}",
                f"{ours[best][0] / ideal:.2f}",
                f"≤ {bound:.3f}: {'met' if ours[best][0] <= bound else 'missed'}",
            ]
        )
        print(*rows[-1], sep=" | ", flush=True)
    heads = ["scenario", "Gloo, s", "Atoll, direct", "Atoll, gather", "ideal", "of ideal", "goal"]
    put(DOCUMENT, "exchanges", markdown(heads, rows))


def _direct_ideal(nodes: int, size: float, rate_mbps: float, round_trip_ms: float) -> float:
    """Everybody sums a share and tells everybody, all links at once: twice a share over each link."""
    return 2 * (size / nodes * 8 * HEADERS / (rate_mbps * 1e6) + round_trip_ms / 2e3)


def _summary(results: dict[str, Any]) -> tuple[float, float, float]:
    assert all(found["right"] for found in results.values()), "a mean was wrong"
    took = [seconds for found in results.values() for seconds in found["took"]]
    return median(took), min(took), max(took)


def lossy(_: argparse.Namespace) -> None:
    """25 MB between two nodes: `direct` sends that much in each direction."""
    network, size, rate_mbps = mesh(2, 100, 80, loss=0.005), 25_000_000, 100
    ideal = size * 8 / (rate_mbps * 1e6)
    settings: dict[str, Any] = {"bytes": size, "count": 8, "warm": 2}
    ours = _summary(run(network, "exchanges", strategy="allreduce:via=direct", **settings))
    gloo = _summary(run(network, "gloo", at="tcp://10.77.0.1:29500", **settings))
    row = [
        *(f"{found[0]:.2f} ({found[1]:.2f}–{found[2]:.2f})" for found in (gloo, ours)),
        f"{ideal:.2f}",
        f"{ours[0] / ideal:.2f}",
        f"≤ {1.5 * ideal:.2f}: {'met' if ours[0] <= 1.5 * ideal else 'missed'}",
    ]
    print(*row, sep=" | ", flush=True)
    heads = ["Gloo, s", "Atoll, direct", "bytes/rate", "of bytes/rate", "goal"]
    put(DOCUMENT, "lossy", markdown(heads, [row]))


def strands(_: argparse.Namespace) -> None:
    """The same without BBR: exchanges one after the other, while nodes find out how many connections to take."""
    settings: dict[str, Any] = {"strategy": "allreduce:quantity=gradient,via=direct,patience=1000", "count": 10}
    network = mesh(2, 100, 80, loss=0.005)
    found = run(network, "gradients", congestion="cubic", limit_s=600.0, values=25_000_000 // 4, **settings)
    events = found["0"]["events"]
    rows: list[list[str]] = []
    for event in events:
        if isinstance(event, Exchanged):
            ways = [way for way in events if isinstance(way, WayMeasured) and event.since <= way.at <= event.at]
            counts = sorted({way.connections for way in ways})
            rows.append([f"{len(rows) + 1}", f"{event.at - event.since:.1f}", ", ".join(map(str, counts)) or "–"])
            print(*rows[-1], sep=" | ", flush=True)
    put(DOCUMENT, "strands", markdown(["exchange", "seconds", "connections meanwhile"], rows))


# Outages ---


def outages(_: argparse.Namespace) -> None:
    cut = '[[fault]]\nkind = "cut"\nbetween = ["0", "1"]\nat = {at}\nuntil = {until}\n'
    settings: dict[str, Any] = {
        "strategy": "allreduce:via=direct,patience=100",
        "bytes": 10_000_000,
        "count": 2,
        "warm": 1,
    }
    three = mesh(3, 50, 20)
    lost = run(three, "exchanges", faults=cut.format(at=2.0, until=62.0), **settings)
    never = run(three, "exchanges", faults=cut.format(at=0.0, until=62.0), **settings)
    longest = {
        name: max(max(found["took"]) for found in each.values()) for name, each in (("lost", lost), ("never", never))
    }
    rows = [
        [
            "one link of three down for 60 s in the middle of an exchange of 10 MB",
            f"{longest['lost']:.2f} s, and {longest['never']:.2f} s without that link",
            f"≤ 3 s later: {'met' if longest['lost'] - longest['never'] <= 3 else 'missed'}",
        ]
    ]
    print(*rows[-1], sep=" | ", flush=True)
    back = 61.0
    two = mesh(2, 50, 20, step_s=0.1)
    found = run(two, "transfer", faults=cut.format(at=1.0, until=back), bytes=20_000_000)
    goes_on = next(at for at, _ in found["1"]["progress"] if at > back) - back
    lost_kb, twice_kb = (found["0"]["sent"] - 20_000_000) / 1e3, found["1"]["twice"] / 1e3
    again = f"{lost_kb:.0f} kB that were under way were sent again, of which {twice_kb:.0f} kB had arrived"
    steps = f"longest step {max(each['longest_step_s'] for each in found.values()):.2f} s (declared 0.1)"
    rows.append(
        [
            "the only link of two down for 60 s in the middle of 20 MB",
            f"goes on {goes_on:.2f} s after its return; {again}; {steps}",
            f"≤ 1.5 s: {'met' if goes_on <= 1.5 else 'missed'}",
        ]
    )
    print(*rows[-1], sep=" | ", flush=True)
    put(DOCUMENT, "outages", markdown(["scenario", "Atoll", "goal"], rows))


# Nodes ---


def nodes(_: argparse.Namespace) -> None:
    network = mesh(3, 50, 20, step_s=0.5)
    fault = "[[fault]]\nat = 15\n"
    crash = f'{fault}kind = "crash"\nuntil = 22\nnodes = '
    cases = [
        ("nothing happens", "", ()),
        ("20 s partition, 2 + 1", f'{fault}until = 35\nkind = "partition"\nsides = [["0", "1"], ["2"]]', ()),
        ("a node is killed (-9) and replaced", f'{crash}"2"', ("2",)),
        ("the first node is killed and replaced", f'{crash}"0"', ("0",)),
        ("a host vanishes without a word", f'{fault}kind = "cut"\nbetween = ["2", "[01]"]', ("2",)),
    ]
    rows = []
    for name, script, gone in cases:
        spec = RunConfig(
            network=network,
            task="digits",
            strategy="allreduce:every=4",
            shards="dirichlet:0.3",
            limit_s=60.0,
            stops=False,
            faults=parse_faults(script, network.node_names),
        )
        result, events = _emulated(spec)
        others = [node for node in network.node_names if node not in gone]
        waits = [event for event in events if isinstance(event, Waited) and event.node in others]
        after = [event for event in waits if event.since >= 21.5]
        ends = [
            event.measure for event in events if isinstance(event, Tested) and event.at > 55 and event.node in others
        ]
        rows.append(
            [
                name,
                f"{max((event.at - event.since for event in waits if event.since > 3), default=0.0):.2f}",
                f"{max((event.at - event.since for event in after), default=0.0):.2f}",
                f"{fmean(ends):.1%}",
                "" if result.seconds_to_target is None else f"{result.seconds_to_target:.1f}",
            ]
        )
        print(*rows[-1], sep=" | ", flush=True)
    heads = [
        "what happens",
        "longest wait of a step of the others, s",
        "from the return on",
        "accuracy at 60 s",
        "seconds to target",
    ]
    put(DOCUMENT, "nodes", markdown(heads, rows))


def _emulated(spec: RunConfig) -> tuple[RunResult, list[Any]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.jsonl"
        for _ in run_emulated(spec, path):
            pass
        result = read_result(path)
        assert result is not None
        return result, list(read_trace(path))


# Heartbeats ---


def heartbeats(_: argparse.Namespace) -> None:
    found = run(mesh(2, 10, 20, step_s=0.5), "transfer", bytes=200_000_000, limit_s=400.0)
    took = found["0"]["ended"] - found["0"]["began"]
    ideal = 200e6 * 8 * HEADERS / 10e6 + 0.02
    longest = max(each["longest_beat_s"] for each in found.values())
    rows = [
        [
            "200 MB at 10 Mbit/s, RTT 20 ms",
            f"{took:.1f} s ({took / ideal:.3f} of ideal)",
            f"{longest * 1e3:.0f} ms",
            "never" if not any(each["unreached"] for each in found.values()) else "yes",
            f"≤ 100 ms queue + 40 ms: {'met' if longest <= 0.14 else 'missed'}",
        ]
    ]
    print(*rows[-1], sep=" | ", flush=True)
    put(
        DOCUMENT,
        "heartbeats",
        markdown(["scenario", "took", "longest heartbeat round trip", "taken for unreachable", "goal"], rows),
    )


# Loopback ---


def loopback(_: argparse.Namespace) -> None:
    rows = []
    for size, count in ((1_000_000, 60), (100_000_000, 8)):
        found = {
            "Gloo": on_loopback("gloo_throughput", encrypted=False, bytes=size, count=count),
            "Atoll in the clear": on_loopback("throughput", encrypted=False, bytes=size, count=count),
            "Atoll with TLS": on_loopback("throughput", bytes=size, count=count),
        }
        for name, nodes in found.items():
            rates = nodes["0"]["rates"][2:]
            rows.append([f"{size / 1e6:g} MB", name, f"{median(rates):.2f}", f"{max(rates):.2f}"])
            print(*rows[-1], sep=" | ", flush=True)
    put(DOCUMENT, "loopback", markdown(["message", "transport", "median GB/s", "best"], rows))


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def on_loopback(program: str, *, encrypted: bool = True, limit_s: float = 120.0, **settings: Any) -> dict[str, Any]:
    """Runs a program of live_nodes.py on two nodes on loopback; what each returned, with its `events`."""
    addresses = {name: ("127.0.0.1", _free_port()) for name in ("0", "1")}
    at = f"tcp://127.0.0.1:{_free_port()}"
    with tempfile.TemporaryDirectory() as folder:
        processes = []
        for name, own in addresses.items():
            file = NodeFile(
                name=name,
                names=("0", "1"),
                secret=bytes(32).hex(),
                listen=own,
                addresses={other: where for other, where in addresses.items() if other != name},
                program=f"benchmarks.live_nodes:{program}",
                settings={"at": at, **settings},
                folder=folder,
                encrypted=encrypted,
            )
            path = Path(folder) / f"{name}.start"
            file.write(path)
            command = [sys.executable, "-m", "atoll.world.live.process", str(path)]
            processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        for process in processes:
            assert process.stdout
            process.stdout.readline()
        begin = time.monotonic() + 0.2
        for process in processes:
            assert process.stdin
            process.stdin.write(f"{begin!r}\n".encode())
            process.stdin.flush()
        for process in processes:
            assert process.wait(limit_s) == 0
            process.stdin.close() if process.stdin else None
            process.stdout.close() if process.stdout else None
        return found_in(Path(folder))


# Agreement ---


def agreement(arguments: argparse.Namespace) -> None:
    """Simulated and emulated runs with the same seeds."""
    strategies = arguments.strategies or ["allreduce", "allreduce:gradient", "allreduce:ring"]
    rows = []
    for name in arguments.only or ["triangle", "nine"]:
        network = load_network(name)
        for strategy in strategies:
            pairs = []
            for seed in range(arguments.seeds):
                spec = RunConfig(network=network, task="digits", strategy=strategy, seed=seed, limit_s=arguments.limit)
                with tempfile.TemporaryDirectory() as folder:
                    path = Path(folder) / "simulated.jsonl"
                    simulate_run(spec, path)
                    simulated = read_result(path)
                    assert simulated is not None
                    pairs.append(((simulated, list(read_trace(path))), _emulated(spec)))
            for seed, ((simulated, _), (emulated, _)) in enumerate(pairs):
                print(f"seed {seed}: {simulated.seconds_to_target} and {emulated.seconds_to_target}", flush=True)
            rows.append([name, f"`{strategy}`", *_agreement(pairs)])
            print(*rows[-1], sep=" | ", flush=True)
            put(
                DOCUMENT,
                f"agreement {name}",
                markdown(
                    [
                        "network",
                        "strategy",
                        "seconds to target, simulated",
                        "emulated",
                        "ratio",
                        "waiting, simulated",
                        "emulated",
                        "exchange p50, simulated",
                        "emulated",
                        "p90, simulated",
                        "emulated",
                        "p95, simulated",
                        "emulated",
                    ],
                    [row for row in rows if row[0] == name],
                ),
            )


def _agreement(pairs: list[Any]) -> list[str]:
    seconds = [
        [result.seconds_to_target or result.ended_s for (result, _) in side] for side in zip(*pairs, strict=True)
    ]
    waiting = [fmean(result.waiting_share for (result, _) in side) for side in zip(*pairs, strict=True)]
    lengths = [
        np.array([e.at - e.since for (_, events) in side for e in events if isinstance(e, Exchanged)])
        for side in zip(*pairs, strict=True)
    ]
    found = [f"{fmean(seconds[0]):.1f}", f"{fmean(seconds[1]):.1f}", f"{fmean(seconds[1]) / fmean(seconds[0]):.2f}"]
    found += [f"{share:.0%}" for share in waiting]
    for share in (50, 90, 95):
        found += [f"{np.percentile(each, share):.3f}" for each in lengths]
    return found


PARTS: dict[str, Callable[[argparse.Namespace], None]] = {
    "exchanges": exchanges,
    "lossy": lossy,
    "strands": strands,
    "outages": outages,
    "nodes": nodes,
    "heartbeats": heartbeats,
    "loopback": loopback,
    "agreement": agreement,
}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("part", choices=PARTS)
    options.add_argument("--only", nargs="+")
    options.add_argument("--strategies", nargs="+")
    options.add_argument("--seeds", type=int, default=5)
    options.add_argument("--limit", type=float, default=200.0)
    arguments = options.parse_args()
    PARTS[arguments.part](arguments)


if __name__ == "__main__":
    main()

"""What happens when nodes and links fail: how long anybody's training stands still.  Fills docs/results/faults.md.

python -m benchmarks.faults          # a minute on one core

Three nodes at 50 Mbit/s with a round trip of 20 ms, half a second a step, digits, iid shards, training for two virtual
minutes after the fault: the scenarios of the table "Faults" that peers were measured on.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from atoll.network import parse_network
from atoll.trace import Computed, Event, Exchanged, read_trace
from atoll.train import RunSpec, simulate
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
STRATEGIES = ["allreduce", "allreduce:every=4", "allreduce:quantity=gradient", "vrl:codec=int8", "gossip"]
AT = 20.0


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


def measure(scenario: Scenario, strategy: str) -> list[Event]:
    net = parse_network(NETWORK.format(count=scenario.nodes), name="three")
    with tempfile.TemporaryDirectory() as folder:
        spec = RunSpec(
            network=net,
            task="digits",
            strategy=strategy,
            shards="iid",
            limit_s=(scenario.ends or AT) + 120,
            faults=parse_faults(scenario.script, net.node_names),
            stops=False,
        )
        simulate(spec, Path(folder) / "trace")
        return list(read_trace(Path(folder) / "trace"))


def longest_wait_s(events: list[Event], who: Callable[[str], bool]) -> float:
    """The longest time between the ends of two steps, beyond the half second that a step takes."""
    last: dict[str, float] = {}
    longest = 0.0
    for event in events:
        if isinstance(event, Computed) and who(event.node):
            if event.at > AT - 5 and event.node in last:
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


def main() -> None:
    rows = []
    for scenario in SCENARIOS:
        gone = scenario.script.split('nodes = "')[1][0] if "nodes" in scenario.script else ""
        for strategy in STRATEGIES:
            events = measure(scenario, strategy)
            again = together_again_s(events, scenario)
            waited = longest_wait_s(events, lambda node, gone=gone: node != gone)  # type: ignore[misc]
            shown = "" if again is None or strategy == "gossip" else f"{again:.1f}"
            rows.append([scenario.name, f"`{strategy}`", f"{waited:.2f}", shown])
            print(*rows[-1], sep=" | ", flush=True)
    heads = ["what happens", "strategy", "longest wait of a step, s", "all meet again after, s"]
    put(RESULTS / "faults.md", "waits", markdown(heads, rows))


if __name__ == "__main__":
    main()

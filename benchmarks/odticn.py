"""The networks of odticn (Harvard CS 243, 2023), measured again.  Fills docs/results/odticn.md.

    python -m benchmarks.odticn --data FOLDER        # mnist; about half an hour on two cores

An iteration is 11 steps at three nodes and 4 at nine, as published.
"""

import argparse
from pathlib import Path

from atoll.report.results import Comparison
from benchmarks.common import RESULTS, markdown, put, run_plan, seconds

PUBLISHED = {
    "odticn-3": {1: "173.56", 2: "110.92", 4: "80.14", 8: "106.69", "gossip": "142.41", "aware": "146.55"},
    "odticn-9": {1: "642.94", 2: "461.17", 4: "554.19", 8: "531.95", "gossip": "not reached", "aware": "not reached"},
    "odticn-9-own": {},
}
STEPS = {"odticn-3": 11, "odticn-9": 4, "odticn-9-own": 4}


def strategies(network: str) -> dict[str, str]:
    """What is run, and what it is called in the table."""
    steps = STEPS[network]
    told = {f"allreduce:every={steps * k}": f"all-reduce every {k}" for k in (1, 2, 4, 8)}
    return {
        "none": "no communication",
        **told,
        f"gossip:every={steps},equal": "gossip, equal weights",
        f"gossip:every={steps},equal,aware": "gossip, equal weights, aware",
        f"gossip:every={steps},pushsum": "gossip, push-sum",
        f"gossip:every={steps}": "gossip, drift",
        f"allreduce:every={steps},direct,overlap": "overlapped all-reduce",
        f"allreduce:every={steps},direct,overlap,shared": "overlapped, shared steps ahead",
        f"allreduce:every={steps},direct,overlap,nothing": "overlapped, nothing ahead",
        f"allreduce:every={2 * steps},direct,overlap,nothing": "overlapped every 2, nothing ahead",
    }


def published(network: str, spec: str) -> str:
    steps, known = STEPS[network], PUBLISHED[network]
    for k in (1, 2, 4, 8):
        if spec == f"allreduce:every={steps * k}":
            return known.get(k, "")
    if spec.endswith("equal"):
        return known.get("gossip", "")
    return known.get("aware", "") if spec.endswith("aware") else ""


def table(network: str, found: Comparison) -> str:
    rows = {row.strategy: row for row in found.rows()}
    names = strategies(network)
    plain = rows[f"allreduce:every={STEPS[network]}"]
    # The ceiling: what removing all communication from plain all-reduce would save, its steps being what they are.
    step_s = {"odticn-3": 7.5 / 11, "odticn-9": 5.0, "odticn-9-own": 0.68}[network]
    compute_s = plain.mean("steps_to_target") * step_s
    lines = []
    for spec, name in names.items():
        row = rows[spec]
        saving = "" if row.seconds is None or plain.seconds is None else f"{1 - row.seconds / plain.seconds:.0%}"
        removed = ""
        if row.seconds is not None and plain.seconds is not None and plain.seconds > compute_s:
            removed = f"{(plain.seconds - row.seconds) / (plain.seconds - compute_s):.0%}"
        lines.append(
            [
                name,
                f"`{spec}`",
                published(network, spec),
                seconds(row),
                saving,
                removed,
                f"{row.mean('waiting_share'):.0%}",
            ]
        )
    ceiling = f"{1 - compute_s / plain.seconds:.0%}" if plain.seconds else "–"
    heads = ["", "as written", "published", "seconds to 90 %", "saving", "of communication time removed", "waiting"]
    ideal = rows["none"].ideal_seconds
    return f"**{network}**: ideal {ideal:.1f} s; ceiling of savings {ceiling}\n\n{markdown(heads, lines)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", nargs="+", default=list(PUBLISHED))
    arguments = parser.parse_args()
    for network in arguments.only:
        found = run_plan(
            network,
            list(strategies(network)),
            task="mnist",
            data=arguments.data,
            shards="iid",
            seeds=arguments.seeds,
            jobs=arguments.jobs,
            device=arguments.device,
        )
        put(RESULTS / "odticn.md", network, table(network, found))


if __name__ == "__main__":
    main()

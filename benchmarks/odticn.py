"""The networks of odticn (Harvard CS 243, 2023), measured again.  Fills docs/results/odticn.md.

    python -m benchmarks.odticn --data FOLDER                            # mnist; hours on two cores
    python -m benchmarks.odticn --data FOLDER --device cuda --jobs 16    # about ten minutes
    python -m benchmarks.odticn --data FOLDER --outer                    # the tables with outer momentum

An iteration is 11 steps at three nodes and 4 at nine, as published.
"""

from pathlib import Path

from atoll.report.results import Comparison
from benchmarks.common import RESULTS, markdown, parser, put, run_plan, seconds

PUBLISHED = {
    "odticn-3": {1: "173.56", 2: "110.92", 4: "80.14", 8: "106.69", "gossip": "142.41", "aware": "146.55"},
    "odticn-9": {1: "642.94", 2: "461.17", 4: "554.19", 8: "531.95", "gossip": "not reached", "aware": "not reached"},
    "odticn-9-own": {},
}
STEPS = {"odticn-3": 11, "odticn-9": 4, "odticn-9-own": 4}


def with_outer_momentum(network: str) -> dict[str, str]:
    """A second table: what outer momentum adds."""
    steps = STEPS[network]
    return {
        "none": "no communication",
        f"allreduce:every={steps}": "all-reduce every 1",
        f"diloco:every={4 * steps},rate=1": "outer momentum, every 4",
        f"diloco:every={steps},rate=1,momentum=0.5,overlap": "outer momentum, overlapped",
        f"diloco:every={2 * steps},rate=1,overlap,nothing": "outer momentum, overlapped every 2, nothing ahead",
        "diloco:every=11,rate=1.5,momentum=0.6,overlap": "the same every 11 steps, tuned",
    }


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


def table(network: str, names: dict[str, str], found: Comparison) -> str:
    rows = {row.strategy: row for row in found.rows()}
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
    options = parser(__doc__)
    options.add_argument("--data", type=Path, required=True)
    options.add_argument("--only", nargs="+", default=list(PUBLISHED))
    options.add_argument("--outer", action="store_true", help="the table with outer momentum instead of the first")
    arguments = options.parse_args()
    for network in arguments.only:
        names = with_outer_momentum(network) if arguments.outer else strategies(network)
        found = run_plan(arguments, network, list(names), task="mnist", data=arguments.data, shards="iid")
        put(RESULTS / "odticn.md", network + " outer" * arguments.outer, table(network, names, found))


if __name__ == "__main__":
    main()

"""Every strategy on every network: seconds to target, ratio to ideal, bytes, waiting.  Fills docs/results/networks.md.

python -m benchmarks.networks                                  # digits, about ten minutes on two cores
python -m benchmarks.networks --mnist FOLDER --only nine       # mnist on nine: hours
"""

from pathlib import Path

from benchmarks.common import RESULTS, markdown, parser, put, run_plan, seconds

NETWORKS = ["triangle", "nine", "commute", "line", "partition"]
STRATEGIES = [
    "none",
    "allreduce",
    "allreduce:every=4",
    "allreduce:every=4,direct",
    "allreduce:every=4,best",
    "allreduce:direct,overlap",
    "allreduce:every=4,direct,overlap",
    "allreduce:gradient",
    "gossip",
    "gossip:aware",
    "gossip:equal",
    "gossip:age",
    "gossip:pushsum",
    "ssp",
    "allreduce:overlap,ahead=shared",
    "allreduce:overlap,ahead=shared,codec=int8",
    "diloco:every=8,rate=1",
    "sparseloco:every=4",
    "decent",
    "allreduce:every=4,paced",
    "vrl",
    "vrl:codec=int4",
    "vrl:codec=int4,overlap,warmup=5",
]


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--shards", nargs="+", default=["dirichlet:0.3", "label"])
    options.add_argument("--only", nargs="+", default=NETWORKS)
    options.add_argument("--mnist", type=Path, help="run mnist from this folder instead of digits")
    options.add_argument("--strategies", nargs="+", default=STRATEGIES)
    arguments = options.parse_args()
    task = "mnist" if arguments.mnist else "digits"
    for network in arguments.only:
        for shards in arguments.shards:
            found = run_plan(arguments, network, arguments.strategies, task=task, data=arguments.mnist, shards=shards)
            rows = [
                [
                    f"`{row.strategy}`",
                    seconds(row),
                    "–" if row.ratio is None else f"{row.ratio:.2f}",
                    f"{row.mean('bytes_sent') / row.runs[0].nodes / 1e6:.2f}",
                    f"{row.mean('waiting_share'):.0%}",
                    f"{row.mean('best'):.1%}",
                ]
                for row in found.rows()
            ]
            ideal = found.rows()[0].ideal_seconds
            heads = ["strategy", "seconds to target", "of ideal", "MB a node", "waiting", "best"]
            title = f"**{network}**, {task}, {shards} shards, ideal {ideal:.1f} s" if ideal else f"**{network}**"
            put(RESULTS / "networks.md", f"{task} {network} {shards}", f"{title}\n\n{markdown(heads, rows)}")


if __name__ == "__main__":
    main()

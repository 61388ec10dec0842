"""Did a change of the code change the numbers?  Runs the same comparisons on this tree and on another one.

    python -m benchmarks.same OTHER_TREE      # a checkout of another commit; five minutes on two cores

Of two seeds of eight pairs of network and strategy (one on islands), everything that `atoll compare --json` says is
compared: seconds to the target, steps, bytes, waiting, accuracies.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.common import markdown

HERE = Path(__file__).parents[1]
ISLANDS = ("--islands", "A1+A2+A3/B1+B2+B3/C1+C2+C3")
PAIRS: list[tuple[str, str, tuple[str, ...]]] = [
    ("triangle", "allreduce:every=4", ()),
    ("triangle", "vrl:codec=int4,overlap,warmup=5", ()),
    ("triangle", "gossip:aware", ()),
    ("nine", "allreduce:quantity=gradient", ()),
    ("nine", "sparseloco:every=4", ()),
    ("partition", "diloco:every=8,codec=int8", ()),
    ("commute", "flexible", ()),
    ("nine", "allreduce:every=8,overlap", ISLANDS),
]


def numbers(tree: Path, network: str, strategy: str, more: tuple[str, ...]) -> list[dict[str, Any]]:
    """What a tree says of a pair."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "atoll", "compare", network, "-s", strategy, "--seeds", "2", "--limit", "60"]
        command += ["--json", "numbers.json", *more]
        environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
        subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
        found: list[dict[str, Any]] = json.loads((Path(folder) / "numbers.json").read_text())["results"]
        return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("other", type=Path)
    arguments = options.parse_args()
    rows, differs = [], False
    for network, strategy, more in PAIRS:
        ours, theirs = (numbers(tree, network, strategy, more) for tree in (HERE, arguments.other.resolve()))
        changed = sorted(
            {key for one, other in zip(ours, theirs, strict=True) for key in one if one[key] != other[key]}
        )
        differs |= bool(changed)
        said = ", ".join(f"{each['bytes_sent']:,}" for each in ours)
        best = ", ".join(f"{each['best_accuracy']:.4f}" for each in ours)
        where = f"{network}, islands" if more else network
        rows.append([where, f"`{strategy}`", said, best, ", ".join(changed) or "none"])
        print(*rows[-1], sep=" | ", flush=True)
    print(markdown(["network", "strategy", "bytes sent, two seeds", "best accuracy", "what differs"], rows))
    sys.exit(differs)


if __name__ == "__main__":
    main()

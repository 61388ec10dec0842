"""What benchmarks of strategies share: running a plan, and putting tables into documents."""

import argparse
import re
import tempfile
import time
from pathlib import Path

from rich.console import Console

from atoll.compare import ComparisonPlan, compare
from atoll.config import RunConfig
from atoll.network import load_network
from atoll.report.results import Comparison, Row

RESULTS = Path(__file__).parents[1] / "docs" / "results"


def parser(about: str | None) -> argparse.ArgumentParser:
    """A command line with what every benchmark of strategies takes."""
    made = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--seeds", type=int, default=5)
    made.add_argument("--jobs", type=int, default=2)
    made.add_argument("--device", default="cpu")
    made.add_argument("--limit", type=float, help="virtual seconds; twenty ideals if left out")
    return made


def run_plan(
    arguments: argparse.Namespace, network: str, strategies: list[str], *, task: str, data: Path | None, shards: str
) -> Comparison:
    """Compares strategies as the command line says."""
    began = time.perf_counter()
    base = RunConfig(
        network=load_network(network),
        task=task,
        data=data,
        shards=shards,
        limit_s=arguments.limit,
        device=arguments.device,
    )
    plan = ComparisonPlan(base=base, strategies=tuple(dict.fromkeys(strategies)), seeds=tuple(range(arguments.seeds)))
    with tempfile.TemporaryDirectory() as folder:
        found = compare(plan, Path(folder), jobs=arguments.jobs, console=Console(quiet=True))
    print(f"{network}, {task}, {shards}: {time.perf_counter() - began:.0f} s", flush=True)
    return found


def seconds(row: Row) -> str:
    if row.seconds is None:
        return f"{row.reached} of {len(row.runs)} arrive" if row.reached else "not reached"
    return f"{row.seconds:.1f} ± {row.interval or 0:.1f}"


def markdown(heads: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def put(document: Path, name: str, content: str) -> None:
    """Puts content between the marks `<!-- name -->` and `<!-- end name -->` of a document."""
    start, end = f"<!-- {name} -->", f"<!-- end {name} -->"
    text = document.read_text() if document.exists() else ""
    block = f"{start}\n{content}\n{end}"
    if start in text:
        text = re.sub(re.escape(start) + ".*?" + re.escape(end), lambda _: block, text, flags=re.DOTALL)
    else:
        text += f"\n{block}\n"
    document.parent.mkdir(parents=True, exist_ok=True)
    document.write_text(text)

"""A small comparison, run once for all tests of reports."""

from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from atoll.config import RunConfig
from atoll.network import load_network
from atoll.runs import IDEAL_STRATEGY, simulate_run


@cache
def small_comparison() -> Path:
    """Traces of two strategies, one of which never arrives, over two seeds."""
    folder = Path(mkdtemp(prefix="atoll-test-"))
    network = load_network("triangle")
    for seed in (0, 1):
        for strategy, role, shards in (
            (IDEAL_STRATEGY, "ideal", "iid"),
            ("allreduce:every=4", "strategy", "iid"),
            ("none", "strategy", "iid"),
        ):
            spec = RunConfig(
                network=network,
                task="digits",
                strategy=strategy,
                shards=shards,
                seed=seed,
                limit_s=20.0 if strategy == "none" else 300.0,
                role=role,  # type: ignore[arg-type]
            )
            simulate_run(spec, folder / spec.file_name)
    return folder

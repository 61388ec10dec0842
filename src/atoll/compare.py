"""The main job: time to target by strategy, on this network, for this task.

First the ideal is run (gradients averaged every step on perfect links), then every strategy with every seed.  A
strategy that beats the ideal is run on perfect links too, to separate the effects of the network and of the
optimiser.  A run that fails is a result like any other: the other runs continue, and the table shows the failure.
"""

import dataclasses
import io
import tempfile
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from atoll.config import Role, RunConfig
from atoll.errors import CheckpointError, ConfigError
from atoll.islands.layout import lay_out
from atoll.network import Network, load_network
from atoll.report.failures import RunFailure
from atoll.report.progress import RunsProgress
from atoll.report.results import Comparison, RunResult, read_result
from atoll.report.tables import comparison_table
from atoll.runs import IDEAL_STRATEGY, simulate_run
from atoll.runs.batch import run_all
from atoll.runs.emulated import emulate_all
from atoll.runs.node import check_device
from atoll.script.launch import parse_for_script
from atoll.strategies import parse_strategy
from atoll.training import Task, load_task, parse_shards
from atoll.training.checkpoint import latest
from atoll.training.taskcheck import check_task

__all__ = ["DEFAULT_STRATEGIES", "ComparisonPlan", "compare", "simulate"]

DEFAULT_STRATEGIES = (
    "none",
    "allreduce",
    "allreduce:every=4",
    "allreduce:overlap,ahead=shared",
    "vrl:codec=int4,overlap,warmup=5",
    "gossip:aware",
    "sparseloco:every=4",
)
"""A good selection: none, every step, less often, overlapped, corrected for drift, gossip, and very sparse."""
LIMIT_IDEALS = 20.0
LEAST_LIMIT_S = 60.0
SCRIPT_LIMIT_S = 3600.0


@dataclass(frozen=True, kw_only=True)
class ComparisonPlan:
    """A plan compares strategies, each with several seeds; everything else is the same."""

    base: RunConfig
    """The configuration that all runs share.  The ideal is always simulated, and has no faults."""
    strategies: tuple[str, ...]
    seeds: tuple[int, ...] = (0,)

    @property
    def pairs(self) -> list[tuple[str, int]]:
        """Pairs of strategy and seed, in the order of the runs."""
        return [(strategy, seed) for seed in self.seeds for strategy in self.strategies]

    def check(self) -> None:
        """Raises an error if a run is not possible, before any run starts."""
        base = self.base
        if base.world == "live":
            raise ConfigError("a live run is begun by `atoll node --config FILE --listen HOST:PORT`")
        if base.role != "strategy":
            raise ConfigError(f"role {base.role!r}: such runs are part of a comparison: leave out the role")
        for strategy in self.strategies:
            if base.script and strategy:
                parse_for_script(strategy)
            elif not base.script:
                parse_strategy(strategy)
        if base.script:
            self._check_script()
            return
        if base.resume and base.checkpoints is None:
            raise CheckpointError("--resume: expected --checkpoint FOLDER too, which says where to go on from")
        check_device(base.device)
        task = load_task(base.task, base.data)
        labels = task.labels if task.labels is not None else task.train.targets
        settings = base.island_settings
        parts = len(lay_out(base.links, task, settings).islands) if settings else len(base.links)
        parse_shards(base.shards).deal(labels.numpy(), parts, self.seeds[0])
        if base.resume and base.world == "sim":
            for strategy in self.strategies:
                for seed in self.seeds:
                    folder = self.config(strategy, seed, None).checkpoints
                    assert folder is not None, "resuming is from somewhere"
                    latest(folder)

    def _check_script(self) -> None:
        base = self.base
        if base.islands:
            raise ConfigError("a script forms islands itself (run.wrap_stages): leave out --islands")
        if base.world != "emulate":
            raise ConfigError("a script runs in real time: say --world emulate (atoll.simulate is for tasks)")
        if base.checkpoints:
            raise ConfigError("a script saves by itself, with run.checkpoint(path): leave out --checkpoint")
        if not Path(base.script[0]).is_file():
            raise ConfigError(f"there is no script {base.script[0]}")

    def config(self, strategy: str, seed: int, limit_s: float | None, role: Role = "strategy") -> RunConfig:
        """Returns the configuration of one run."""
        run = dataclasses.replace(self.base, strategy=strategy, seed=seed, limit_s=limit_s, role=role)
        if role != "strategy":
            return dataclasses.replace(run, world="sim", faults=(), checkpoints=None, resume=False, save=None)
        own = Path(run.file_name).stem
        if run.checkpoints is None or run.checkpoints.name == own:  # as in the file of a run that is repeated
            return run
        return dataclasses.replace(run, checkpoints=run.checkpoints / own)


def compare(plan: ComparisonPlan, folder: Path, *, jobs: int, console: Console) -> Comparison:
    """Runs a plan and writes traces to `folder`; deletes those of an earlier comparison there."""
    plan.check()
    folder.mkdir(parents=True, exist_ok=True)
    replaced = list(folder.glob("*.jsonl"))
    for old in [*replaced, *folder.glob("*.failed.json")]:
        old.unlink()
    if replaced:
        told = f"Deleted {len(replaced)} traces of earlier runs in {folder}; --out keeps them apart."
        console.print(told, highlight=False, soft_wrap=True)
    runs = _Runs(folder, jobs, console)
    base = plan.base
    limit_s = base.limit_s or SCRIPT_LIMIT_S
    if not base.script:
        ideals = runs.run([plan.config(IDEAL_STRATEGY, seed, base.limit_s or 4000.0, "ideal") for seed in plan.seeds])
        slowest = max(run.seconds_to_target or run.ended_s for run in ideals)
        limit_s = base.limit_s or max(LEAST_LIMIT_S, LIMIT_IDEALS * slowest)
    runs.run([plan.config(strategy, seed, limit_s) for strategy, seed in plan.pairs], base.world)
    better = [row.strategy for row in runs.found.rows() if row.ratio is not None and row.ratio < 1]
    perfect = [plan.config(strategy, seed, limit_s, "perfect") for strategy in better for seed in plan.seeds]
    if perfect:
        runs.run(perfect)
    return runs.found


class Simulated:
    """The result of a comparison; printing it shows a table."""

    def __init__(self, found: Comparison) -> None:
        self.comparison = found

    @property
    def seconds(self) -> dict[str, float | None]:
        """Seconds to the target, by strategy; `None` where not all seeds reach it."""
        return {row.strategy: row.seconds for row in self.comparison.rows()}

    def __str__(self) -> str:
        console = Console(width=110, file=io.StringIO(), force_terminal=False)
        with console.capture() as capture:
            console.print(comparison_table(self.comparison))
        return capture.get().rstrip()

    __repr__ = __str__


def simulate(
    task: Task,
    network: str | Network = "triangle",
    strategies: Iterable[str] = DEFAULT_STRATEGIES,
    *,
    shards: str = "dirichlet:0.3",
    seeds: int = 1,
    limit_s: float | None = None,
) -> Simulated:
    """Compares strategies for your own task, in simulation, in this process.

    Args:
        task: model, data, loss, measure, target.
        network: a preset's name, the path of a TOML file, or a network.
        strategies: as in `atoll strategies`.
        shards: how examples are distributed among the nodes.
        seeds: the number of seeds.
        limit_s: the limit in virtual seconds; by default twenty times the ideal.
    """
    net = network if isinstance(network, Network) else load_network(network)

    def run(strategy: str, seed: int, limit: float, role: Role = "strategy") -> RunResult:
        config = RunConfig(
            network=net, task=task.name, strategy=strategy, shards=shards, seed=seed, limit_s=limit, role=role
        )
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / config.file_name
            simulate_run(config, path, task=task)
            result = read_result(path)
        assert result is not None, "a run that returned has ended"
        return result

    check_task(task)
    for strategy in strategies:
        parse_strategy(strategy)
    ideals = [run(IDEAL_STRATEGY, seed, limit_s or 4000.0, "ideal") for seed in range(seeds)]
    slowest = max(each.seconds_to_target or each.ended_s for each in ideals)
    limit = limit_s or max(LEAST_LIMIT_S, LIMIT_IDEALS * slowest)
    results = [run(strategy, seed, limit) for strategy in dict.fromkeys(strategies) for seed in range(seeds)]
    return Simulated(Comparison.of([*ideals, *results]))


class _Runs:
    """The runs of a comparison so far, and their results."""

    def __init__(self, folder: Path, jobs: int, console: Console) -> None:
        self._folder = folder
        self._jobs = jobs
        self._console = console
        self._results: list[RunResult] = []
        self._failures: list[RunFailure] = []

    @property
    def found(self) -> Comparison:
        return Comparison.of(self._results, self._failures)

    def run(self, configs: list[RunConfig], world: str = "sim") -> list[RunResult]:
        """Does these runs and returns the results of those that completed; if none did, raises the first error."""
        results: list[RunResult] = []
        errors: list[Exception] = []
        with RunsProgress(self._console, board=world == "emulate" or len(configs) == 1) as progress:

            def failed(config: RunConfig, error: Exception) -> None:
                errors.append(error)
                failure = RunFailure.of(config.strategy, config.role, config.seed, error)
                self._failures.append(failure)
                failure.write(self._folder / config.file_name)
                progress.failed(self._folder / config.file_name, failure.told)

            if world == "emulate":
                running = emulate_all(configs, self._folder, on_failure=failed)
            else:
                running = run_all(configs, self._folder, jobs=self._jobs, on_failure=failed)
            for config in configs:
                progress.add(self._folder / config.file_name, config.label, config.limit_s or 0.0)
            with closing(running) as runs:  # no run is left behind after an error
                for done in runs:
                    if done is None:
                        progress.update()
                        continue
                    result = read_result(self._folder / done.file_name)
                    assert result is not None, "a run that returned has ended"
                    results.append(result)
                    compared = done.strategy if done.role == "strategy" else None
                    progress.done(result.path, result.seconds_to_target, compared)
        if errors and not results and not any(each.role == "strategy" for each in self._results):
            raise errors[0]
        results.sort(key=lambda run: (run.strategy, run.seed))
        self._results += results
        return results

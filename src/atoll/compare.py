"""The main job: which way of talking reaches the target first, on this network, for this task.

First the ideal is run (gradients averaged every step on perfect links), then every strategy with every seed.  A
strategy that beats the ideal is run on perfect links too, so that the network's and the optimiser's shares can be told
apart.  A run that fails is a result like any other: the rest go on, and the table says which run failed and why.
"""

import dataclasses
import io
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from atoll.errors import EmulationError, nearest
from atoll.islands.layout import lay_out
from atoll.islands.settings import parse_islands
from atoll.network import Network, load_network
from atoll.report.failures import RunFailure
from atoll.report.progress import RunsProgress
from atoll.report.results import Comparison, RunResult, read_result
from atoll.report.tables import comparison_table
from atoll.runs import IDEAL_STRATEGY, RunSpec
from atoll.runs import simulate as simulate_run
from atoll.runs.batch import run_all
from atoll.runs.emulated import emulate_all
from atoll.runs.simulated import check_device
from atoll.script.launch import parse_for_script
from atoll.strategies import parse_strategy
from atoll.training import Task, load_task, parse_shards
from atoll.training.checkpoint import latest
from atoll.training.taskcheck import check_task
from atoll.world.faults import Fault

__all__ = ["DEFAULT_STRATEGIES", "Plan", "compare", "simulate"]

DEFAULT_STRATEGIES = (
    "none",
    "allreduce",
    "allreduce:every=4",
    "allreduce:overlap,ahead=shared",
    "vrl:codec=int4,overlap,warmup=5",
    "gossip:aware",
    "sparseloco:every=4",
)
"""A good choice: nothing, everything, less of it, overlapped, corrected for drift, gossip, and very little of it."""
WORLDS = ("sim", "emulate")
LIMIT_IDEALS = 20.0
LEAST_LIMIT_S = 60.0
SCRIPT_LIMIT_S = 3600.0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is compared."""

    network: Network
    task: str
    data: Path | None
    strategies: tuple[str, ...]
    shards: str
    seeds: tuple[int, ...]
    limit_s: float | None = None
    """Virtual seconds; `None`: twenty times the ideal."""
    device: str = "cpu"
    faults: tuple[Fault, ...] = ()
    """What is done to nodes and links in every run of a strategy; the ideal is spared."""
    checkpoints: Path | None = None
    """Where checkpoints of the runs of strategies go."""
    checkpoint_s: float = 60.0
    resume: bool = False
    """Whether to go on from the last ones."""
    world: str = "sim"
    """Where strategies are run: `sim`, or `emulate`, one at a time and in real time.  The ideal is always simulated."""
    script: tuple[str, ...] = ()
    """A user's own script and its arguments, instead of a task; there is no ideal then."""
    islands: str = ""
    """Which nodes hold the model together; empty: every node holds all of it."""

    @classmethod
    def of(
        cls,
        network: Network,
        *,
        task: str,
        data: Path | None,
        strategies: Iterable[str],
        shards: str,
        seeds: Iterable[int],
        limit_s: float | None = None,
        device: str = "cpu",
        faults: tuple[Fault, ...] = (),
        checkpoints: Path | None = None,
        checkpoint_s: float = 60.0,
        resume: bool = False,
        world: str = "sim",
        script: Sequence[str] = (),
        islands: str = "",
    ) -> "Plan":
        """A plan as users ask for it: each strategy once; on the networks of odticn, `mnist` as odticn trained it."""
        if network.name.startswith("odticn") and task == "mnist":
            task = "mnist-plain"
        return cls(
            network=network,
            task=task,
            data=data,
            strategies=tuple(dict.fromkeys(strategies)),
            shards=shards,
            seeds=tuple(seeds),
            limit_s=limit_s,
            device=device,
            faults=faults,
            checkpoints=checkpoints,
            checkpoint_s=checkpoint_s,
            resume=resume,
            world=world,
            script=tuple(script),
            islands=islands,
        )

    def check(self) -> None:
        """Refuses what cannot be run, before anything runs."""
        if self.world not in WORLDS:
            raise EmulationError(f"there is no world {self.world!r}; {nearest(self.world, WORLDS)}")
        if self.world == "emulate" and self.checkpoints:
            raise EmulationError("checkpoints are of simulated runs: leave out --checkpoint, or --world emulate")
        for strategy in self.strategies:
            if self.script and strategy:
                parse_for_script(strategy)
            elif not self.script:
                parse_strategy(strategy)
        if self.islands and self.script:
            raise EmulationError("a script forms islands itself (run.wrap_stages): leave out --islands")
        if self.script:
            self._check_script()
            return
        check_device(self.device)
        shards = parse_shards(self.shards)
        task = load_task(self.task, self.data)
        labels = task.labels if task.labels is not None else task.train.targets
        parts = len(self.network)
        if self.islands:
            parts = len(lay_out(self.network, task, parse_islands(self.islands)).islands)
        shards.deal(labels.numpy(), parts, self.seeds[0])
        if self.resume:
            for strategy in self.strategies:
                for seed in self.seeds:
                    folder = self.spec(strategy, seed, 0.0).checkpoints
                    assert folder is not None, "resuming is from somewhere"
                    latest(folder)

    def _check_script(self) -> None:
        if self.world != "emulate":
            raise EmulationError("a script runs in real time: say --world emulate (atoll.simulate is for tasks)")
        if not Path(self.script[0]).is_file():
            raise EmulationError(f"there is no script {self.script[0]}")

    def spec(self, strategy: str, seed: int, limit_s: float, role: str = "strategy") -> RunSpec:
        run = RunSpec(
            network=self.network if role == "strategy" else self.network.perfected(),
            task=self.task,
            data=self.data,
            strategy=strategy,
            shards=self.shards,
            seed=seed,
            limit_s=limit_s,
            role=role,
            device=self.device,
            script=self.script,
            islands=self.islands,
        )
        if role != "strategy":
            return run
        folder = self.checkpoints and self.checkpoints / Path(run.file_name).stem
        return dataclasses.replace(
            run, faults=self.faults, checkpoints=folder, checkpoint_s=self.checkpoint_s, resume=self.resume
        )


def compare(plan: Plan, folder: Path, *, jobs: int, console: Console) -> Comparison:
    """Runs a plan; traces go to `folder`, which loses those of an earlier comparison."""
    plan.check()
    folder.mkdir(parents=True, exist_ok=True)
    replaced = list(folder.glob("*.jsonl"))
    for old in [*replaced, *folder.glob("*.failed.json")]:
        old.unlink()
    if replaced:
        console.print(f"{len(replaced)} traces of earlier runs in {folder} make room.", highlight=False, soft_wrap=True)
    runs = _Runs(folder, jobs, console)
    limit_s = plan.limit_s or SCRIPT_LIMIT_S
    if not plan.script:
        ideal_limit_s = plan.limit_s or 4000.0
        ideals = runs.run([plan.spec(IDEAL_STRATEGY, seed, ideal_limit_s, "ideal") for seed in plan.seeds])
        slowest = max(run.seconds_to_target or run.ended_s for run in ideals)
        limit_s = plan.limit_s or max(LEAST_LIMIT_S, LIMIT_IDEALS * slowest)
    runs.run([plan.spec(strategy, seed, limit_s) for seed in plan.seeds for strategy in plan.strategies], plan.world)
    better = [row.strategy for row in runs.found.rows() if row.ratio is not None and row.ratio < 1]
    perfect = [plan.spec(strategy, seed, limit_s, "perfect") for strategy in better for seed in plan.seeds]
    if perfect:
        runs.run(perfect)
    return runs.found


class Simulated:
    """What a comparison came to; printing it shows a table."""

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
    """Compares strategies for a task of one's own, in simulation, here and now.

    Args:
        task: model, data, loss, measure, target.
        network: a preset's name, the path of a TOML file, or a network.
        strategies: as in `atoll strategies`.
        shards: how examples are dealt out.
        seeds: how many.
        limit_s: virtual seconds; twenty times the ideal if left out.
    """
    net = network if isinstance(network, Network) else load_network(network)

    def run(strategy: str, seed: int, limit: float, role: str = "strategy") -> RunResult:
        spec = RunSpec(
            network=net if role == "strategy" else net.perfected(),
            task=task.name,
            strategy=strategy,
            shards=shards,
            seed=seed,
            limit_s=limit,
            role=role,
        )
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / spec.file_name
            simulate_run(spec, path, task=task)
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
    """Runs that a comparison has had done so far, and what became of each."""

    def __init__(self, folder: Path, jobs: int, console: Console) -> None:
        self._folder = folder
        self._jobs = jobs
        self._console = console
        self._results: list[RunResult] = []
        self._failures: list[RunFailure] = []

    @property
    def found(self) -> Comparison:
        return Comparison.of(self._results, self._failures)

    def run(self, specs: list[RunSpec], world: str = "sim") -> list[RunResult]:
        """Does these runs and returns the results of those that ended; if none did, raises what went wrong first."""
        results: list[RunResult] = []
        errors: list[Exception] = []
        with RunsProgress(self._console, board=world == "emulate" or len(specs) == 1) as progress:

            def failed(spec: RunSpec, error: Exception) -> None:
                errors.append(error)
                failure = RunFailure.of(spec.strategy, spec.role, spec.seed, error)
                self._failures.append(failure)
                failure.write(self._folder / spec.file_name)
                progress.failed(self._folder / spec.file_name, failure.told)

            if world == "emulate":
                running = emulate_all(specs, self._folder, on_failure=failed)
            else:
                running = run_all(specs, self._folder, jobs=self._jobs, on_failure=failed)
            for spec in specs:
                progress.add(self._folder / spec.file_name, spec.label, spec.limit_s)
            with closing(running) as runs:  # whatever happens, nothing is left running
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

"""`atoll fuzz`: strategies under random faults."""

import os
from collections import Counter
from contextlib import closing
from typing import Annotated

import typer
from rich.console import Console

from atoll.cli.app import app

__all__ = ["fuzz"]


@app.command()
def fuzz(
    seeds: Annotated[int, typer.Option(min=1, help="Number of random fault scripts.")] = 200,
    first: Annotated[int, typer.Option(min=0, help="The first seed.")] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Parallel runs.")] = os.cpu_count() or 1,
    strategies: Annotated[
        list[str] | None,
        typer.Option("--strategy", "-s", help="A communication strategy; repeat for several. Default: all."),
    ] = None,
    *,
    islands: Annotated[bool, typer.Option("--islands", help="Test islands: models split over several nodes.")] = False,
) -> None:
    """Run strategies under random faults, in simulation, and check that invariants hold."""
    from rich.progress import Progress

    from atoll.fuzz import STRATEGIES, Failure, fuzz, minimise
    from atoll.fuzz.islands import ISLAND_STRATEGIES
    from atoll.strategies import parse_strategy

    console = Console()
    chosen = tuple(strategies or (ISLAND_STRATEGIES if islands else STRATEGIES))
    for strategy in chosen:
        parse_strategy(strategy)
    counts: Counter[str] = Counter()
    failures: list[Failure] = []
    done = 0
    stopped = False
    try:
        with (
            Progress(console=console, transient=True) as progress,
            closing(fuzz(range(first, first + seeds), chosen, jobs=jobs, islands=islands)) as found,
        ):
            bar = progress.add_task("Fuzzing", total=seeds)
            for each in found:
                if each is None:
                    continue
                done += 1
                progress.update(bar, completed=done)
                case = each.case if isinstance(each, Failure) else each
                counts.update(fault.kind for fault in case.faults)
                if isinstance(each, Failure):
                    failures.append(each)
                    what = " ".join(each.what.split())
                    console.print(
                        f"seed {case.seed}, {case.strategy}: {what}", markup=False, highlight=False, soft_wrap=True
                    )
    except KeyboardInterrupt:
        stopped = True
    injected = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    told = f"Stopped after {done} of {seeds} seeds" if stopped else f"{seeds} seeds"
    console.print(f"{told}, {len(failures)} failures. Faults: {injected or 'none'}.", highlight=False)
    for failure in [] if stopped else failures[:3]:
        small = minimise(failure)
        again = "".join(f" -s {strategy}" for strategy in strategies or ()) + (" --islands" if islands else "")
        console.print(f"\nseed {small.case.seed}, {small.case.strategy}: {small.what}", markup=False, highlight=False)
        console.print(f"{small.case.network}\n{small.case.script}", markup=False, highlight=False)
        console.print(f"Again: atoll fuzz --first {small.case.seed} --seeds 1{again}", markup=False, highlight=False)
    if failures or stopped:
        raise typer.Exit(130 if stopped else 1)

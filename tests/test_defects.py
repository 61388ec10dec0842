"""The benchmarks of defects measure what they say: rises of a loss, the best model, and lies that are told."""

import os
import subprocess
import sys
from pathlib import Path

from benchmarks.defect_liar import LIES
from benchmarks.defect_nodes import longest_gap
from benchmarks.defect_plot import plot
from benchmarks.defect_story import Curve, Story

ROOT = Path(__file__).parents[1]


def curve(node: str, losses: list[float], *, start: float = 0.0, since: float | None = 0.0, ended: float = 99) -> Curve:
    times = [start + 10.0 * place for place in range(len(losses))]
    return Curve(node, 1, times, losses, [0.1] * len(losses), since, [25.0], ended)


def story() -> Story:
    """One that is killed with the best model, and one that is handed a worse one."""
    first = curve("alpha", [3.0, 2.0, 1.0, 0.9], ended=35.0)
    second = curve("beta", [4.0, 2.1, 1.1, 1.5, 1.2], start=1.0, since=10.0)
    return Story("allreduce", [first, second], [(0.0, "alpha", "begins"), (35.0, "alpha", "is killed (-9)")])


def test_a_rise_is_of_the_runs_model_and_knows_its_exchanges() -> None:
    rises = {(jump.node, round(jump.rise, 3)): jump.exchanges for jump in story().jumps}
    assert rises["beta", 0.4] == 1, "the exchange at 25 s"
    assert rises["alpha", -0.1] == 1
    assert rises["alpha", -1.0] == 0
    assert ("beta", -1.9) not in rises, "what it was before it had the run's model is no part of it"


def test_the_best_model_is_one_that_somebody_alive_holds() -> None:
    best = dict(story().best())
    assert best[30.0] == 0.9
    assert best[31.0] == 0.9, "alpha is alive"
    assert best[41.0] == 1.2
    text = story().table()
    assert "+0.400 (beta at 31 s, 1.100 → 1.500)" in text
    assert "+0.300 at 41 s" in text, "what was learned and is lost"


def test_a_story_is_kept_and_drawn(tmp_path: Path) -> None:
    story().save(tmp_path / "story.json")
    assert Story.load(tmp_path / "story.json") == story()
    plot(story(), tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 10_000


def test_gaps() -> None:
    assert longest_gap([1.0, 2.0, 7.0, 30.0], 0.0, 10.0) == 5.0
    assert longest_gap([], 0.0, 10.0) == 10.0


def test_every_lie_finds_its_place() -> None:
    """A lie that is told nowhere would measure nothing."""
    code = """
import sys
from atoll import cli
from benchmarks import defect_liar
cli.main = lambda: print(*sys.argv)
for lie in defect_liar.LIES:
    sys.argv = [lie, lie, "0.01", "node"]
    defect_liar.main()
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [f"{lie} node" for lie in LIES], done.stderr

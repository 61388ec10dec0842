"""What one member that was invited can do to the others, live (benchmarks/defects.py)."""

import re
import signal
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from atoll.trace import ContributionRefused, Tested
from benchmarks.common import markdown
from benchmarks.defect_liar import LIES
from benchmarks.defect_nodes import Life, Nodes, free_port, nodes, wait_for

HONEST = ("one", "two", "three")
ALONE_S, WITH_S, AFTER_S = 6.0, 10.0, 8.0
"""How long the honest nodes learn before the fourth comes, with it, and after it has left."""
STEP_S = 0.02
LAST_S = 2.0
"""Over how many seconds' tests an accuracy is taken."""


@dataclass(frozen=True)
class Found:
    """Accuracies of the worst honest node."""

    strategy: str
    lie: str
    before: float
    beside: float
    after: float
    refused: int

    @property
    def row(self) -> list[str]:
        measured = (self.before, self.beside, self.after)
        return [f"`{self.strategy}`", LIES[self.lie], *(f"{each:.1%}" for each in measured), str(self.refused)]


HEADS = ["strategy", "the fourth node", "before it came", "beside it", "after it has left", "refused"]


def play(strategy: str, lie: str) -> Found:
    """One run: three honest nodes, a fourth that comes and goes, and what the honest ones have learned."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.defect_liar"]
        with nodes(Path(folder), command, logs=False) as here:
            return _play(here, strategy, lie)


def _play(here: Nodes, strategy: str, lie: str) -> Found:
    at = f"127.0.0.1:{free_port()}"
    pace = str(STEP_S)
    about = ["--task", "digits", "--shards", "iid", "--seats", "4", "--strategy", strategy]
    first = here.start("one", "none", pace, "node", "--listen", at, *about)
    wait_for("an invitation", lambda: "--join" in first.printed)
    (invitation,) = re.findall(r"--join (\S+)", first.printed)
    for node in HONEST[1:]:
        _wait_for(here.start(node, "none", pace, "node", "--join", invitation))
    here.sleep(ALONE_S)
    before = _accuracy(here)
    _wait_for(here.start("four", lie, pace, "node", "--join", invitation, what=f"joins: {LIES[lie]}"))
    here.sleep(WITH_S)
    beside = _accuracy(here)
    here.signal("four", signal.SIGINT, "leaves")
    here.sleep(AFTER_S)
    after = _accuracy(here)
    refused = sum(len(here.last(node).recorded(ContributionRefused)) for node in HONEST)
    for node in HONEST:
        here.signal(node, signal.SIGINT, "leaves")
    return Found(strategy, lie, before, beside, after, refused)


def _wait_for(life: Life) -> None:
    """It learns, or has ended."""
    wait_for(f"{life.node} learns ({life.printed})", lambda: life.recorded(Tested) or life.process.poll() is not None)


def _accuracy(here: Nodes) -> float:
    return min(_last(here.last(node)) for node in HONEST)


def _last(life: Life) -> float:
    """Of a node that is not alive any more: none."""
    if life.ended is not None:
        return 0.0
    tests = life.recorded(Tested)
    return mean(test.measure for test in tests if test.at > tests[-1].at - LAST_S)


def play_all(strategies: list[str], lies: list[str], jobs: int) -> str:
    cases = [(strategy, lie) for strategy in strategies for lie in lies]
    with ThreadPoolExecutor(jobs) as pool:
        found = list(pool.map(lambda case: _row(*case), cases))
    return markdown(HEADS, found)


def _row(strategy: str, lie: str) -> list[str]:
    """A run that fails costs no other its result."""
    try:
        row = play(strategy, lie).row
    except TimeoutError as error:
        row = [f"`{strategy}`", LIES[lie], str(error).replace("\n", " "), "", "", ""]
    print("| " + " | ".join(row) + " |", flush=True)
    return row

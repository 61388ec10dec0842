"""One slow or stuck machine among others that train, live (benchmarks/defects.py)."""

import sys
import tempfile
from pathlib import Path

from benchmarks.common import markdown
from benchmarks.defect_nodes import Life, Nodes, free_port, longest_gap, nodes, wait_for
from benchmarks.defect_story import SCRIPT

STRATEGY = "allreduce:every=2"
PACE_S = 0.04
BEFORE_S, STUCK_S, AFTER_S = 10.0, 30.0, 12.0
OTHERS = ("alpha", "beta")
HEADS = ["the third machine", "others' exchanges a second before", "meanwhile", "after", "longest gap meanwhile"]


def stuck() -> str:
    rows = []
    for what, play in (
        (f"joins, and prepares for {STUCK_S:.0f} s before `run.wrap`", _prepares),
        (f"hangs in its training loop for {STUCK_S:.0f} s", _hangs),
    ):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, str(SCRIPT), "--strategy", STRATEGY, "--pace", str(PACE_S)]
            with nodes(Path(folder), command) as here:
                rows.append([what, *play(here)])
    return markdown(HEADS, rows)


def _begin(here: Nodes) -> str:
    """Two that train; gives the invitation."""
    begun = here.start("alpha", "--listen", f"127.0.0.1:{free_port()}")
    wait_for("an invitation", lambda: begun.said("joined"))
    invitation = str(begun.said("joined")[0]["invitation"])
    here.start("beta", "--join", invitation)
    wait_for("both exchange", lambda: all(here.last(node).exchanges() for node in OTHERS))
    return invitation


def _prepares(here: Nodes) -> list[str]:
    invitation = _begin(here)
    here.sleep(BEFORE_S)
    third = here.start("gamma", "--join", invitation, "--prepare", str(STUCK_S))
    wait_for("it has joined", lambda: third.said("joined"))
    start = third.said("joined")[0]["t"]
    wait_for("it trains", lambda: third.said("measured"), 120)
    here.sleep(AFTER_S)
    return _rates(here, third.began, start, start + STUCK_S, third.exchanges())


def _hangs(here: Nodes) -> list[str]:
    invitation = _begin(here)
    third = here.start("gamma", "--join", invitation, "--hang", str(BEFORE_S), str(STUCK_S))
    wait_for("it trains with them", lambda: third.exchanges(members=3))
    wait_for("it hangs", lambda: third.said("hangs"))
    wait_for("it goes on", lambda: third.said("goes on"))
    here.sleep(AFTER_S)
    start, stop = (third.said(what)[0]["t"] for what in ("hangs", "goes on"))
    return _rates(here, start, start, stop, third.exchanges())


def _rates(here: Nodes, before: float, start: float, stop: float, third: list[float]) -> list[str]:
    """Exchanges of the others: a second, and how long there was none.

    Args:
        here: all nodes.
        before: until when all was well.
        start: when the third machine began to be stuck.
        stop: when it was not any more.
        third: when it had exchanges itself.
    """
    here.look()
    lives = [here.last(node) for node in OTHERS]
    times = [life.exchanges() for life in lives]
    met = [each for each in third if each > stop]
    print(f"gamma exchanges {met[0] - stop:.1f} s after it went on" if met else "gamma did not come back", flush=True)
    spans = ((before - BEFORE_S + 3, before), (start, stop), (stop + 2, _end(lives)))
    rates = [sum(a < each <= b for one in times for each in one) / len(times) / (b - a) for a, b in spans]
    gap = max(longest_gap(one, start, stop) for one in times)
    return [*(f"{rate:.2f}" for rate in rates), f"{gap:.1f} s"]


def _end(lives: list[Life]) -> float:
    return min(float(life.said("measured")[-1]["t"]) for life in lives)

"""Nothing learned is lost: three live nodes, and all that can happen to them, in one run (benchmarks/defects.py)."""

import itertools
import json
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles

from benchmarks.common import markdown
from benchmarks.defect_nodes import ROOT, Life, Nodes, free_port, nodes, wait_for

SCRIPT = ROOT / "benchmarks" / "defect_script.py"
NEAR_S = 8.0
"""So long after something was done to a node what others see may come of it."""


@dataclass(frozen=True)
class Jump:
    """The loss of a node's model rose from one measurement to the next."""

    at: float
    node: str
    before: float
    after: float
    exchanges: int
    """How many there were in between."""

    @property
    def rise(self) -> float:
        return self.after - self.before

    def __str__(self) -> str:
        return f"{self.rise:+.3f} ({self.node} at {self.at:.0f} s, {self.before:.3f} → {self.after:.3f})"


@dataclass(frozen=True)
class Curve:
    """One life's measurements: seconds since the run began, loss, learning rate."""

    node: str
    number: int
    """Of the node's lives."""
    times: list[float]
    losses: list[float]
    rates: list[float]
    model_since: float | None
    """When its model became the run's; `None`: never."""
    exchanges: list[float]
    ended: float

    def of_the_run(self) -> list[tuple[float, float]]:
        since = self.model_since
        if since is None:
            return []
        return [(t, loss) for t, loss in zip(self.times, self.losses, strict=True) if t >= since]

    def jumps(self) -> list[Jump]:
        found = []
        for (start, before), (stop, after) in itertools.pairwise(self.of_the_run()):
            count = sum(start < each <= stop for each in self.exchanges)
            found.append(Jump(stop, self.node, before, after, count))
        return found


@dataclass(frozen=True)
class Story:
    """What a run came to."""

    strategy: str
    curves: list[Curve]
    done: list[tuple[float, str, str]]

    @property
    def jumps(self) -> list[Jump]:
        return [jump for curve in self.curves for jump in curve.jumps()]

    def is_quiet(self, at: float) -> bool:
        """Whether nothing had been done to anybody, and nobody had begun to train, for a while."""
        begins = [curve.times[0] for curve in self.curves if curve.times]
        return not any(0 <= at - when <= NEAR_S for when, _, _ in self.done) and not any(
            abs(at - when) <= NEAR_S for when in begins
        )

    def best(self) -> list[tuple[float, float]]:
        """The loss of the best model that anybody in the run holds, at every measurement."""
        seen = sorted((t, place, loss) for place, curve in enumerate(self.curves) for t, loss in curve.of_the_run())
        held: dict[int, float] = {}
        found = []
        for t, place, loss in seen:
            held[place] = loss
            alive = [value for where, value in held.items() if self.curves[where].ended > t]
            found.append((t, min(alive)))
        return found

    def table(self) -> str:
        jumps = self.jumps
        quiet = sorted(jump.rise for jump in jumps if self.is_quiet(jump.at))
        worst = max(jumps, key=lambda jump: jump.rise)
        calm = max((jump for jump in jumps if self.is_quiet(jump.at)), key=lambda jump: jump.rise, default=None)
        best = self.best()
        least = list(itertools.accumulate((loss for _, loss in best), min))
        lost = max(((loss - low), t) for (t, loss), low in zip(best, least, strict=True))
        step = max((after - before, t) for (_, before), (t, after) in itertools.pairwise(best))
        never = [f"{each.node} (life {each.number})" for each in self.curves if each.model_since is None]
        ends = [f"{node} {what}" for _, node, what in self.done if what.startswith("ends")]
        rows = [
            ["measurements of the run's model", f"{sum(len(curve.of_the_run()) for curve in self.curves)}"],
            ["largest rise of a node's loss", str(worst)],
            ["the same when nothing had happened for a while", str(calm) if calm else "–"],
            ["99 of 100 such rises are below", f"{quantiles(quiet, n=100)[-1]:+.3f}" if len(quiet) > 1 else "–"],
            ["largest rise of the best model", f"{step[0]:+.3f} at {step[1]:.0f} s"],
            ["most that the best model was above the best ever", f"{lost[0]:+.3f} at {lost[1]:.0f} s"],
            ["the best model at the end", f"{best[-1][1]:.3f}"],
            ["processes that never came into the run", ", ".join(never) or "none"],
            ["processes that ended by themselves", "; ".join(ends) or "none"],
        ]
        return markdown([f"`{self.strategy}`", "loss"], rows)

    def save(self, path: Path) -> None:
        curves = [
            {
                "node": each.node,
                "number": each.number,
                "model_since": each.model_since,
                "ended": each.ended,
                "measured": list(zip(each.times, each.losses, each.rates, strict=True)),
                "exchanges": each.exchanges,
            }
            for each in self.curves
        ]
        path.write_text(json.dumps({"strategy": self.strategy, "done": self.done, "curves": curves}))

    @classmethod
    def load(cls, path: Path) -> "Story":
        found = json.loads(path.read_text())
        curves = []
        for each in found["curves"]:
            times, losses, rates = ([row[place] for row in each["measured"]] for place in range(3))
            since, ended = each["model_since"], each["ended"]
            who = each["node"], each["number"]
            curves.append(Curve(*who, times, losses, rates, since, each["exchanges"], ended))
        return cls(found["strategy"], curves, [(t, node, what) for t, node, what in found["done"]])


def tell(folder: Path, strategy: str) -> Story:
    """The run.  Only the founder can be dialled."""
    at = f"127.0.0.1:{free_port()}"
    command = [sys.executable, str(SCRIPT), "--strategy", strategy]
    with nodes(folder, command) as here:
        founder = ("--listen", at, "--key", str(folder / "alpha.key"))
        begun = here.start("alpha", *founder, what="begins the run")
        wait_for("alpha has an invitation", lambda: begun.said("joined"))
        invitation = begun.said("joined")[0]["invitation"]

        def guest(node: str, *more: str, what: str = "joins") -> None:
            here.start(node, "--join", invitation, "--key", str(folder / f"{node}.key"), *more, what=what)
            here.until(node, "measured")

        keeps = ("--checkpoint", str(folder / "delta.safetensors"))
        here.sleep(12)
        guest("beta")
        here.sleep(6)
        guest("gamma")
        here.sleep(18)
        here.kill("beta")
        here.sleep(5)
        guest("beta", what="returns")
        here.sleep(12)
        here.signal("gamma", signal.SIGSTOP, "is stopped")
        here.sleep(15)
        here.signal("gamma", signal.SIGCONT, "is continued")
        here.sleep(12)
        guest("delta", *keeps, what="is new")
        here.sleep(12)
        here.kill("alpha", "the founder is killed (-9)")
        here.sleep(5)
        here.start("alpha", *founder, what="the founder returns")
        here.until("alpha", "measured")
        here.sleep(12)
        here.kill("delta")
        here.sleep(4)
        guest("delta", *keeps, what="resumes")
        here.sleep(20)
        here.look()
    return read(here, strategy)


def read(here: Nodes, strategy: str) -> Story:
    began = here.lives[0].said("joined")[0]["t"]
    curves = [_curve(life, began) for life in here.lives]
    return Story(strategy, curves, [(when - began, node, what) for when, node, what in here.done])


def _curve(life: Life, began: float) -> Curve:
    measured = life.said("measured")
    since = life.model_since()
    is_first = life.node == "alpha" and life.number == 1
    if is_first or life.said("resumed"):
        since = began
    assert life.ended is not None
    return Curve(
        node=life.node,
        number=life.number,
        times=[line["t"] - began for line in measured],
        losses=[line["loss"] for line in measured],
        rates=[line["rate"] for line in measured],
        model_since=None if since is None else since - began,
        exchanges=[each - began for each in life.exchanges()],
        ended=life.ended - began,
    )

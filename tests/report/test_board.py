import io

from rich.console import Console

from atoll.report.board import Pulse, RunBoard
from atoll.trace import (
    Computed,
    Exchanged,
    FaultChanged,
    ReachChanged,
    Tested,
    TrainingStarted,
    Waited,
    WayMeasured,
)

STARTED = TrainingStarted(
    at=0.0, task="text", strategy="x", role="strategy", shards="iid", target=2.0, rising=False, parameters=10
)


def shown(board: RunBoard) -> list[str]:
    console = Console(file=io.StringIO(), width=200)
    console.print(board)
    return str(console.file.getvalue()).splitlines()  # type: ignore[attr-defined]


def test_a_pulse() -> None:
    """Nine seconds of computing and one of waiting, in ten; the last exchange two seconds ago."""
    pulse = Pulse()
    assert pulse.told(5.0) == "0.00 steps/s, computing 0%, waiting 0%"
    for number in range(9):
        pulse.watch(Computed(at=number + 1.0, node="a", since=float(number), steps=1))
    pulse.watch(Exchanged(at=8.0, node="a", name="round 1", via="ring", since=7.5, members=3, late=False))
    pulse.watch(Waited(at=10.0, node="a", since=9.0, why="exchange"))
    pulse.watch(Tested(at=10.0, node="a", steps=9, measure=0.75, sent_bytes=0))
    said = "step 9, accuracy 75.0%, 0.90 steps/s, computing 90%, waiting 10%, "
    assert pulse.told(10.0) == said + "1 exchanges, the last 0.50 s, 2 s ago, among 3"


def test_what_is_long_ago_does_not_count() -> None:
    pulse = Pulse()
    pulse.watch(Waited(at=10.0, node="a", since=0.0, why="exchange"))
    for number in range(50):
        pulse.watch(Computed(at=number + 11.0, node="a", since=number + 10.0, steps=1))
    assert pulse.share(Waited, 60.0) == 0
    assert pulse.share(Computed, 60.0) == 1
    assert pulse.speed(60.0) == "1.00 steps/s"


def test_a_run() -> None:
    board = RunBoard()
    board.watch(STARTED)
    for name in "abc":
        board.watch(Tested(at=3.0, node=name, steps=4, measure=2.5, sent_bytes=0))
    assert "round trip" not in shown(board)[0], "a simulation measures no ways"
    board.watch(ReachChanged(at=4.0, node="a", peer="b", reachable=False))
    assert shown(board)[1].split()[:4] == ["a", "1", "of", "2"]
    board.watch(ReachChanged(at=5.0, node="a", peer="b", reachable=True))
    board.watch(WayMeasured(at=5.0, node="a", peer="b", via="c", round_trip_s=0.2, rate=0.0))
    board.watch(WayMeasured(at=5.0, node="a", peer="c", via="", round_trip_s=0.1, rate=1e6))
    row = shown(board)[1]
    for part in ("2 of 2, 1 relayed", "100–200 ms", "8 Mbit/s", "loss 2.500"):
        assert part in row
    board.watch(FaultChanged(at=6.0, fault="crash c", nodes=("c",), on=True))
    assert "killed" in shown(board)[3]
    assert "1 of 2, 1 relayed" in shown(board)[1]

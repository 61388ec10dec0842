import math

from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.world.sim.fair import Flow, Pipe, rebalance


def reference(flows: list[Flow], pipes: list[Pipe]) -> dict[Flow, float]:
    """Max-min fairness as in a textbook: all rates rise together; who hits a full pipe or a cap stops."""
    rates = dict.fromkeys(flows, 0.0)
    rising = set(flows)
    while rising:
        room = []
        for pipe in pipes:
            on_it = [flow for flow in flows if pipe in flow.pipes]
            climbing = [flow for flow in on_it if flow in rising]
            if climbing:
                room.append((pipe.capacity - sum(rates[flow] for flow in on_it)) / len(climbing))
        step = min([*room, *(flow.cap - rates[flow] for flow in rising)])
        for flow in rising:
            rates[flow] += step
        for flow in list(rising):
            full = any(
                sum(rates[other] for other in flows if pipe in other.pipes) >= pipe.capacity * (1 - 1e-9)
                for pipe in flow.pipes
            )
            if full or rates[flow] >= flow.cap * (1 - 1e-9):
                rising.remove(flow)
    return rates


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[float], list[tuple[str, tuple[int, ...], float]]]:
    capacities = draw(st.lists(st.sampled_from([1.0, 2.0, 3.0, 5.0, 8.0, 13.0]), min_size=1, max_size=6))
    path = st.lists(st.integers(0, len(capacities) - 1), min_size=1, max_size=4, unique=True).map(tuple)
    what = st.sampled_from(["join", "join", "join", "leave", "capacity", "cap"])
    value = st.sampled_from([0.5, 1.0, 2.0, 4.0, 7.0, math.inf])
    return capacities, draw(st.lists(st.tuples(what, path, value), min_size=1, max_size=25))


@given(histories())
@settings(max_examples=400, deadline=None)
def test_rates_are_max_min_fair_after_any_history(
    case: tuple[list[float], list[tuple[str, tuple[int, ...], float]]],
) -> None:
    capacities, history = case
    pipes = [Pipe(str(n), capacity) for n, capacity in enumerate(capacities)]
    flows: list[Flow] = []
    for what, where, value in history:
        left: list[Pipe] = []
        resized: list[Pipe] = []
        joined: list[Flow] = []
        if what == "join" or not flows:
            flow = Flow(tuple(pipes[n] for n in where), cap=value)
            flow.join()
            flows.append(flow)
            joined.append(flow)
        elif what == "leave":
            flow = flows.pop(where[0] % len(flows))
            flow.leave()
            left.extend(flow.pipes)
        elif what == "capacity":
            pipes[where[0]].capacity = min(value, 20.0)
            resized.append(pipes[where[0]])
        else:
            flow = flows[where[0] % len(flows)]
            flow.cap = value
            joined.append(flow)
        before = {flow: flow.rate for flow in flows}
        touched = rebalance(left, resized, joined)
        expected = reference(flows, pipes)
        for flow in flows:
            assert math.isclose(flow.rate, expected[flow], rel_tol=1e-6), f"after {what} {where} {value}"
            if flow not in touched:
                assert flow.rate == before[flow]
            else:
                assert touched[flow] == before[flow]


def test_a_change_far_away_is_not_looked_at() -> None:
    """Ten pairs of pipes with a flow each: a newcomer on one of them concerns the one flow there."""
    pipes = [Pipe(str(n), 1.0) for n in range(10)]
    flows = [Flow((pipe,)) for pipe in pipes]
    for flow in flows:
        flow.join()
    rebalance([], [], flows)
    newcomer = Flow((pipes[3],))
    newcomer.join()
    assert set(rebalance([], [], [newcomer])) == {flows[3], newcomer}
    assert flows[3].rate == newcomer.rate == 0.5

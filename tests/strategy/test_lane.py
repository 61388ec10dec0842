import numpy as np

from atoll.strategy.ahead import OwnSteps, SharedSteps, Steps
from atoll.strategy.correction import Uncorrected
from atoll.strategy.lane import Lane
from atoll.strategy.outer import Nesterov, TakeMean


def vector(*values: float) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.array(values, dtype=np.float32)


def test_a_round_that_is_given_up_costs_nothing() -> None:
    """What a codec had not sent, and what a node had kept of its own steps, goes with the next one."""
    ahead = SharedSteps(reach=0.0)
    lane = Lane(slice(0, 2), TakeMean(), ahead, Uncorrected(), 1.0, absolute=False)
    lane.start(vector(0, 0))
    ahead(vector(0, 0), vector(1, 1), vector(1, 1), Steps(1, 1))
    ahead(vector(0, 0), vector(1, 1), vector(1, 1), Steps(2, 1))  # keeps one step of 1
    lane.feedback.keep(vector(10, 20))
    first = lane.payload(vector(3, 3), 1.0)
    lane.abandon(vector(3, 3))
    again = lane.payload(vector(3, 3), 1.0)
    assert first is not None
    assert again is not None
    assert first.tolist() == again.tolist() == [14, 24]


def test_who_takes_over_a_state_goes_on_like_the_one_it_came_from() -> None:
    def lane() -> Lane:
        made = Lane(slice(0, 2), Nesterov(rate=0.7, momentum=0.9), OwnSteps(), Uncorrected(), 1.0, absolute=True)
        made.start(vector(0, 0))
        return made

    one, other = lane(), lane()
    for value in (1.0, 2.0, 4.0):
        one.agree(vector(value, -value), vector(0, 0), vector(0, 0), Steps(0, 0))
    other.adopt(one.state(), apart=False)
    for each in (one, other):
        each.agree(vector(5, 5), vector(0, 0), vector(0, 0), Steps(0, 0))
    assert one.agreed is not None
    assert other.agreed is not None
    assert one.agreed.tobytes() == other.agreed.tobytes()

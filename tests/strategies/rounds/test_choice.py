import numpy as np

from atoll.strategies.rounds.choice import Choice


def test_the_best_is_found_and_the_runner_up_is_tried_again() -> None:
    choice = Choice("best", ("a", "b", "c"))
    took = {"a": 3.0, "b": 1.0, "c": 2.0}
    used = []
    for _ in range(41):
        via = choice.now()
        used.append(via)
        choice.learn(via, took[via], choice.report())
    assert used[:3] == ["a", "b", "c"]
    assert used[4:19] == ["b"] * 15
    assert used[19] == "c"
    took["c"] = 0.1
    for _ in range(60):
        via = choice.now()
        choice.learn(via, took[via], choice.report())
    assert choice.now() == "c"


def test_what_is_fixed_is_not_reported() -> None:
    choice = Choice("ring", ("star", "ring"))
    assert choice.now() == "ring"
    assert len(choice.report()) == 0
    choice.learn("ring", 1.0, np.zeros(0, dtype=np.float32))

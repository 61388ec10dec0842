from atoll.training import load_task


def test_is_what_results_are_measured_on() -> None:
    task = load_task("digits")
    assert sum(p.numel() for p in task.model().parameters()) == 4810
    assert (len(task.train), len(task.test), task.batch, task.target) == (1437, 360, 32, 0.95)
    optimizer = task.optimizer(task.model().parameters())
    assert (optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["momentum"]) == (0.05, 0.9)
    again = load_task("digits")
    assert (task.test.inputs == again.test.inputs).all()

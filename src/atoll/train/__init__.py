"""Training: parameters as vectors, tasks, shards, the node program and runs."""

from atoll.train.run import IDEAL_STRATEGY, RunSpec, simulate
from atoll.train.shards import parse_shards
from atoll.train.task import Examples, Task, accuracy
from atoll.train.tasks import TASKS, load_task

__all__ = [
    "IDEAL_STRATEGY",
    "TASKS",
    "Examples",
    "RunSpec",
    "Task",
    "accuracy",
    "load_task",
    "parse_shards",
    "simulate",
]

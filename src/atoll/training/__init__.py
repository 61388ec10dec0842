"""Training: parameters as vectors, tasks, shards, one node's model, the step loop, checkpoints."""

from atoll.training.shards import parse_shards
from atoll.training.task import Examples, Task, accuracy
from atoll.training.tasks import TASKS, load_task

__all__ = ["TASKS", "Examples", "Task", "accuracy", "load_task", "parse_shards"]

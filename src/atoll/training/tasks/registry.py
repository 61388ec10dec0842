"""The tasks that ship with Atoll, by name."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from atoll.errors import TaskError
from atoll.training.task import Task

__all__ = ["TASKS", "BuiltIn", "built_in"]

TaskMaker = TypeVar("TaskMaker", bound=Callable[..., Task])


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """A task that ships with Atoll."""

    name: str
    make: Callable[..., Task]
    needs_data: bool

    def load(self, data: Path | None) -> Task:
        """Loads the task, with the data of a folder if it needs any."""
        if not self.needs_data:
            return self.make()
        if data is None:
            raise TaskError(f"task {self.name!r} needs data: name its folder (--data)")
        return self.make(data)


TASKS: dict[str, BuiltIn] = {}


def built_in(name: str, *, needs_data: bool = False) -> Callable[[TaskMaker], TaskMaker]:
    """Registers a function as the task of a name.

    Args:
        name: the name that users write.
        needs_data: whether the function gets the folder of its data.
    """

    def register(make: TaskMaker) -> TaskMaker:
        TASKS[name] = BuiltIn(name, make, needs_data)
        return make

    return register

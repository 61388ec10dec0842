"""The tasks that ship with Atoll, and the import of a user's own.  Every file here registers its tasks."""

import importlib
import pkgutil
import sys
from pathlib import Path

from atoll.errors import TaskError, nearest
from atoll.plugins import load_plugins
from atoll.training.task import Task
from atoll.training.taskcheck import check_task
from atoll.training.tasks.registry import TASKS

__all__ = ["TASKS", "load_task"]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")


def load_task(name: str, data: Path | None = None) -> Task:
    """Loads a task by name, or a user's own as `module:object`, which is checked first."""
    if ":" in name:
        task = _users_own(name)
        check_task(task)
        return task
    if name not in TASKS:
        load_plugins()
    if name not in TASKS:
        raise TaskError(f"there is no task {name!r}; {nearest(name, TASKS)} (or module:object for your own)")
    return TASKS[name].load(data)


def _users_own(name: str) -> Task:
    module_name, _, attribute = name.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")  # a module in the current folder, as `python -m` would find it
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise TaskError(f"task {name!r}: cannot import {module_name!r}: {error}") from None
    except Exception as error:
        raise TaskError(f"task {name!r}: {module_name} fails: {type(error).__name__}: {error}") from error
    if not hasattr(module, attribute):
        names = [each for each in vars(module) if not each.startswith("_")]
        raise TaskError(f"task {name!r}: {module_name} has no {attribute!r}; {nearest(attribute, names)}")
    found = getattr(module, attribute)
    try:
        task = found() if callable(found) and not isinstance(found, Task) else found
    except TaskError:
        raise
    except Exception as error:
        raise TaskError(f"task {name!r}: {attribute}() fails: {type(error).__name__}: {error}") from error
    if not isinstance(task, Task):
        raise TaskError(
            f"task {name!r}: expected an atoll Task or a function that returns one, not {type(task).__name__}"
        )
    return task

"""The state of optimisers, as named arrays; their settings and schedules, as JSON values."""

import collections
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.optim import Optimizer

from atoll.errors import CheckpointError
from atoll.state import Saved
from atoll.training.parameters import local

__all__ = ["as_array", "optimizer_settings", "put_settings", "readable", "remember", "what_is_remembered", "writable"]

OF_THE_MACHINE = {"params", "foreach", "fused", "capturable", "differentiable"}
"""Keys of a parameter group that belong to the machine, not to training."""


def what_is_remembered(*optimizers: Optimizer) -> Saved:
    """The state of optimisers; parameters are numbered consecutively over all of them."""
    return {
        f"{first + place}/{name}": _value(value, optimizer, name)
        for first, optimizer in zip(_firsts(optimizers), optimizers, strict=False)
        for place, state in optimizer.state_dict()["state"].items()
        for name, value in state.items()
        if value is not None
    }


def remember(optimizers: Sequence[Optimizer], memory: Saved) -> None:
    """Loads a state into optimisers of the same kinds."""
    state: dict[int, dict[str, torch.Tensor]] = {}
    for key, value in memory.items():
        place, name = key.split("/", 1)
        state.setdefault(int(place), {})[name] = torch.from_numpy(value)
    for (first, stop), optimizer in zip(itertools.pairwise(_firsts(optimizers)), optimizers, strict=True):
        parameters = _parameters(optimizer)
        spread = {
            place - first: {name: _spread_like(parameters[place - first], value) for name, value in values.items()}
            for place, values in state.items()
            if first <= place < stop
        }
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": spread, "param_groups": groups})


def optimizer_settings(optimizers: Sequence[Optimizer]) -> list[list[dict[str, Any]]]:
    """The training settings of each optimiser's groups (`lr`, `initial_lr`, `betas`, …), as JSON values.

    Values that JSON cannot hold, as a function, are left to the script.
    """
    return [[_settings(group) for group in optimizer.param_groups] for optimizer in optimizers]


def put_settings(optimizers: Sequence[Optimizer], settings: list[list[dict[str, Any]]]) -> None:
    """Restores the output of `optimizer_settings`.

    Raises:
        CheckpointError: the optimisers or their groups differ.
    """
    there, here = ([len(groups) for groups in each] for each in (settings, [o.param_groups for o in optimizers]))
    if there != here:
        raise CheckpointError(f"the optimisers have {here} groups of parameters here, and {there} in the checkpoint")
    for optimizer, groups in zip(optimizers, settings, strict=True):
        for own, group in zip(optimizer.param_groups, groups, strict=True):
            for name, value in group.items():
                if isinstance(own.get(name), torch.Tensor):
                    own[name].fill_(readable(value))  # others may hold the same tensor
                else:
                    own[name] = readable(value)


def writable(value: Any, where: str) -> Any:
    """A value as JSON, such that `readable` returns the same value again.

    >>> readable(writable({3: (0.9, 0.99)}, "a schedule"))
    {3: (0.9, 0.99)}

    Raises:
        CheckpointError: it has something else than numbers, strings, lists, tuples, sets and dictionaries.
    """
    if isinstance(value, np.generic) or (isinstance(value, torch.Tensor) and value.numel() == 1):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, dict):
        name = "counter" if isinstance(value, collections.Counter) else "dict"
        return {name: [[writable(k, where), writable(v, f"{where}, {k!r}")] for k, v in value.items()]}
    for kind in (list, tuple, set, collections.deque):
        if isinstance(value, kind):
            items = [writable(each, where) for each in value]
            return items if kind is list else {kind.__name__: items}
    raise CheckpointError(
        f"{where}: a {type(value).__name__} cannot be saved: expected numbers, words, lists and dictionaries"
    )


def readable(found: Any) -> Any:
    if isinstance(found, list):
        return [readable(each) for each in found]
    if not isinstance(found, dict):
        return found
    ((name, items),) = found.items()
    if name in ("dict", "counter"):
        pairs = {readable(key): readable(value) for key, value in items}
        return collections.Counter(pairs) if name == "counter" else pairs
    return {"tuple": tuple, "set": set, "deque": collections.deque}[name](readable(items))


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    found = {}
    for name, value in group.items():
        if name not in OF_THE_MACHINE:
            try:
                found[name] = writable(value, name)
            except CheckpointError:
                continue
    return found


def _parameters(optimizer: Optimizer) -> list[torch.Tensor]:
    return [each for group in optimizer.param_groups for each in group["params"]]


def _firsts(optimizers: Sequence[Optimizer]) -> list[int]:
    """Where each optimiser's parameters begin, and where the last one's end."""
    return list(itertools.accumulate((len(_parameters(each)) for each in optimizers), initial=0))


def _value(value: Any, optimizer: Optimizer, name: str) -> NDArray[Any]:
    if not isinstance(value, torch.Tensor | bool | int | float):
        kind = type(optimizer).__name__
        raise CheckpointError(f"{kind} keeps {name!r} as a {type(value).__name__}: only tensors and numbers are saved")
    return as_array(value if isinstance(value, torch.Tensor) else torch.tensor(value))


def _spread_like(parameter: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Shards a value like its parameter, if that is sharded over several processes."""
    if not hasattr(parameter, "to_local") or value.shape != local(parameter).shape:
        return value
    from torch.distributed.tensor import DTensor  # noqa: PLC0415 - slow to load, and few need it

    mesh, placements = parameter.device_mesh, parameter.placements  # type: ignore[attr-defined]
    return DTensor.from_local(value, mesh, placements, shape=parameter.shape, stride=parameter.stride())


def as_array(value: torch.Tensor) -> NDArray[Any]:
    """A copy as a numpy array; bfloat16, which numpy does not have, becomes float32."""
    here = local(value.detach()).to("cpu", torch.float32 if value.dtype is torch.bfloat16 else value.dtype, copy=True)
    array: NDArray[Any] = here.numpy()
    return array

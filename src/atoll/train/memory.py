"""What an optimiser remembers, as named arrays."""

from typing import Any

import torch
from numpy.typing import NDArray
from torch.optim import Optimizer

from atoll.saved import Saved
from atoll.train.parameters import local

__all__ = ["as_array", "remember", "what_is_remembered"]


def what_is_remembered(optimizer: Optimizer) -> Saved:
    return {
        f"{place}/{name}": as_array(value if isinstance(value, torch.Tensor) else torch.tensor(value))
        for place, state in optimizer.state_dict()["state"].items()
        for name, value in state.items()
        if value is not None
    }


def remember(optimizer: Optimizer, memory: Saved) -> None:
    """Has an optimiser remember what another one did."""
    state: dict[int, dict[str, torch.Tensor]] = {}
    for key, value in memory.items():
        place, name = key.split("/", 1)
        state.setdefault(int(place), {})[name] = torch.from_numpy(value)
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    spread = {
        place: {name: _spread_like(parameters[place], value) for name, value in values.items()}
        for place, values in state.items()
    }
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": spread, "param_groups": groups})


def _spread_like(parameter: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """What belongs to a tensor that is spread over several processes is spread as that is."""
    if not hasattr(parameter, "to_local") or value.shape != local(parameter).shape:
        return value
    from torch.distributed.tensor import DTensor  # noqa: PLC0415 - slow to load, and few need it

    mesh, placements = parameter.device_mesh, parameter.placements  # type: ignore[attr-defined]
    return DTensor.from_local(value, mesh, placements, shape=parameter.shape, stride=parameter.stride())


def as_array(value: torch.Tensor) -> NDArray[Any]:
    """A copy; numpy has no bfloat16, and every one of its values is a 32-bit one too."""
    here = local(value.detach()).to("cpu", torch.float32 if value.dtype is torch.bfloat16 else value.dtype, copy=True)
    array: NDArray[Any] = here.numpy()
    return array

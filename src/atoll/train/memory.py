"""What an optimiser remembers, as named arrays."""

from typing import Any

import torch
from numpy.typing import NDArray
from torch.optim import Optimizer

from atoll.saved import Saved

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
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def as_array(value: torch.Tensor) -> NDArray[Any]:
    """A copy; numpy has no bfloat16, and every one of its values is a 32-bit one too."""
    here = value.detach().to("cpu", torch.float32 if value.dtype is torch.bfloat16 else value.dtype, copy=True)
    array: NDArray[Any] = here.numpy()
    return array

"""Inside a node: the processes that torchrun has started together.

Where a node is several processes, torch.distributed joins them as it always does.  If each has the whole model (DDP)
the first of them speaks for the node; the others do what it says at every step: it tells them who is here, and what an
exchange has changed.  If each has a part (FSDP2), each speaks for its part with those who have the same part elsewhere.
"""

import json
from collections.abc import Iterable
from typing import Any

import safetensors.numpy
import torch
import torch.distributed as dist

from atoll.errors import AtollError
from atoll.state import Saved

__all__ = ["Inside"]


class Inside:
    """The processes of this node."""

    def __init__(self) -> None:
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self._control: dist.ProcessGroup | None = dist.new_group(backend="gloo")

    @classmethod
    def find(cls) -> "Inside | None":
        """What torchrun has started, if it has, and if that is more than one process."""
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            return cls()
        if dist.is_available() and dist.is_torchelastic_launched() and not dist.is_initialized():
            raise AtollError("call torch.distributed.init_process_group() before atoll.join() under torchrun")
        return None

    def close(self) -> None:
        """Ends what was made here: torch aborts a process that ends while one of its groups still has work in hand."""
        if self._control is not None and dist.is_initialized():
            dist.destroy_process_group(self._control)
        self._control = None

    @property
    def speaks(self) -> bool:
        """Whether this process speaks for the node."""
        return self.rank == 0

    def tell_once(self, facts: Any) -> Any:
        """What the speaker says, whatever JSON has."""
        told = [json.dumps(facts)]
        dist.broadcast_object_list(told, 0, group=self._control)
        return json.loads(told[0])

    def gather(self, fact: str) -> list[str]:
        """What every one of them says, on all of them."""
        told: list[Any] = [None] * self.size
        dist.all_gather_object(told, fact, group=self._control)
        return [str(each) for each in told]

    def tell(self, numbers: list[float]) -> list[float]:
        """What the speaker says, on all of them."""
        told = torch.tensor(numbers, dtype=torch.float64)
        dist.broadcast(told, 0, group=self._control)
        return [float(number) for number in told]

    def tell_arrays(self, arrays: Saved) -> Saved:
        """What the speaker has, on all of them."""
        told = [safetensors.numpy.save(arrays)]
        dist.broadcast_object_list(told, 0, group=self._control)
        return safetensors.numpy.load(told[0])

    def copy(self, tensors: Iterable[torch.Tensor]) -> None:
        """Gives all of them what the speaker has."""
        with torch.no_grad():
            for tensor in tensors:
                values = tensor.detach()
                dist.broadcast(values.view(torch.uint8) if values.dtype is torch.bool else values, 0)

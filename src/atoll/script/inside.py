"""Inside a node: the processes that torchrun has started together.

If a node has several processes, torch.distributed connects them as usual.  If each has the whole model (DDP), rank 0
handles the network for the node; the others follow it at every step: it broadcasts the present nodes and the changes
of an exchange.  If each has a part (FSDP2), each exchanges it with the processes of other nodes that have the same.
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
        """The processes that torchrun has started, if there are several."""
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            return cls()
        if dist.is_available() and dist.is_torchelastic_launched() and not dist.is_initialized():
            raise AtollError("call torch.distributed.init_process_group() before atoll.join() under torchrun")
        return None

    def close(self) -> None:
        """Destroys the group made here: torch aborts a process that ends while one of its groups still works."""
        if self._control is not None and dist.is_initialized():
            dist.destroy_process_group(self._control)
        self._control = None

    @property
    def speaks(self) -> bool:
        """Whether this process handles the network for the node."""
        return self.rank == 0

    def tell_once(self, facts: Any) -> Any:
        """Broadcasts a JSON value from rank 0."""
        told = [json.dumps(facts)]
        dist.broadcast_object_list(told, 0, group=self._control)
        return json.loads(told[0])

    def gather(self, fact: str) -> list[str]:
        """Gathers a text from every process, on all of them."""
        told: list[Any] = [None] * self.size
        dist.all_gather_object(told, fact, group=self._control)
        return [str(each) for each in told]

    def tell(self, numbers: list[float]) -> list[float]:
        """Broadcasts numbers from rank 0."""
        told = torch.tensor(numbers, dtype=torch.float64)
        dist.broadcast(told, 0, group=self._control)
        return [float(number) for number in told]

    def tell_arrays(self, arrays: Saved) -> Saved:
        """Broadcasts arrays from rank 0."""
        told = [safetensors.numpy.save(arrays)]
        dist.broadcast_object_list(told, 0, group=self._control)
        return safetensors.numpy.load(told[0])

    def copy(self, tensors: Iterable[torch.Tensor]) -> None:
        """Copies the tensors of rank 0 to all processes."""
        with torch.no_grad():
            for tensor in tensors:
                values = tensor.detach()
                dist.broadcast(values.view(torch.uint8) if values.dtype is torch.bool else values, 0)

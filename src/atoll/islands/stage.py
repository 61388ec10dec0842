"""One stage of a model that several nodes hold together: batches go forward through it, and gradients come back, while
its weights change.

A batch's backward pass comes some updates after its forward pass.  A setting chooses the weights that it then uses:

* `stash`: those of its forward pass, which are kept as long as a batch needs them.  Gradients are exact, for older
  weights.
* `current`: the current ones; nothing is kept.
* `predict`: the current ones too, but the forward pass has used a prediction of them: the weights moved by recent
  updates, as many as a batch usually takes to come back (as in SpecTrain and XPipe).

No pass is done twice for this: autograd saves only a reference to a weight, and the weight is put in when the backward
pass asks for it.  To save memory a forward pass can keep only its input; the rest is then recomputed, with the same
random numbers.
"""

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim import Optimizer

__all__ = ["WEIGHTS", "StageModel", "Weights"]

Weights = Literal["stash", "current", "predict"]
WEIGHTS: tuple[Weights, ...] = ("stash", "current", "predict")
TREND = 0.5
"""The weight of the last update in the prediction of the next one."""


@dataclass(slots=True, eq=False)
class _Version:
    """The weights between two updates."""

    users: int = 0
    copies: list[Tensor] | None = None
    """The weights, once they are no longer the current ones."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """A weight that autograd saves: its index, and the view of it."""

    index: int
    version: _Version
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


@dataclass(slots=True, eq=False)
class _Batch:
    """A batch between its forward and its backward pass."""

    inputs: Tensor
    outputs: Tensor | None
    version: _Version
    updates: int
    """The number of updates before its forward pass."""
    shape: torch.Size | None = None
    """The shape of its outputs."""
    leaves: list[Tensor] | None = None
    """The predicted weights, if its forward pass used them."""
    kept: dict[int, int] = field(default_factory=dict)
    """Bytes that autograd keeps for it, by address; without weights."""
    random_states: list[Tensor] = field(default_factory=list)
    buffers: list[Tensor] = field(default_factory=list)


def _where(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _size(tensor: Tensor) -> int:
    return tensor.untyped_storage().nbytes()


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(int(each.nbytes) for each in tensors)


class StageModel:
    """The layers of a stage, and their optimisers.

    Args:
        layers: the layers that it holds.
        optimizers: together for all of its parameters.
        weights: the weights that a backward pass uses.
        recompute: whether a forward pass keeps only its input.
        slower: whether late gradients count less: the learning rate is divided by 1 + the updates since.
        memory_bytes: the memory that it may use: it takes another batch only if there is room.
    """

    def __init__(
        self,
        layers: nn.Module,
        optimizers: list[Optimizer],
        *,
        weights: Weights = "stash",
        recompute: bool = False,
        slower: bool = False,
        memory_bytes: float = math.inf,
    ) -> None:
        self.layers = layers
        self.optimizers = optimizers
        self._weights = weights
        self._recompute = recompute
        self._slower = slower
        self._names = [name for name, _ in layers.named_parameters()]
        self._parameters: list[Tensor] = list(layers.parameters())
        self._places = {each.untyped_storage().data_ptr(): index for index, each in enumerate(self._parameters)}
        self._version = _Version()
        self._held: dict[int, _Batch] = {}
        self._trend = [torch.zeros_like(each) for each in self._parameters] if weights == "predict" else []
        self._memory_bytes = memory_bytes
        self._batch_bytes = 0
        """The size of the largest batch so far."""
        self.most_bytes = 0
        """The most memory that it has used."""
        self.updates = 0
        self.staleness = 0
        """Updates between the last backward pass and its forward pass."""

    @property
    def device(self) -> torch.device:
        return self._parameters[0].device if self._parameters else torch.device("cpu")

    @property
    def held(self) -> tuple[int, ...]:
        """Batches between their forward and their backward passes, the oldest first."""
        return tuple(self._held)

    def shape_of(self, number: int) -> torch.Size | None:
        """The shape of a batch's outputs, if it is held."""
        return self._held[number].shape if number in self._held else None

    # Memory ---

    @property
    def used_bytes(self) -> int:
        """Memory in use: weights, gradients, optimiser states, older weights, and the data of batches."""
        return self._used(self._held.values())

    def _used(self, batches: Collection[_Batch]) -> int:
        """The memory in use with these batches."""
        states = [state for optimizer in self.optimizers for state in optimizer.state.values()]
        versions = {id(batch.version): batch.version.copies or () for batch in batches}
        tensors = [*self._parameters, *self.layers.buffers(), *self._trend]
        tensors += [each.grad for each in self._parameters if each.grad is not None]
        tensors += [value for state in states for value in state.values() if isinstance(value, Tensor)]
        tensors += [each for copies in versions.values() for each in copies]
        return _bytes(tensors) + sum(self._bytes_of(batch) for batch in batches)

    def _bytes_of(self, batch: _Batch) -> int:
        return sum(batch.kept.values()) + _bytes([*(batch.leaves or ()), *batch.buffers])

    @property
    def has_room(self) -> bool:
        """Whether another batch may be taken: there is room for it and for the weights that it will need, or no other
        batch is held.
        """
        weights = _bytes(self._parameters) if self._weights == "stash" else 0
        if not self._held or self._memory_bytes == math.inf:
            return True
        return self.used_bytes + self._batch_bytes + weights <= self._memory_bytes

    def _look(self, batch: _Batch) -> None:
        """Updates the most memory used, with a batch."""
        self._batch_bytes = max(self._batch_bytes, self._bytes_of(batch))
        others = [each for each in self._held.values() if each is not batch]
        self.most_bytes = max(self.most_bytes, self._used([*others, batch]))

    # Forward ---

    def forward(self, number: int, inputs: Tensor) -> Tensor:
        """The outputs of a batch, for the next stage."""
        outputs = self._forward(number, inputs).detach()
        self._held[number].shape = outputs.shape
        self._look(self._held[number])
        return outputs

    def _forward(self, number: int, inputs: Tensor) -> Tensor:
        inputs = inputs.detach()
        if inputs.is_floating_point():
            inputs.requires_grad_()
        batch = _Batch(inputs, None, self._version, self.updates)
        batch.kept[_where(inputs)] = _size(inputs)
        if self._weights == "predict" and self.staleness:
            batch.leaves = self._expected()
        self._version.users += 1
        self._held[number] = batch
        if self._recompute:
            batch.random_states = [torch.get_rng_state()]
            if inputs.is_cuda:
                batch.random_states.append(torch.cuda.get_rng_state(inputs.device))
            batch.buffers = [each.clone() for each in self.layers.buffers()]
            with torch.no_grad():
                return self._run(batch)
        batch.outputs = self._run(batch)
        return batch.outputs

    def _run(self, batch: _Batch) -> Tensor:
        """A forward pass.  Autograd saves references to weights."""
        places, weights = self._places, self._parameters if batch.leaves is None else batch.leaves
        if batch.leaves is not None:
            places = {each.untyped_storage().data_ptr(): index for index, each in enumerate(batch.leaves)}

        def pack(tensor: Tensor) -> Tensor | _Kept:
            index = places.get(tensor.untyped_storage().data_ptr())
            if index is None:
                batch.kept[_where(tensor)] = _size(tensor)
                return tensor
            offset = int(tensor.storage_offset()) - int(weights[index].storage_offset())
            return _Kept(index, batch.version, tensor.size(), tensor.stride(), offset)

        with torch.autograd.graph.saved_tensors_hooks(pack, self._unpack):
            if batch.leaves is None:
                outputs: Tensor = self.layers(batch.inputs)
            else:
                outputs = functional_call(self.layers, dict(zip(self._names, batch.leaves, strict=True)), batch.inputs)
        return outputs

    def _unpack(self, kept: Tensor | _Kept) -> Tensor:
        if isinstance(kept, Tensor):
            return kept
        copies = kept.version.copies if self._weights == "stash" else None
        weight = (self._parameters if copies is None else copies)[kept.index].detach()
        return weight.as_strided(kept.size, kept.stride, weight.storage_offset() + kept.offset)

    def _expected(self) -> list[Tensor]:
        """The predicted weights by the time that a batch comes back, if updates continue as before."""
        moved = zip(self._parameters, self._trend, strict=True)
        return [(each.detach() + self.staleness * trend).requires_grad_() for each, trend in moved]

    # Backward ---

    def backward(self, number: int, gradient: Tensor) -> Tensor | None:
        """Adds the gradients of a batch to the parameters.

        Returns:
            the gradient of the batch's inputs; `None` if they have none.
        """
        batch = self._held.pop(number)
        self.staleness = self.updates - batch.updates
        outputs = self._again(batch) if batch.outputs is None else batch.outputs
        torch.autograd.backward(outputs, gradient)
        self._look(batch)
        if batch.leaves is not None:
            for parameter, leaf in zip(self._parameters, batch.leaves, strict=True):
                if leaf.grad is not None:
                    parameter.grad = leaf.grad if parameter.grad is None else parameter.grad + leaf.grad
        self._release(batch)
        return batch.inputs.grad

    def _again(self, batch: _Batch) -> Tensor:
        """Repeats the forward pass, with the weights that the backward pass uses."""
        now = [each.clone() for each in self.layers.buffers()]
        self._set_buffers(batch.buffers)
        devices = [batch.inputs.device] if batch.inputs.is_cuda else []
        with torch.random.fork_rng(devices=devices):
            torch.set_rng_state(batch.random_states[0])
            if devices:
                torch.cuda.set_rng_state(batch.random_states[1], devices[0])
            if self._weights == "stash" and batch.version.copies is not None:
                batch.leaves = [each.detach().requires_grad_() for each in batch.version.copies]
            elif self._weights != "stash":
                batch.leaves = None
            outputs = self._run(batch)
        self._set_buffers(now)
        return outputs

    def _set_buffers(self, values: list[Tensor]) -> None:
        for each, value in zip(self.layers.buffers(), values, strict=True):
            each.copy_(value)

    def give_up(self, number: int) -> None:
        """Drops a batch that will not come back."""
        batch = self._held.pop(number, None)
        if batch:
            self._release(batch)

    def _release(self, batch: _Batch) -> None:
        batch.version.users -= 1
        if not batch.version.users:
            batch.version.copies = None

    # Both, and the update ---

    def learn(self, inputs: Tensor, loss: Callable[[Tensor], Tensor]) -> tuple[float, Tensor | None]:
        """The last stage's forward and backward pass at once: returns the loss, and the gradient of the inputs."""
        inputs = inputs.detach()
        if inputs.is_floating_point():
            inputs.requires_grad_()
        batch = _Batch(inputs, None, self._version, self.updates)
        value = loss(self._run(batch))
        torch.autograd.backward(value)
        self._look(batch)
        self.staleness = 0
        return float(value.detach()), inputs.grad

    def evaluate(self, inputs: Tensor) -> Tensor:
        """The outputs for inputs in evaluation mode; nothing is kept."""
        training = {module: module.training for module in self.layers.modules()}
        self.layers.eval()
        with torch.inference_mode():
            outputs: Tensor = self.layers(inputs)
        for module, was in training.items():
            module.training = was
        return outputs

    def update(self) -> None:
        """The optimisers' step, with the current gradients."""
        self.keep_versions()
        before = [each.detach().clone() for each in self._parameters] if self._trend else []
        factor = 1 / (1 + self.staleness) if self._slower else 1.0
        for optimizer in self.optimizers:
            rates = [group["lr"] for group in optimizer.param_groups]
            for group in optimizer.param_groups:
                group["lr"] *= factor
            optimizer.step()
            optimizer.zero_grad()
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate
        for trend, old, new in zip(self._trend, before, self._parameters, strict=bool(self._trend)):
            trend.lerp_(new.detach() - old, TREND)
        self.updates += 1

    def keep_versions(self) -> None:
        """Keeps copies of weights that batches still need; call it before weights change."""
        if self._version.users and self._weights == "stash":
            self._version.copies = [each.detach().clone() for each in self._parameters]
            self._version = _Version()

    def forget(self) -> None:
        """Drops the current gradients."""
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    @property
    def versions(self) -> int:
        """How many versions of the weights there are, with the current one."""
        return 1 + len({id(batch.version) for batch in self._held.values() if batch.version.copies is not None})

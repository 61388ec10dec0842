"""A model as a chain of layers that can be cut into stages: each layer takes one tensor and returns one.

An `nn.Sequential` is one already.  Any other model that `torch.fx` can trace is split wherever a single tensor is the
only value in use; skip connections stay inside one link of the chain.  Modules are kept as they are, so dropout and
batch norm follow `train()` and `eval()`.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, fx, nn
from torch.utils.flop_counter import FlopCounterMode

from atoll.errors import TaskError
from atoll.islands.cut import Layer

__all__ = ["chain", "profile"]


def chain(model: nn.Module, example: Tensor) -> nn.Sequential:
    """The model as a chain, with the same parameters.

    Args:
        model: the model to split.
        example: a batch of inputs, to check that the chain computes the same.

    Raises:
        TaskError: the model cannot be split, or layers share weights.
    """
    links = dict(_flattened("", model)) if isinstance(model, nn.Sequential) else _traced(model)
    found = nn.Sequential()
    for name, layer in links.items():
        found.add_module(name.replace(".", "_"), layer)
    _refuse_shared(model, found)
    _refuse_other(model, found, example)
    return found


def _flattened(prefix: str, model: nn.Sequential) -> Iterator[tuple[str, nn.Module]]:
    for name, layer in model.named_children():
        if type(layer) is nn.Sequential:
            yield from _flattened(f"{prefix}{name}.", layer)
        else:
            yield f"{prefix}{name}", layer


def _traced(model: nn.Module) -> dict[str, nn.Module]:
    what = type(model).__name__
    try:
        graph = fx.Tracer().trace(model)
    except Exception as error:  # noqa: BLE001 - tracing runs the user's code
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TaskError(
            f"{what} cannot be cut into stages: torch.fx cannot trace it ({reason}); an nn.Sequential always can be"
        ) from None
    nodes = [node for node in graph.nodes if node.op not in {"get_attr", "output"}]
    inputs = [node for node in nodes if node.op == "placeholder"]
    result = next(node for node in graph.nodes if node.op == "output").args[0]
    if len(inputs) != 1 or not isinstance(result, fx.Node):
        raise TaskError(f"{what} cannot be cut into stages: expected a model that takes one tensor and returns one")
    place = {node: index for index, node in enumerate(nodes)}
    last_use = {node: max((place[user] for user in node.users if user in place), default=-1) for node in nodes}
    last_use[result] = len(nodes)
    links: dict[str, nn.Module] = {}
    start, came = 1, inputs[0]
    for index in range(1, len(nodes)):
        crossing = [node for node in nodes[: index + 1] if last_use[node] > index]
        if crossing == [nodes[index]]:
            piece = nodes[start : index + 1]
            links[_name(piece, links)] = _link(model, came, piece)
            start, came = index + 1, nodes[index]
    return links


def _link(model: nn.Module, came: fx.Node, piece: list[fx.Node]) -> fx.GraphModule:
    graph = fx.Graph()
    copies = {came: graph.placeholder("x")}

    def copied(node: fx.Node) -> fx.Node:
        if node not in copies:  # an attribute of the model itself
            copies[node] = graph.node_copy(node, copied)
        return copies[node]

    for node in piece:
        copies[node] = graph.node_copy(node, copied)
    graph.output(copies[piece[-1]])
    return fx.GraphModule(model, graph)


def _name(piece: list[fx.Node], taken: dict[str, nn.Module]) -> str:
    """The name of a link: that of its modules, or of its last operation."""
    modules = [str(node.target) for node in piece if node.op == "call_module"]
    name = modules[0] if modules else piece[-1].name
    if len(modules) > 1 and modules[-1] != name:
        name = f"{name} to {modules[-1]}"
    name = name.replace(".", "_")
    return name if name not in taken else f"{name} {piece[-1].name}"


def _refuse_shared(model: nn.Module, links: nn.Sequential) -> None:
    owners: dict[int, str] = {}
    for name, layer in links.named_children():
        for parameter_name, parameter in (*layer.named_parameters(), *layer.named_buffers()):
            owner = owners.setdefault(id(parameter), name)
            if owner != name:
                raise TaskError(
                    f"layers {owner} and {name} share {parameter_name}: they cannot be cut apart (give each its own)"
                )
    missing = [name for name, each in model.named_parameters() if id(each) not in owners]
    if missing:
        raise TaskError(f"{type(model).__name__} cannot be cut into stages: its forward pass does not use {missing[0]}")


def _refuse_other(model: nn.Module, links: nn.Sequential, example: Tensor) -> None:
    was_training = model.training
    model.eval()
    links.eval()
    try:
        with torch.no_grad():
            outputs = links(example)
            if not isinstance(outputs, Tensor) or not torch.equal(outputs, model(example)):
                raise TaskError(f"{type(model).__name__} cannot be cut into stages: the chain computes something else")
    finally:
        model.train(was_training)
        links.train(was_training)


def profile(links: nn.Sequential, example: Tensor) -> tuple[Layer, ...]:
    """The cost of each layer of a chain, measured on an example batch."""
    layers = []
    values = example
    was_training = links.training
    links.eval()
    try:
        for name, layer in links.named_children():
            layers.append(_measured(name, layer, values))
            with torch.no_grad():
                values = layer(values)
    finally:
        links.train(was_training)
    return tuple(layers)


def _measured(name: str, layer: nn.Module, values: Tensor) -> Layer:
    samples = len(values)
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    inputs = values.detach().clone().requires_grad_() if values.is_floating_point() else values
    parameters = {each.untyped_storage().data_ptr() for each in layer.parameters()}
    with FlopCounterMode(display=False) as counter, torch.autograd.graph.saved_tensors_hooks(keep, lambda it: it):
        outputs = layer(inputs)
    own = sum(size for place, size in kept.items() if place not in parameters)
    return Layer(
        name=name,
        flops=(counter.get_total_flops() + outputs.numel()) / samples,  # at least one for each output
        output_bytes=outputs.nbytes / samples,
        kept_bytes=max(own, values.nbytes) / samples,
        parameter_bytes=sum(each.nbytes for each in layer.parameters()),
    )

"""Models as chains: the same numbers, and what cannot be one is refused by name."""

import pytest
import torch
from torch import Tensor, nn

from atoll.errors import TaskError
from atoll.islands.chain import chain, profile


class Residual(nn.Module):
    """Skips inside, and over a stretch; reads shapes and a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(8)
        self.inner = nn.Linear(8, 8)
        self.drop = nn.Dropout(0.5)
        self.scale = nn.Parameter(torch.full((8,), 1.5))
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x))
        rows, columns = x.shape
        x = x + self.drop(torch.relu(self.inner(x))).view(rows, columns)
        out: Tensor = self.last(x * self.scale)
        return out


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(torch.tanh(self.embed(x)), self.embed.weight)


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.only = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.only(x) if x.sum() > 0 else x
        return out


def test_a_sequence_is_taken_apart_to_its_layers() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 2)))
    links = chain(model, torch.randn(3, 4))
    assert [name for name, _ in links.named_children()] == ["0", "1_0", "1_1"]
    assert next(iter(links.parameters())) is model[0].weight, "the same parameters, not copies"


def test_a_traced_model_is_cut_where_one_tensor_goes_on() -> None:
    torch.random.manual_seed(0)
    model, example = Residual(), torch.randn(5, 6)
    links = chain(model, example)
    names = [name for name, _ in links.named_children()]
    assert names[:2] == ["first", "norm"]
    assert any(name.startswith("inner to drop") for name in names), "the skip stays in one piece"
    assert names[-1] == "last"
    assert len(list(links.parameters())) == len(list(model.parameters()))
    for training in (True, False):
        model.train(training)
        links.train(training)
        torch.random.manual_seed(1)
        one = links(example)
        torch.random.manual_seed(1)
        assert torch.equal(one, model(example)), "dropout and batch norm do what they are told"


def test_what_is_refused() -> None:
    with pytest.raises(TaskError, match=r"layers embed and linear share embed.weight: they cannot be cut apart"):
        chain(Tied(), torch.tensor([[1, 2]]))
    with pytest.raises(TaskError, match=r"Branching cannot be cut into stages: torch\.fx cannot trace it"):
        chain(Branching(), torch.randn(1, 2))
    one, other = nn.Linear(2, 2), nn.Linear(2, 2)
    other.weight = one.weight
    with pytest.raises(TaskError, match="layers 0 and 1 share weight"):
        chain(nn.Sequential(one, other), torch.randn(1, 2))
    unused = nn.Sequential(nn.Linear(2, 2))
    unused.register_parameter("spare", nn.Parameter(torch.zeros(1)))
    with pytest.raises(TaskError, match="its forward pass does not use spare"):
        chain(unused, torch.randn(1, 2))


def test_pieces_of_a_traced_model_can_be_profiled() -> None:
    layers = profile(chain(Residual(), torch.randn(5, 6)), torch.randn(5, 6))
    assert layers[0].name == "first"
    assert layers[0].flops == 2 * 6 * 8 + 8
    assert sum(layer.parameter_bytes for layer in layers) == sum(each.nbytes for each in Residual().parameters())

"""Handwritten digits, a plain training loop; the lines marked with "Atoll" make it train with others.

    python examples/mnist.py --data FOLDER                                 # alone, as ever
    atoll run triangle --world emulate examples/mnist.py --data FOLDER     # three nodes on a bad network
    atoll node --listen 0.0.0.0:7700 examples/mnist.py --data FOLDER       # for real; prints what other machines type

FOLDER has the four files of MNIST; without --data it learns the small digits that come with scikit-learn.
"""

import argparse
import gzip
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import atoll  # Atoll


def load(folder: Path | None) -> tuple[TensorDataset, TensorDataset]:
    """Training and test examples."""
    if folder is None:
        digits = load_digits()
        images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
        labels = torch.tensor(digits.target)
        return TensorDataset(images[360:], labels[360:]), TensorDataset(images[:360], labels[:360])

    def read(name: str, head: int) -> torch.Tensor:
        return torch.tensor(np.frombuffer(gzip.decompress((folder / name).read_bytes()), dtype=np.uint8, offset=head))

    def pair(which: str) -> TensorDataset:
        images = read(f"{which}-images-idx3-ubyte.gz", 16).view(-1, 1, 28, 28).float().div(255).sub(0.1307).div(0.3081)
        return TensorDataset(images, read(f"{which}-labels-idx1-ubyte.gz", 8).long())

    return pair("train"), pair("t10k")


def make_model(side: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * (side // 2) ** 2, 64),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Linear(64, 10),
    )


def accuracy(model: nn.Module, test: TensorDataset) -> float:
    model.eval()
    device = next(model.parameters()).device
    with torch.no_grad():
        right = sum(int((model(x.to(device)).argmax(1).cpu() == y).sum()) for x, y in DataLoader(test, 500))
    model.train()
    return right / len(test)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", type=Path)
    options.add_argument("--epochs", type=int, default=3)
    options.add_argument("--test-every", type=int, default=20, help="steps")
    options.add_argument("--save", type=Path)
    arguments = options.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    train, test = load(arguments.data)
    loader = DataLoader(train, batch_size=64, shuffle=True)
    model = make_model(train.tensors[0].shape[-1])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    run = atoll.join(strategy="vrl:every=4,codec=int8", target=0.95 if arguments.data is None else 0.975)  # Atoll
    model, optimizer = run.wrap(model, optimizer)  # Atoll

    step = 0
    for epoch in range(arguments.epochs):
        for images, labels in run.shard(loader):  # Atoll
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step % arguments.test_every == 0:
                run.measure(accuracy(model, test))  # Atoll
        print(f"epoch {epoch}: loss {loss.item():.4f}, accuracy {accuracy(model, test):.4f}", flush=True)
    if arguments.save:
        torch.save(model.state_dict(), arguments.save)


if __name__ == "__main__":
    main()

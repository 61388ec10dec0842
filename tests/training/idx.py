"""MNIST-like IDX files, made of scikit-learn's digits."""

import gzip
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits


def idx_bytes(values: np.ndarray) -> bytes:
    head = bytes([0, 0, 8, values.ndim]) + b"".join(size.to_bytes(4) for size in values.shape)
    return head + values.astype(np.uint8).tobytes()


def write_small_mnist(folder: Path, *, train: int = 600, test: int = 120, gzipped: bool = True) -> Path:
    """8 × 8 digits, each pixel three times as wide and high, in a frame of two."""
    data = load_digits()
    images = np.pad(np.kron(data.images, np.ones((3, 3))), ((0, 0), (2, 2), (2, 2))) * 15
    files = {
        "train-images-idx3-ubyte": images[:train],
        "train-labels-idx1-ubyte": data.target[:train],
        "t10k-images-idx3-ubyte": images[train : train + test],
        "t10k-labels-idx1-ubyte": data.target[train : train + test],
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, values in files.items():
        content = idx_bytes(values)
        (folder / (f"{name}.gz" if gzipped else name)).write_bytes(gzip.compress(content) if gzipped else content)
    return folder

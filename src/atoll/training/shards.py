"""How examples are divided among nodes: `iid`, `dirichlet:A` (each label unevenly), `label` (sorted by label, cut in
N), `seldp` (each node has all examples, in N pieces, and begins with a different piece).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from atoll.errors import TaskError, nearest
from atoll.seeds import derive

__all__ = ["Shards", "parse_shards"]

Indices = NDArray[np.int64]
_KINDS = ("iid", "dirichlet", "label", "seldp")


@dataclass(frozen=True, slots=True)
class Shards:
    """How examples are divided."""

    kind: str
    alpha: float = 0.3

    def __str__(self) -> str:
        return f"dirichlet:{self.alpha:g}" if self.kind == "dirichlet" else self.kind

    def pieces(self, nodes: int) -> int:
        """Into how many pieces, one after the other, a node's examples are divided."""
        return nodes if self.kind == "seldp" else 1

    def deal(self, labels: NDArray[np.int64], nodes: int, seed: int) -> list[Indices]:
        """The examples of each node: every example once (`seldp`: once for each node), at least one for each node."""
        if len(labels) < nodes:
            raise TaskError(f"{len(labels)} examples cannot be dealt to {nodes} nodes: expected at least one for each")
        draw = np.random.default_rng(derive(seed, "shards"))
        if self.kind == "label":
            return [part.astype(np.int64) for part in np.array_split(np.argsort(labels, kind="stable"), nodes)]
        if self.kind == "seldp":
            parts_of_all = np.array_split(draw.permutation(len(labels)).astype(np.int64), nodes)
            return [np.concatenate([*parts_of_all[node:], *parts_of_all[:node]]) for node in range(nodes)]
        if self.kind == "iid":
            return [part.astype(np.int64) for part in np.array_split(draw.permutation(len(labels)), nodes)]
        parts: list[list[int]] = [[] for _ in range(nodes)]
        for label in np.unique(labels):
            mine = draw.permutation(np.flatnonzero(labels == label))
            cuts = np.round(np.cumsum(draw.dirichlet([self.alpha] * nodes)) * len(mine)).astype(int)[:-1]
            for part, piece in zip(parts, np.split(mine, cuts), strict=True):
                part.extend(piece.tolist())
        for part in parts:  # no node is left empty: the largest part gives one
            if not part:
                part.append(max(parts, key=len).pop())
        return [np.array(sorted(part), dtype=np.int64) for part in parts]


def parse_shards(text: str) -> Shards:
    """Parses a user's shards.

    >>> str(parse_shards("dirichlet"))
    'dirichlet:0.3'
    """
    kind, colon, value = text.partition(":")
    if kind not in _KINDS or (colon and kind != "dirichlet"):
        raise TaskError(f"there are no shards {text!r}; {nearest(kind, _KINDS)} (iid, dirichlet:A, label, seldp)")
    if not colon:
        return Shards(kind)
    try:
        alpha = float(value)
    except ValueError:
        alpha = 0.0
    if not 0 < alpha < 1e6:
        raise TaskError(f"shards {text!r}: expected a number above 0 after the colon, not {value!r}")
    return Shards(kind, alpha)

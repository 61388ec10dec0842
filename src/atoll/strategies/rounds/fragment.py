"""A fragment of the vector: the blocks that are exchanged in one round."""

import itertools
import math

import numpy as np

from atoll.collectives import Lengths
from atoll.strategies.replica import Replica
from atoll.strategies.rounds.block import Block, Examined
from atoll.strategies.rounds.composition import RoundParts

__all__ = ["Fragment", "SumCheck", "cut"]

BEYOND_OWN = 1e5
"""Limit for the norm of a round's mean, in norms of a member's own contribution."""
LEAST_MOVE = 1e-4
"""The least norm that is assumed for a member's contribution in that comparison, as a share of the model's norm."""
ABSURD = 20.0
"""Limit for the norm of a round's sum, in norms of the last rounds' sums."""


class Fragment:
    """The blocks that one round exchanges.

    Args:
        blocks: one after the other in the vector.
    """

    def __init__(self, blocks: list[Block]) -> None:
        self.blocks = blocks
        self.span = slice(blocks[0].span.start, blocks[-1].span.stop)
        self.step = 0
        """When its last round began."""
        self._lengths = Lengths(ABSURD)
        """The norms of the changes by the last rounds among these members."""

    @property
    def is_anew(self) -> bool:
        """Whether the next round is the first among these members."""
        return self.blocks[0].is_anew

    @property
    def sees_soundness_later(self) -> bool:
        """Whether snapshots may be found to be unusable while the round is in progress."""
        return self.blocks[0].sees_soundness_later

    def restart(self) -> None:
        """Called when the members of rounds have changed: the new ones do not know the earlier rounds."""
        self._lengths.clear()
        for block in self.blocks:
            block.restart()

    def check(self) -> "SumCheck":
        """A check of the next round's sum."""
        return SumCheck(None if self.is_anew else self._lengths)


class SumCheck:
    """Whether a round's sum is plausible, block by block: finite, and not many times as long as the sums before.

    All members hold the same bytes and decide alike.  Sums that stay long are accepted in the end.

    Args:
        lengths: the norms of the sums before; `None`: there are none to compare with.
    """

    def __init__(self, lengths: Lengths | None) -> None:
        self._lengths = lengths
        self._is_judged = False
        self._changed = self._moved = self._agreed = 0.0
        """Squared norms of the blocks so far."""
        self._gave = self._counts = False

    def accepts(self, examined: Examined | None) -> bool:
        """Whether the sum is plausible so far, with its next block."""
        if examined is None:
            return False
        self._changed += examined.changed
        self._moved += examined.moved
        self._agreed += examined.agreed
        self._gave, self._counts = self._gave or examined.gave, self._counts or examined.counts
        changed = math.sqrt(self._changed)
        if self._is_beyond_own(changed):
            return False
        if self._lengths is None or self._is_judged or changed <= self._lengths.most:
            return True
        self._is_judged = True
        return self._lengths.scale("all", changed) > 0

    def end(self) -> None:
        """All blocks were accepted."""
        if self._lengths is not None and self._counts and not self._is_judged:
            self._lengths.scale("all", math.sqrt(self._changed))

    def _is_beyond_own(self, changed: float) -> bool:
        """Whether a mean is far too long compared with this member's contribution: before there are rounds to compare
        with, a member may have summed wrongly.  Contributions of honest members differ by far less.
        """
        if not self._gave:
            return False
        # A member that has fit its data contributes almost nothing, which is correct.
        moved = max(math.sqrt(self._moved), LEAST_MOVE * math.sqrt(self._agreed))
        return 0 < moved < changed / BEYOND_OWN


def cut(replica: Replica, parts: RoundParts, *, absolute: bool, is_model: bool) -> list[Fragment]:
    """A vector in the fragments that rounds take in turn, each in blocks.

    Args:
        replica: the node's model.
        parts: what rounds are.
        absolute: whether members contribute values, not changes.
        is_model: whether the values are a model's.
    """
    size = replica.size
    edges = np.linspace(0, size, parts.fragments + 1).round().astype(int).tolist()
    largest = replica.block_values if parts.reduction().by_block else max(size, 1)
    return [
        Fragment(
            [
                Block(
                    slice(first, min(first + largest, stop)),
                    parts.outer(),
                    parts.ahead(),
                    parts.correction(),
                    parts.decay,
                    absolute=absolute,
                    is_model=is_model,
                    device=replica.device,
                    home=parts.home(replica.device),
                    dtype=parts.dtype,
                )
                for first in range(start, max(stop, start + 1), largest)
            ]
        )
        for start, stop in itertools.pairwise(edges)
    ]

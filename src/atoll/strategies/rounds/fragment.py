"""A fragment of the vector: the blocks that are exchanged in one round."""

import itertools
import math

import numpy as np

from atoll.collectives import Lengths
from atoll.strategies.replica import Replica
from atoll.strategies.rounds.block import Block, Examined
from atoll.strategies.rounds.composition import RoundParts

__all__ = ["Fragment", "cut"]

BEYOND_OWN = 1e5
"""How many times as long as what a member gave the mean of a round may be."""
LEAST_MOVE = 1e-4
"""What a member is taken to have given at least, of the length of the model, when a mean is held against it."""
ABSURD = 20.0
"""How many times as long as the last rounds' the sum of a round may be."""


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
        """How much the last rounds among these members have changed."""

    @property
    def is_anew(self) -> bool:
        """Whether the next round is the first among these members."""
        return self.blocks[0].is_anew

    @property
    def is_handed(self) -> bool:
        """Whether the member was handed the model, and has nothing to give yet."""
        return self.blocks[0].is_handed

    def restart(self) -> None:
        """Rounds are among others from now on, who know nothing of those before."""
        self._lengths.clear()
        for block in self.blocks:
            block.restart()

    def accepts(self, examined: list[Examined | None]) -> bool:
        """Whether a round's sum may be what its members brought: finite, and not many times as long as those before.

        All members hold the same bytes and see the same.  What stays long is how things are.
        """
        found = [each for each in examined if each is not None]
        if len(found) < len(examined):
            return False
        changed = math.sqrt(sum(each.changed for each in found))
        if self._is_beyond_own(changed, found):
            return False
        if self.is_anew or not any(each.counts for each in found):
            return True
        return self._lengths.scale("all", changed) > 0

    @staticmethod
    def _is_beyond_own(changed: float, found: list[Examined]) -> bool:
        """Whether a mean is absurdly long beside what this member gave: before there are rounds to compare it with,
        somebody may have added up wrongly.  What honest members give differs by far less.
        """
        if not any(each.gave for each in found):
            return False
        # A member that has learned all that its data says gives next to nothing, and is right to.
        agreed = math.sqrt(sum(each.agreed for each in found))
        moved = max(math.sqrt(sum(each.moved for each in found)), LEAST_MOVE * agreed)
        return 0 < moved < changed / BEYOND_OWN


def cut(replica: Replica, parts: RoundParts, *, absolute: bool, is_model: bool) -> list[Fragment]:
    """A vector in the fragments that rounds take in turn, each in blocks.

    Args:
        replica: the node's model.
        parts: what rounds are.
        absolute: whether members bring values, and not what has changed in them.
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
                )
                for first in range(start, max(stop, start + 1), largest)
            ]
        )
        for start, stop in itertools.pairwise(edges)
    ]

"""One seed, many streams.

Every node, link and fault draws from a stream of its own, named by its purpose.  Adding a link or a draw then
does not change other streams, and the same seed gives the same run in any order of creation.
"""

import hashlib
import random

__all__ = ["derive", "stream"]


def derive(seed: int, *names: str) -> int:
    """A 64-bit seed for the stream called `names` of the run with `seed`; it does not depend on Python's hash seed."""
    text = "\x1f".join([str(seed), *names])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


def stream(seed: int, *names: str) -> random.Random:
    """The random generator called `names` of the run with `seed`."""
    return random.Random(derive(seed, *names))

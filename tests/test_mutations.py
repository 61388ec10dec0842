"""The fuzzer finds what it is there to find: each patch breaks the protocol, and a seed that it names shows it.

How many seeds it takes to find each without knowing is measured by benchmarks/mutations.py.
"""

import re
from pathlib import Path

import pytest
from benchmarks.mutations import MUTATIONS, hunt


@pytest.mark.parametrize("patch", sorted(MUTATIONS.glob("*.patch")), ids=lambda patch: patch.stem)
def test_a_broken_protocol_is_noticed(patch: Path) -> None:
    known = re.match(r"Found by seed (\d+)\.", patch.read_text())
    assert known, "expected a first line that names a seed"
    seed = int(known[1])
    assert hunt(patch, range(seed, seed + 1)) is not None

"""The fuzzer finds what it is there to find: each patch breaks the protocol, and a seed that it names shows it.

How many seeds it takes to find each without knowing is measured by benchmarks/mutations.py, and so is whether the tests
that other patches name fail with them.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from benchmarks.mutations import MUTATIONS, ROOT, hunt, named_test

PATCHES = sorted(MUTATIONS.glob("*.patch"))


@pytest.mark.parametrize("patch", [patch for patch in PATCHES if named_test(patch)], ids=lambda patch: patch.stem)
def test_what_breaks_something_else_names_a_test(patch: Path) -> None:
    path, name = named_test(patch).split("::")
    assert f"def {name}(" in (ROOT / path).read_text()
    git = shutil.which("git") or "git"
    subprocess.run([git, "apply", "--check", str(patch)], cwd=ROOT, check=True, capture_output=True)


@pytest.mark.parametrize("patch", [patch for patch in PATCHES if not named_test(patch)], ids=lambda patch: patch.stem)
def test_a_broken_protocol_is_noticed(patch: Path) -> None:
    known = re.match(r"Found by seed (\d+)\.", patch.read_text())
    assert known, "expected a first line that names a seed"
    seed = int(known[1])
    assert hunt(patch, range(seed, seed + 1)) is not None

"""Is the fuzzer any good?  Breaks the protocol on purpose, one way at a time, and counts the seeds until it is noticed.

    python -m benchmarks.mutations [--seeds 200] [--only NAME ...]

The breakages are the patches of tests/mutations, each applied to a copy of the source.  A patch that names a test
breaks what the fuzzer does not see; that test must fail.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.common import RESULTS, markdown, put

ROOT = Path(__file__).parents[1]
MUTATIONS = ROOT / "tests" / "mutations"
_HUNT = """
import sys
from atoll.fuzz import check, draw_case
for seed in map(int, sys.argv[1:]):
    what = check(draw_case(seed))
    if what:
        print(seed, " ".join(what.split())[:100], sep="\\t")
        break
"""


def hunt(patch: Path, seeds: range) -> tuple[int, str] | None:
    """The first of the seeds that finds what a patch breaks, and what it says."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "src", Path(folder) / "src")
        git = shutil.which("git") or "git"
        subprocess.run([git, "apply", str(patch)], cwd=folder, check=True, capture_output=True, text=True)
        environment = {**os.environ, "PYTHONPATH": str(Path(folder) / "src"), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", _HUNT, *map(str, seeds)]
        done = subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True, text=True)
    if not done.stdout:
        return None
    seed, what = done.stdout.strip().split("\t", 1)
    return int(seed), what


def named_test(patch: Path) -> str:
    """The test that a patch names as the one that finds it; empty where the fuzzer does."""
    found = re.match(r"Found by (tests/\S+)\.\n", patch.read_text())
    return found[1] if found else ""


def fails(patch: Path, test: str) -> str:
    """What a test says of what a patch breaks; empty if it passes."""
    with tempfile.TemporaryDirectory() as folder:
        for part in ("src", "tests", "benchmarks", "pyproject.toml"):
            copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copyfile
            copy(ROOT / part, Path(folder) / part)
        git = shutil.which("git") or "git"
        subprocess.run([git, "apply", str(patch)], cwd=folder, check=True, capture_output=True, text=True)
        environment = {**os.environ, "PYTHONPATH": str(Path(folder) / "src"), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "pytest", "-q", "--tb=line", "-p", "no:cacheprovider", test]
        done = subprocess.run(command, cwd=folder, env=environment, check=False, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{test} could not be run: {done.stdout[-500:]}")
    return done.stdout.strip().splitlines()[-1] if done.returncode else ""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seeds", type=int, default=200)
    options.add_argument("--only", nargs="+")
    arguments = options.parse_args()
    rows = []
    for patch in sorted(MUTATIONS.glob("*.patch")):
        if arguments.only and patch.stem not in arguments.only:
            continue
        test = named_test(patch)
        if test:
            seed, what = "a test", fails(patch, test) or "NOT FOUND"
        else:
            found = hunt(patch, range(arguments.seeds))
            seed, what = (f"{found[0] + 1}", found[1]) if found else (f"none of {arguments.seeds}", "")
        rows.append([patch.stem.replace("_", " "), seed, what.replace("|", "/")])
        print(*rows[-1], sep=" | ", flush=True)
    if not arguments.only:
        put(
            RESULTS / "faults.md", "mutations", markdown(["what is broken", "seeds until found", "what was seen"], rows)
        )


if __name__ == "__main__":
    main()

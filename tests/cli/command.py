"""The command as a user runs it: a process of its own."""

import subprocess
import sys
from pathlib import Path

__all__ = ["ATOLL", "atoll"]

ATOLL = Path(sys.executable).with_name("atoll")


def atoll(*arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([ATOLL, *arguments], capture_output=True, text=True, cwd=folder, check=False, timeout=240)

"""Processes that torch.distributed joins, as tests start them."""

import subprocess

__all__ = ["is_torchs_abort", "run_until_it_ends"]

ABORTED = "terminate called without an active exception"


def is_torchs_abort(told: str) -> bool:
    """Whether a process was done and then aborted by torch: Gloo's threads may outlive the interpreter by a moment
    (pytorch/pytorch, pull request 179291, not merged), in a script without Atoll too, once in a hundred ends.
    """
    return ABORTED in told


def run_until_it_ends(command: list[str], env: dict[str, str] | None = None) -> str:
    """What a command prints; one that torch has aborted is run again, since torchrun then kills the others."""
    for _ in range(3):
        ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=env)
        if ended.returncode == 0:
            return ended.stdout
        if not is_torchs_abort(ended.stderr):
            break
    raise AssertionError(f"{command}: {ended.stderr[:4000]} … {ended.stderr[-2000:]}")

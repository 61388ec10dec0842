"""Ctrl-C as a terminal sends it: to the whole group of processes."""

import os
import signal
import subprocess


def interrupt(process: "subprocess.Popen[str]") -> tuple[str, str]:
    """Interrupts a process that leads a group; returns what it printed, and what it complained of."""
    os.killpg(process.pid, signal.SIGINT)
    try:
        told, complaints = process.communicate(timeout=30)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return told, complaints

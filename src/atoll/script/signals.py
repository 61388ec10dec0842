"""SIGTERM while a script takes part in a run: the script ends as with `sys.exit`, so that its node leaves properly.

Python's own handler of SIGINT does the same already.  A script that has a handler of its own keeps it.
"""

import contextlib
import os
import signal
import sys
from types import FrameType

__all__ = ["Leaving"]


class Leaving:
    """Ends the script at the first SIGTERM, and the process at the second; until it is closed."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._is_ours = False
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            with contextlib.suppress(ValueError):  # only the main thread may have handlers
                signal.signal(signal.SIGTERM, self._leave)
                self._is_ours = True

    def _leave(self, number: int, _frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        self._is_ours = False
        if os.getpid() != self._process:  # a process that the script has forked is not a node
            os.kill(os.getpid(), number)
        sys.exit(128 + number)

    def close(self) -> None:
        """Restores the previous handler, unless the script has set another one since."""
        if self._is_ours:
            self._is_ours = False
            with contextlib.suppress(ValueError):
                if signal.getsignal(signal.SIGTERM) == self._leave:
                    signal.signal(signal.SIGTERM, signal.SIG_DFL)

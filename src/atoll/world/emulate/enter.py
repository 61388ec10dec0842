"""Runs a command in a network namespace: `python -m atoll.world.emulate.enter NUMBER COMMAND …`.

The number is that of an open file of the namespace; -1: this one.  The process that wants the command run may have
threads, and the system lets no such process change its namespace; this one has none.
"""

import os
import sys

from atoll.world.emulate.namespaces import end_with_parent, enter

if __name__ == "__main__":
    end_with_parent()
    if int(sys.argv[1]) >= 0:
        enter(int(sys.argv[1]))
    os.execv(sys.argv[2], sys.argv[2:])  # noqa: S606 - what it is for

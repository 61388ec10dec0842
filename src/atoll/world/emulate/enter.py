"""Runs a command in a network namespace: `python -m atoll.world.emulate.enter NUMBER COMMAND …`.

The number is a file descriptor of the namespace; -1 stays in this one.  This is a process of its own because the system
does not let a process with threads change its namespace.
"""

import os
import sys

from atoll.world.emulate.namespaces import end_with_parent, enter

if __name__ == "__main__":
    end_with_parent()
    if int(sys.argv[1]) >= 0:
        enter(int(sys.argv[1]))
    os.execv(sys.argv[2], sys.argv[2:])  # noqa: S606 - this is its purpose

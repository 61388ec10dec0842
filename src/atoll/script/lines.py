"""Plain lines about a run on a script's standard error: nodes that join or leave, and the model that was received.

They go to the logger `atoll`.  If the script has configured logging, that decides what happens to them; otherwise they
go to standard error, and the script's logging is not changed.
"""

import logging
import sys

from atoll.trace import Event, Joined, ReachChanged

__all__ = ["Lines", "say"]

log = logging.getLogger("atoll")
_FORMAT = logging.Formatter("atoll: %(message)s")


def say(text: str, *facts: object) -> None:
    """Logs one line at the level INFO."""
    if log.hasHandlers() or log.level != logging.NOTSET:
        log.info(text, *facts)
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_FORMAT)
    handler.handle(log.makeRecord(log.name, logging.INFO, "", 0, text, facts, None))


class Lines:
    """Prints lines about a node, from its events."""

    def __init__(self) -> None:
        self._lost_s: dict[str, float] = {}
        self._here: set[str] = set()
        self._ended = False

    def end(self) -> None:
        """Prints nothing more: the node leaves, and so loses all peers."""
        self._ended = True

    def watch(self, event: Event) -> None:
        if self._ended:
            return
        if isinstance(event, Joined):
            say("%s has the run's model now", event.node)
        elif isinstance(event, ReachChanged) and event.reachable:
            lost_s = self._lost_s.pop(event.peer, None)
            self._here.add(event.peer)
            if lost_s is None:
                say("%s reaches %s; %s", event.node, event.peer, self._count())
            else:
                say("%s reaches %s again, after %.1f s; %s", event.node, event.peer, event.at - lost_s, self._count())
        elif isinstance(event, ReachChanged) and event.peer in self._here:
            self._lost_s[event.peer] = event.at
            self._here.discard(event.peer)
            say("%s has lost %s; %s", event.node, event.peer, self._count())

    def _count(self) -> str:
        count = 1 + len(self._here)
        return f"{count} nodes are online" if count > 1 else "it is alone"

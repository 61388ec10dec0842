"""Complaints report refused connections and messages.  The same complaint is reported once a minute at most."""

import logging
import time
from collections.abc import Callable

__all__ = ["Complaints"]

log = logging.getLogger("atoll")

AGAIN_S = 60.0
"""The same complaint about the same peer is repeated only after this time."""
MOST_KNOWN = 256


class Complaints:
    """Reports refused connections and messages.

    Args:
        record: is called with each complaint that is reported: the peer, and the reason.
        clock: returns seconds.
    """

    def __init__(self, record: Callable[[str, str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._record = record
        self._clock = clock
        self._said: dict[tuple[str, str], float] = {}

    def say(self, who: str, why: str) -> None:
        """Logs and records a complaint, unless it was reported recently."""
        now = self._clock()
        said = self._said.pop((who, why), None)
        if said is not None and now - said < AGAIN_S:
            self._said[who, why] = said
            return
        while len(self._said) >= MOST_KNOWN:
            self._said.pop(next(iter(self._said)))
        self._said[who, why] = now
        log.warning("%s is refused: %s", who, why)
        self._record(who, why)

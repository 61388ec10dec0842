"""Models of TCP over a link: simulated transfers follow them.  Each names its source, and most can be switched off.

* **Headers.** A packet of 1,500 bytes carries 1,448 of payload (IPv4, TCP with timestamps).
* **Slow start** (RFC 5681, RFC 6928, RFC 2861).  A connection may have a window of bytes in flight.  It starts with 10
    segments; a window that was used up doubles a round trip after it was opened; one that lasts for a round trip is no
    longer a limit.  A window is sent at the rate the network gives, then the connection waits for its acknowledgements.
  A connection that idles halves its window for every retransmission time-out, down to the initial one.
* **Loss** (RFC 9438, section 5): a long transfer over a path with loss p and round trip R has on average a window of
  1.054·(R/p)^¾ segments (CUBIC, C = 0.4), or √(3/2p) where that is more (the Reno-friendly region; Mathis et al.,
  1997), so its rate is at most that window a round trip.  A message that fits the initial window is too short for an
  average: with the probability that one of its packets is lost it arrives one round trip later.
* **Outages.** Bytes in flight are lost and sent again; sending resumes one round trip after a working path exists, as
  with a transport that reconnects at once.
* **Relays.** While two nodes have noticed that their own link is down, their messages go through a third node that
  reaches both.
* **Noticing.** A node considers a peer unreachable when it has heard nothing from it for half a second, or four round
  trips if that is more, and reachable one round trip after a path works again.
"""

import math
from dataclasses import dataclass

__all__ = [
    "IDEAL",
    "INITIAL_WINDOW_BYTES",
    "SEGMENT_BYTES",
    "Physics",
    "idle_window",
    "loss_limit",
    "notice_s",
    "retransmission_timeout_s",
]

SEGMENT_BYTES = 1448
PACKET_BYTES = 1500
INITIAL_WINDOW_BYTES = 10 * SEGMENT_BYTES
MINIMUM_TIMEOUT_S = 0.2
SUSPECT_S = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Physics:
    """Which of the models are switched on."""

    headers: bool = True
    slow_start: bool = True
    loss: bool = True
    jitter: bool = True
    relays: bool = True

    def wire_bytes(self, payload_bytes: int) -> float:
        """The bytes on the wire for a payload."""
        return payload_bytes * (PACKET_BYTES / SEGMENT_BYTES) if self.headers else float(payload_bytes)


IDEAL = Physics(headers=False, slow_start=False, loss=False, jitter=False, relays=False)
"""Only latency, rates and outages, for comparison with closed-form results."""


def loss_limit(loss: float, round_trip_s: float) -> float:
    """The most bytes a second that a long TCP transfer gets over a path with this packet loss."""
    if loss <= 0 or round_trip_s <= 0:
        return math.inf
    cubic = 1.054 * math.pow(round_trip_s / loss, 0.75)
    reno = math.sqrt(1.5 / loss)
    return max(cubic, reno) * SEGMENT_BYTES / round_trip_s


def retransmission_timeout_s(round_trip_s: float) -> float:
    return max(MINIMUM_TIMEOUT_S, 2 * round_trip_s)


def idle_window(window_bytes: float, idle_s: float, round_trip_s: float) -> float:
    """The window after idling: halved for every retransmission time-out."""
    halvings = int(min(idle_s / retransmission_timeout_s(round_trip_s), 64.0))
    return math.ldexp(window_bytes, -halvings)


def notice_s(round_trip_s: float) -> float:
    """How long a peer must be silent before it counts as unreachable."""
    return max(SUSPECT_S, 4 * round_trip_s)

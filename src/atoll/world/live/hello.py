"""Hello: the first frames that two nodes exchange."""

from dataclasses import dataclass
from typing import Any

from atoll.errors import FrameError
from atoll.world.base import Lane
from atoll.world.live.fields import Fields
from atoll.world.live.keys import Address
from atoll.world.live.queues import Position
from atoll.world.live.strands import MOST_STRANDS, Strand

__all__ = ["HANDSHAKE_S", "LARGEST_LIFE", "LATER_S", "Hello"]

HANDSHAKE_S = 5.0
"""The time limit for a handshake."""
LATER_S = 0.3
"""Of two nodes, the one whose name comes second waits this long before it connects."""
LARGEST_LIFE = 1 << 53
LARGEST_POSITION = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Hello:
    """The content of HELLO and WELCOME frames."""

    run: str
    name: str
    id: str
    """The node's key."""
    lane: Lane
    life: int
    """Identifies the process of the node; a restart changes it."""
    your_life: int
    """The life of the other node's process that it has met; 0: it has met none."""
    have: Position
    """How much it has received from that process."""
    listen: list[Address]
    strand: Strand
    """The place of this connection among those that were opened together."""

    @classmethod
    def parse(cls, found: dict[str, Any]) -> "Hello":
        fields = Fields(found, "HELLO frame")
        try:
            lane = Lane(fields.text("lane"))
        except ValueError:
            raise FrameError("malformed HELLO frame: no such lane") from None
        have = found.get("have")
        if not isinstance(have, list) or len(have) != 2:
            raise FrameError("malformed HELLO frame: have: expected two whole numbers")
        count = fields.whole("strands", 1, MOST_STRANDS, 1)
        position = Fields({"number": have[0], "bytes": have[1]}, "HELLO frame")
        return cls(
            run=fields.text("run"),
            name=fields.text("name"),
            id=fields.text("id"),
            lane=lane,
            life=fields.whole("life", 1, LARGEST_LIFE),
            your_life=fields.whole("your_life", 0, LARGEST_LIFE),
            have=(position.whole("number", 0, LARGEST_POSITION), position.whole("bytes", 0, LARGEST_POSITION)),
            listen=fields.addresses("listen"),
            strand=Strand(fields.whole("strand", 0, count - 1, 0), count, fields.text("together", "")),
        )

    def position_for(self, life: int) -> Position:
        """Returns how much the peer has received from this life of the node."""
        return self.have if self.your_life == life else (0, 0)

"""Hello: what two nodes say to each other before anything else."""

from dataclasses import dataclass
from typing import Any

from atoll.errors import FrameError
from atoll.world.base import Lane
from atoll.world.live.fields import Fields
from atoll.world.live.keys import Address
from atoll.world.live.queues import Position

__all__ = ["HANDSHAKE_S", "LARGEST_LIFE", "LATER_S", "Hello"]

HANDSHAKE_S = 5.0
"""How long it may take until two have said hello."""
LATER_S = 0.3
"""Of two nodes the one whose name comes second begins so much later."""
LARGEST_LIFE = 1 << 53
LARGEST_POSITION = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Hello:
    """What a node says when it dials, and is answered with."""

    run: str
    name: str
    id: str
    """The node's key."""
    lane: Lane
    life: int
    """Which process of the node this is."""
    your_life: int
    """Which process of the other node it has met; 0: none."""
    have: Position
    """How far it is with what that process has sent."""
    listen: list[Address]

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
        )

    def position_for(self, life: int) -> Position:
        """How far the peer is with what this life of the node has sent."""
        return self.have if self.your_life == life else (0, 0)

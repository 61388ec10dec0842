"""Hello: what two nodes say to each other before anything else."""

from typing import Any

from atoll.errors import FrameError
from atoll.world.base import Lane
from atoll.world.live.boxes import Position
from atoll.world.live.keys import Address

__all__ = ["HANDSHAKE_S", "LATER_S", "Hello", "parse_addresses"]

HANDSHAKE_S = 5.0
"""How long it may take until two have said hello."""
LATER_S = 0.3
"""Of two nodes the one whose name comes second begins so much later."""
MOST_ADDRESSES = 8


class Hello:
    """What a node says when it dials, and is answered with."""

    def __init__(self, found: dict[str, Any]) -> None:
        self.run = str(found["run"])
        self.name = str(found["name"])
        self.id = str(found["id"])
        self.lane = Lane(found["lane"])
        self.life = int(found["life"])
        self.your_life = int(found["your_life"])
        number, done = found["have"]
        self.have: Position = (int(number), int(done))
        self.listen = parse_addresses(found["listen"])

    @classmethod
    def parse(cls, found: dict[str, Any]) -> "Hello":
        try:
            hello = cls(found)
        except (KeyError, ValueError, TypeError) as error:
            raise FrameError(f"a hello that is not whole ({error})") from None
        if hello.life <= 0 or min(hello.have) < 0:
            raise FrameError("a hello that is not whole")
        return hello

    def position_for(self, life: int) -> Position:
        """How far the peer is with what this life of the node has sent."""
        return self.have if self.your_life == life else (0, 0)


def parse_addresses(found: Any) -> list[Address]:
    """Where somebody says that a node listens."""
    try:
        return [(str(host), int(port)) for host, port in found][:MOST_ADDRESSES]
    except (ValueError, TypeError):
        raise FrameError("an address that is none") from None

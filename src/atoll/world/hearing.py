"""Receiving: malformed messages are dropped, recorded, and change nothing."""

import struct
from collections.abc import Callable

from atoll.trace import MessageRefused
from atoll.world.base import Message, World

__all__ = ["NOT_UNDERSTOOD", "hear", "refuse"]

NOT_UNDERSTOOD = (
    ValueError,
    KeyError,
    TypeError,
    IndexError,
    AttributeError,
    OverflowError,
    RuntimeError,
    struct.error,
)
"""What reading a malformed message may raise; torch says `RuntimeError` of bytes that are no tensor."""


async def hear(world: World, channel: str, take: Callable[[Message], None]) -> None:
    """Takes every message on a channel.  One that cannot be understood is refused, and the trace says whose it was."""
    while True:
        message = await world.receive(channel)
        try:
            take(message)
        except NOT_UNDERSTOOD as error:
            refuse(world, message, f"not understood ({type(error).__name__}: {error})")


def refuse(world: World, message: Message, why: str = "nobody has received it for long") -> None:
    """Says that a message was of no use."""
    world.record(MessageRefused(at=world.now, node=world.name, sender=message.sender, channel=message.channel, why=why))

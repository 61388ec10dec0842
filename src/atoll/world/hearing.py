"""Receiving: malformed messages are dropped, recorded, and change nothing."""

import struct
from collections.abc import Awaitable, Callable

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
"""Errors that reading a malformed message may raise; torch raises `RuntimeError` for bytes that are no tensor."""


async def hear(world: World, channel: str, take: Callable[[Message], Awaitable[None] | None]) -> None:
    """Handles every message on a channel, one after the other.  A malformed one is refused, and the trace names its
    sender.
    """
    while True:
        message = await world.receive(channel)
        try:
            taking = take(message)
            if taking is not None:
                await taking
        except NOT_UNDERSTOOD as error:
            refuse(world, message, f"not understood ({type(error).__name__}: {error})")


def refuse(world: World, message: Message, why: str = "not received for a long time") -> None:
    """Records that a message was refused."""
    world.record(MessageRefused(at=world.now, node=world.name, sender=message.sender, channel=message.channel, why=why))

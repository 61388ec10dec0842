"""Mailboxes: what has arrived on a channel, and who waits for it."""

import asyncio
from collections import deque

from atoll.world.base import Message
from atoll.world.loop import VirtualLoop

__all__ = ["Mailbox", "Waiter"]


class Waiter:
    """A receive that has nothing to return yet."""

    __slots__ = ("channel", "sender", "task", "wake")

    def __init__(self, channel: str, sender: str | None, loop: VirtualLoop) -> None:
        self.channel = channel
        self.sender = sender
        self.wake: asyncio.Future[None] = loop.create_future()
        self.task = asyncio.current_task(loop)


class Mailbox:
    """What has arrived on one channel and was not received yet, and who waits for more.

    A waiter is only woken: it takes its message itself when it runs.  So a receive that is cancelled after its message
    has come leaves the message where it was.
    """

    __slots__ = ("_arrived", "_order", "waiters")

    def __init__(self) -> None:
        self._arrived: dict[str, deque[tuple[int, Message]]] = {}
        self._order = 0
        self.waiters: list[Waiter] = []

    @property
    def empty(self) -> bool:
        return not self._arrived and not self.waiters

    def __len__(self) -> int:
        return sum(len(messages) for messages in self._arrived.values())

    def put(self, message: Message) -> None:
        self._order += 1
        self._arrived.setdefault(message.sender, deque()).append((self._order, message))
        self.wake_one()

    def wake_one(self) -> None:
        """Wakes the first waiter that has something to take, for each that there is one."""
        for waiter in self.waiters:
            if not waiter.wake.done() and (self._arrived if waiter.sender is None else waiter.sender in self._arrived):
                waiter.wake.set_result(None)
                return

    def get(self, sender: str | None) -> Message | None:
        if sender is None:
            sender = min(self._arrived, key=lambda name: self._arrived[name][0][0], default=None)
        if sender is None or sender not in self._arrived:
            return None
        _, message = self._arrived[sender].popleft()
        if not self._arrived[sender]:
            del self._arrived[sender]
        return message

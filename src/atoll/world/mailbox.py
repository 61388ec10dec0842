"""Mailboxes: what has arrived on a channel, and who waits for it.  The same in every world."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from atoll.world.base import Message

__all__ = ["Mailbox", "Mailboxes", "Waiter"]


class Waiter:
    """A receive that has nothing to return yet."""

    __slots__ = ("channel", "sender", "task", "wake")

    def __init__(self, channel: str, sender: str | None) -> None:
        self.channel = channel
        self.sender = sender
        self.wake: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.task = asyncio.current_task()

    def may_take(self, sender: str | None) -> bool:
        """Whether it was woken and may be about to take what a receive from `sender` wants: who is first is served."""
        return self.wake.done() and (self.sender is None or sender is None or self.sender == sender)


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


class Mailboxes:
    """All that has arrived at a node and was not received yet, by channel.

    Args:
        pause: awaited before a receive returns; a node that stands still receives nothing.
    """

    __slots__ = ("_boxes", "_pause")

    def __init__(self, pause: Callable[[], Awaitable[None]]) -> None:
        self._boxes: dict[str, Mailbox] = {}
        self._pause = pause

    def __len__(self) -> int:
        """How many messages have arrived and were not received."""
        return sum(len(mailbox) for mailbox in self._boxes.values())

    def deliver(self, message: Message) -> None:
        mailbox = self._boxes.get(message.channel)
        if mailbox is None:
            mailbox = self._boxes[message.channel] = Mailbox()
        mailbox.put(message)

    async def receive(self, sender: str | None, channel: str) -> Message:
        """The next message on a channel, of a sender or of anybody."""
        await self._pause()
        mailbox = self._boxes.get(channel)
        if mailbox is None:
            mailbox = self._boxes[channel] = Mailbox()
        message = None if any(waiter.may_take(sender) for waiter in mailbox.waiters) else mailbox.get(sender)
        place = len(mailbox.waiters)
        while message is None:
            waiter = Waiter(channel, sender)
            mailbox.waiters.insert(place, waiter)
            try:
                await waiter.wake
            except asyncio.CancelledError:
                mailbox.waiters.remove(waiter)
                mailbox.wake_one()  # if it was woken, the message is somebody else's now
                self._tidy(channel, mailbox)
                raise
            place = mailbox.waiters.index(waiter)
            del mailbox.waiters[place]
            await self._pause()
            message = mailbox.get(sender)
        mailbox.wake_one()
        self._tidy(channel, mailbox)
        return message

    def _tidy(self, channel: str, mailbox: Mailbox) -> None:
        """Channels may be many and short-lived: an empty mailbox is not kept."""
        if mailbox.empty and self._boxes.get(channel) is mailbox:
            del self._boxes[channel]

    def waiters(self) -> list[Waiter]:
        return [waiter for mailbox in self._boxes.values() for waiter in mailbox.waiters]

    def clear(self) -> None:
        self._boxes.clear()

"""Mailboxes: the messages that have arrived on a channel, and the receives that wait.  The same in every world."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from atoll.world.base import Message

__all__ = ["Mailbox", "Mailboxes", "Waiter"]

MOST_MESSAGES = 10_000
MOST_BYTES = 1 << 28
LEAST_MESSAGES = 8
"""This many messages of a sender are kept, however large they are."""


class Waiter:
    """A receive that has nothing to return yet."""

    __slots__ = ("channel", "sender", "task", "wake")

    def __init__(self, channel: str, sender: str | None) -> None:
        self.channel = channel
        self.sender = sender
        self.wake: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.task = asyncio.current_task()

    def may_take(self, sender: str | None) -> bool:
        """Whether it was woken and may be about to take the message that a receive from `sender` wants."""
        return self.wake.done() and (self.sender is None or sender is None or self.sender == sender)


class Mailbox:
    """The messages on one channel that were not received yet, and the receives that wait for more.

    A waiter is only woken: it takes its message itself when it runs.  So a receive that is cancelled after its message
    has come leaves the message where it was.
    """

    __slots__ = ("_arrived", "waiters")

    def __init__(self) -> None:
        self._arrived: dict[str, deque[tuple[int, Message]]] = {}
        self.waiters: list[Waiter] = []

    @property
    def empty(self) -> bool:
        return not self._arrived and not self.waiters

    def __len__(self) -> int:
        return sum(len(messages) for messages in self._arrived.values())

    def put(self, order: int, message: Message) -> None:
        self._arrived.setdefault(message.sender, deque()).append((order, message))
        self.wake_one()

    def wake_one(self) -> None:
        """Wakes the first waiter that has a message to take."""
        for waiter in self.waiters:
            if not waiter.wake.done() and (self._arrived if waiter.sender is None else waiter.sender in self._arrived):
                waiter.wake.set_result(None)
                return

    def get(self, sender: str | None) -> tuple[int, Message] | None:
        """The oldest message, of one sender or of all."""
        if sender is None:
            sender = min(self._arrived, key=lambda name: self._arrived[name][0][0], default=None)
        if sender is None or sender not in self._arrived:
            return None
        found = self._arrived[sender].popleft()
        if not self._arrived[sender]:
            del self._arrived[sender]
        return found


class _Held:
    """The messages of one sender that were not received yet, oldest first."""

    __slots__ = ("bytes", "channels")

    def __init__(self) -> None:
        self.channels: dict[int, str] = {}
        self.bytes = 0


class Mailboxes:
    """All messages that have arrived at a node and were not received yet, by channel.

    Messages that nobody receives (of a round that was given up, or malformed) do not pile up: beyond a bound for each
    sender, the oldest are dropped.

    Args:
        pause: awaited before a receive returns; a stalled node receives nothing.
        dropped: called with every message that was dropped.
    """

    __slots__ = ("_boxes", "_dropped", "_held", "_order", "_pause")

    def __init__(self, pause: Callable[[], Awaitable[None]], dropped: Callable[[Message], None]) -> None:
        self._boxes: dict[str, Mailbox] = {}
        self._held: dict[str, _Held] = {}
        self._order = 0
        self._pause = pause
        self._dropped = dropped

    def __len__(self) -> int:
        """How many messages have arrived and were not received."""
        return sum(len(mailbox) for mailbox in self._boxes.values())

    def deliver(self, message: Message) -> None:
        self._order += 1
        held = self._held.setdefault(message.sender, _Held())
        held.channels[self._order] = message.channel
        held.bytes += _size(message)
        self._box(message.channel).put(self._order, message)
        while len(held.channels) > MOST_MESSAGES or (held.bytes > MOST_BYTES and len(held.channels) > LEAST_MESSAGES):
            channel = next(iter(held.channels.values()))
            oldest = self._take(self._boxes[channel], message.sender)
            assert oldest is not None
            self._tidy(channel, self._boxes[channel])
            self._dropped(oldest)

    def _box(self, channel: str) -> Mailbox:
        mailbox = self._boxes.get(channel)
        if mailbox is None:
            mailbox = self._boxes[channel] = Mailbox()
        return mailbox

    def _take(self, mailbox: Mailbox, sender: str | None) -> Message | None:
        found = mailbox.get(sender)
        if found is None:
            return None
        order, message = found
        held = self._held[message.sender]
        del held.channels[order]
        held.bytes -= _size(message)
        return message

    async def receive(self, sender: str | None, channel: str) -> Message:
        """The next message on a channel, from one sender or from any."""
        await self._pause()
        mailbox = self._box(channel)
        message = None if any(waiter.may_take(sender) for waiter in mailbox.waiters) else self._take(mailbox, sender)
        place = len(mailbox.waiters)
        while message is None:
            waiter = Waiter(channel, sender)
            mailbox.waiters.insert(place, waiter)
            try:
                await waiter.wake
            except asyncio.CancelledError:
                mailbox.waiters.remove(waiter)
                mailbox.wake_one()  # if it was woken, another waiter may take the message
                self._tidy(channel, mailbox)
                raise
            place = mailbox.waiters.index(waiter)
            del mailbox.waiters[place]
            await self._pause()
            message = self._take(mailbox, sender)
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
        self._held.clear()


def _size(message: Message) -> int:
    return len(message.head) + memoryview(message.body).nbytes

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.world import inbox as mailbox
from atoll.world.base import Message
from atoll.world.inbox import Mailboxes


async def at_once() -> None:
    pass


def boxes(dropped: list[Message]) -> Mailboxes:
    return Mailboxes(at_once, dropped.append)


def message(sender: str, channel: str, number: int, size: int = 0) -> Message:
    return Message(sender, channel, number.to_bytes(4, "little"), bytes(size))


def receive_now(work: Coroutine[Any, Any, Message]) -> int:
    return int.from_bytes(asyncio.run(asyncio.wait_for(work, 1)).head, "little")


def test_what_nobody_receives_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest of the sender that says too much, and nobody else's."""
    monkeypatch.setattr(mailbox, "MOST_MESSAGES", 3)
    dropped: list[Message] = []
    mails = boxes(dropped)
    mails.deliver(message("b", "round 1", 0))
    for number in range(1, 6):
        mails.deliver(message("a", f"round {number}", number))
    assert [each.channel for each in dropped] == ["round 1", "round 2"]
    assert len(mails) == 4
    assert receive_now(mails.receive("b", "round 1")) == 0
    assert receive_now(mails.receive(None, "round 4")) == 4
    mails.deliver(message("a", "round 6", 6))
    assert len(dropped) == 2, "what was received does not count"


def test_many_bytes_make_room_but_a_few_messages_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailbox, "MOST_BYTES", 100)
    monkeypatch.setattr(mailbox, "LEAST_MESSAGES", 2)
    dropped: list[Message] = []
    mails = boxes(dropped)
    for number in range(4):
        mails.deliver(message("a", "c", number, size=1000))
    assert len(mails) == 2
    assert receive_now(mails.receive("a", "c")) == 2


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xy"), st.booleans())))
def test_everybody_gets_the_oldest(doings: list[tuple[str, str, bool]]) -> None:
    """Against lists."""
    dropped: list[Message] = []
    mails, expected = boxes(dropped), list[tuple[str, str, int]]()
    for number, (sender, channel, receives) in enumerate(doings):
        mine = [each for each in expected if each[:2] == (sender, channel)]
        if receives and mine:
            expected.remove(mine[0])
            assert receive_now(mails.receive(sender, channel)) == mine[0][2]
        elif not receives:
            expected.append((sender, channel, number))
            mails.deliver(message(sender, channel, number))
    assert len(mails) == len(expected)
    assert not dropped

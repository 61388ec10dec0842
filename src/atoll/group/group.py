"""Membership without a coordinator: nodes that reach each other agree on a view of who exchanges with whom.

Of the nodes that a node can reach, the first in the run's order leads.  When somebody in the view has been out of reach
for longer than the grace, or somebody outside it is in reach, the leader proposes a view; who has promised nothing
higher accepts, stops exchanging, and says where it stands; with all answers, or those that came in time, the leader
installs it.  Any node may vanish at any moment: who hears no more goes on in its old view, whoever then comes first
leads, and a proposal with a higher number takes over.  Nodes on both sides of a partition have a leader each, and views
of their own, until they reach each other again.

The leader tells the members every now and then which view it is in, and what its last exchanges came to.  Who is in
another one, or holds something else, says so, and there is a new proposal: what somebody missed is made good.
"""

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from atoll.trace import ViewChanged
from atoll.world.base import Lane, Message, Spawn, World
from atoll.world.hearing import hear

__all__ = ["GRACE_S", "Group", "Guest", "Summary", "View"]

CHANNEL = "group"
TICK_S = 0.5
GRACE_S = 1.5
"""How long a member may be out of reach, unless exchanges take longer."""
ANSWER_S = 2.0
"""How long a proposal waits for answers, unless they were seen to take longer."""
LONGEST_ANSWER_S = 30.0
HOLD = 2.0
"""How many times as long a promise keeps a node from exchanging, at most."""
REMEMBERED = 16
"""How many of its proposals a leader knows the time of."""
TRIES = 3
"""How often a leader that others are ahead of proposes at once, with ever higher numbers."""
HEARTBEAT_TICKS = 4

Summary = list[list[Any]]
"""Where a node stands: what it has agreed on with others, in words that JSON has.  Who shares nothing has nothing in
common.
"""


@dataclass(frozen=True, slots=True)
class View:
    """What its members agree on: who they are, and which agreement it is.

    Exchanges take place inside one view and carry its name, so nodes that have different ideas of who is here never mix
    theirs up.
    """

    number: int
    leader: str
    """Who proposed it; after that it is a member like all others."""
    members: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.number}.{self.leader}"


class Guest(Protocol):
    """Who exchanges in views."""

    def results(self) -> Summary:
        """The last exchanges of this view, each with a digest of what came of it here."""

    def compared(self, sender: str, results: Summary) -> bool:
        """Another member's results; `False` if the same exchange came to something else here."""

    def summary(self) -> Summary:
        """Where this node stands.  It does not change while the group is held."""

    def installed(self, view: View, summaries: dict[str, Summary]) -> None:
        """A view holds from now on.

        Args:
            view: with this node in it.
            summaries: where every member stood when it accepted; the same for all.
        """


class Group:
    """One node's part in membership.

    Args:
        world: the node.
        everybody: all nodes of the run, in the order that all use.
        grace_s: how long a member may be out of reach.
    """

    def __init__(self, world: World, everybody: tuple[str, ...], *, grace_s: float = GRACE_S) -> None:
        self._world = world
        self._everybody = everybody
        self._others = tuple(name for name in everybody if name != world.name)
        self.grace_s = grace_s
        # A run begins with everybody; who begins later, or again, is alone until the others take it in.
        # Its views are told from those of what it was before by when it began.
        self._label = world.name if not world.is_late else f"{world.name} at {world.now:g}"
        self.view = View(0, everybody[0], everybody) if not world.is_late else View(0, self._label, (world.name,))
        self._promised = 0, everybody[0]
        self._held_until_s = 0.0
        self._answer_s = ANSWER_S
        self._proposed_s: dict[tuple[int, str], float] = {}
        self._gone_s: dict[str, float] = {}
        self._strays: set[str] = set()
        self._answers: dict[str, tuple[str, Summary]] | None = None
        self._answered = asyncio.Event()
        self._highest = 0, ""
        self._guest: Guest | None = None
        self._spawn: Spawn | None = None

    def start(self, spawn: Spawn, guest: Guest) -> None:
        self._spawn, self._guest = spawn, guest
        if self._others:
            spawn(hear(self._world, CHANNEL, lambda message: self._hear(message, **json.loads(message.head))))
            spawn(self._watch())

    @property
    def held(self) -> bool:
        """Whether this node has promised to stand still until a view is installed."""
        return self._world.now < self._held_until_s

    # Looking around ---

    async def _watch(self) -> None:
        ticks = 0
        while True:
            await self._world.sleep(TICK_S)
            ticks += 1
            present = self._look()
            if present is None or present[0] != self._world.name:
                continue
            if set(present) != set(self.view.members) or self._strays:
                for _ in range(TRIES):
                    if await self._propose(present):
                        break
            elif ticks % HEARTBEAT_TICKS == 0:
                self._tell_view()

    def _tell_view(self) -> None:
        assert self._guest is not None
        results = self._guest.results()
        self._tell(self.view.members, kind="view", number=self.view.number, leader=self.view.leader, results=results)

    def _look(self) -> list[str] | None:
        """Who is here; `None` while that is not clear."""
        now = self._world.now
        for name in self._others:
            if self._world.peer(name).reachable:
                self._gone_s.pop(name, None)
            else:
                self._gone_s.setdefault(name, now)
        away = [name for name in self._gone_s if name in self.view.members]
        if any(now - self._gone_s[name] < self.grace_s for name in away):
            return None
        return [name for name in self._everybody if name not in self._gone_s]

    # Agreeing ---

    async def _propose(self, present: list[str]) -> bool:
        """Proposes a view of those who are here; `False` if others have promised a higher number."""
        assert self._guest is not None
        number = 1 + max(self._promised[0], self.view.number, self._highest[0])
        mine = number, self._label
        self._proposed_s[mine] = self._world.now
        for old in list(self._proposed_s)[:-REMEMBERED]:
            del self._proposed_s[old]
        self._promise(mine, HOLD * self._answer_s)
        self._strays.clear()
        self._answers = {self._world.name: (self.view.name, self._guest.summary())}
        self._tell(present, kind="propose", number=number, leader=self._label, hold_s=HOLD * self._answer_s)
        try:
            async with asyncio.timeout(self._answer_s):
                while len(self._answers) < len(present) and self._highest <= mine and not self._strays:
                    self._answered.clear()
                    await self._answered.wait()
        except TimeoutError:
            pass
        answers, self._answers = self._answers, None
        if self._promised != mine:
            return True  # somebody else leads
        if self._highest > mine or self._strays:
            self._strays.add(self._world.name)  # others have promised more: once again, with a higher number
            return False
        members = tuple(name for name in self._everybody if name in answers)
        if members == self.view.members and self._is_one(answers.values()):
            self._tell(members, kind="keep", number=number, leader=self._label)
            self._held_until_s = 0.0
            return True
        summaries = {name: summary for name, (_, summary) in answers.items()}
        view = View(number, self._label, members)
        self._tell(members, kind="install", number=number, leader=view.leader, members=members, summaries=summaries)
        self._install(view, summaries)
        return True

    def _is_one(self, answers: Iterable[tuple[str, Summary]]) -> bool:
        """Whether all who answered are in this view, and have something in common."""
        views, summaries = zip(*answers, strict=True)
        shared = set.intersection(*(set(map(tuple, summary)) for summary in summaries))
        return set(views) == {self.view.name} and bool(shared)

    def _promise(self, to: tuple[int, str], hold_s: float) -> None:
        self._promised = to
        self._held_until_s = self._world.now + hold_s

    def _install(self, view: View, summaries: dict[str, Summary]) -> None:
        assert self._guest is not None
        self.view = view
        self._held_until_s = 0.0
        world = self._world
        world.record(ViewChanged(at=world.now, node=world.name, view=view.name, members=view.members))
        self._guest.installed(view, summaries)

    # What others say ---

    def _hear(self, message: Message, kind: str, number: int, leader: str, **more: Any) -> None:
        assert self._guest is not None
        if type(number) is not int or not isinstance(leader, str):
            raise ValueError(f"a view is not called {number!r}, {leader!r}")
        sender, name = message.sender, (number, leader)
        self._highest = max(self._highest, name)
        if kind == "propose":
            if name > self._promised and number > self.view.number:
                self._promise(name, min(float(more["hold_s"]), HOLD * LONGEST_ANSWER_S))
                self._answer(sender, "accept", name, view=self.view.name, summary=self._guest.summary())
            else:
                self._answer(sender, "stray", max(self._promised, (self.view.number, self.view.leader)))
        elif kind == "accept":
            self._learn_how_long_answers_take(name)
            if self._answers is not None and self._promised == name:
                self._answers[sender] = str(more["view"]), _checked(more["summary"])
                self._answered.set()
        elif kind == "install":
            members = tuple(more["members"])
            summaries = {member: _checked(more["summaries"][member]) for member in members}
            if not set(members) <= set(self._everybody):
                raise ValueError(f"a view of {members}")
            if self._promised == name and summaries[self._world.name] == self._guest.summary():
                self._install(View(number, leader, members), summaries)
            else:
                self._answer(sender, "stray", self._promised)
        elif kind == "keep":
            if self._promised == name:
                self._held_until_s = 0.0
        elif kind == "view":
            here = name == (self.view.number, self.view.leader)
            if not here or not self._guest.compared(sender, _checked(more["results"])):
                self._answer(sender, "stray", self._promised)
        elif kind == "stray":
            self._strays.add(sender)
            self._answered.set()

    def _learn_how_long_answers_take(self, name: tuple[int, str]) -> None:
        """One that is late is not lost on the next proposal, which waits for longer."""
        since = self._proposed_s.get(name)
        if since is not None:
            self._answer_s = max(self._answer_s, min(2 * (self._world.now - since), LONGEST_ANSWER_S))

    def _answer(self, to: str, kind: str, name: tuple[int, str], **more: Any) -> None:
        self._tell([to], kind=kind, number=name[0], leader=name[1], **more)

    def _tell(self, names: Iterable[str], **content: Any) -> None:
        assert self._spawn is not None
        head = json.dumps(content, separators=(",", ":")).encode()
        for name in names:
            if name != self._world.name:
                self._spawn(self._send(name, head))

    async def _send(self, name: str, head: bytes) -> None:
        """What a peer does not hear soon it need not hear: it would be about a view of the past."""
        try:
            async with asyncio.timeout(HOLD * self._answer_s):
                await self._world.peer(name).send(CHANNEL, head, lane=Lane.CONTROL)
        except TimeoutError:
            pass


def _checked(summary: Any) -> Summary:
    """A summary that another node gave: pairs, of texts and numbers."""
    for each in summary:
        first, second = each
        if not isinstance(first, str) or not isinstance(second, int | str):
            raise ValueError(f"{each!r} is not part of a summary")  # noqa: TRY004 - all that is wrong is one error
    return list(summary)

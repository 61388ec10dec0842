"""Membership without a coordinator: nodes that reach each other agree on a view, the set of nodes that exchange.

Of the present nodes, the first in the run's order leads.  When a member of the view has been unreachable for longer
than the grace period, or a node outside it is present, the leader proposes a view.  A node that has promised no higher
number accepts, stops exchanging, and sends a summary of its state.  With all answers, or those that came in time, the
leader installs the view.  Any node may fail at any moment: a node that hears no more resumes in its old view, the next
node in order leads, and a proposal with a higher number takes over.  The two sides of a partition have a leader and
views of their own, until they reach each other again.

A node outside the view is present when it says so (`here`), so a node that is reachable but still preparing delays
nobody.  A member whose training is stuck says `away`; the others continue without it, and admit it again later.

The leader sends its view and the digests of its last exchanges to the members from time to time.  A member with another
view or another result objects, and there is a new proposal, which repairs the difference.

Messages are typed and bounded before anything changes: a malformed message is refused and changes nothing.
"""

import asyncio
import contextlib
import json
import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from atoll.membership.hold import Hold
from atoll.membership.progress import Progress
from atoll.membership.view import LONGEST_NAME, Guest, Summary, View, read_summary
from atoll.trace import ViewChanged
from atoll.world.base import Lane, Message, Spawn, World
from atoll.world.hearing import hear

__all__ = ["GRACE_S", "Group"]

log = logging.getLogger("atoll")

CHANNEL = "group"
TICK_S = 0.5
GRACE_S = 1.5
"""How long a member may be unreachable, unless exchanges take longer."""
ANSWER_S = 2.0
"""How long a proposal waits for answers, unless earlier answers took longer."""
LONGEST_ANSWER_S = 30.0
HOLD = 2.0
"""How long a promise keeps a node from exchanging, at most, as a multiple of the answer time."""
REMEMBERED = 16
"""How many of its proposals, and how many answer times, a leader remembers."""
HELLO_S = 1.0
"""How long a node that has just become reachable may take to say that it is present."""
TRIES = 3
"""How often a leader that is behind others proposes at once, with ever higher numbers."""
HEARTBEAT_TICKS = 4
LONGEST_SILENCE_S = 60.0
"""How long a node that does not answer proposals is left out, at most."""
NUMBERS_AHEAD = 1_000_000
"""The most that a view's number may be ahead of the known ones."""

LONGEST_SUMMARY = 2_000


class Group:
    """One node's part in membership.

    Args:
        world: the node's world.
        everybody: all nodes of the run, in the order that all use.
        grace_s: how long a member may be unreachable.
    """

    def __init__(self, world: World, everybody: tuple[str, ...], *, grace_s: float = GRACE_S) -> None:
        self._world = world
        self._everybody = everybody
        self._others = tuple(name for name in everybody if name != world.name)
        self.grace_s = grace_s
        # A run begins with all nodes; a node that joins or restarts later is alone until the others admit it.
        # Its start time distinguishes its views from those before a restart.
        self._label = world.name if not world.is_late else f"{world.name} at {world.now:g}"
        self.view = View(0, everybody[0], everybody) if not world.is_late else View(0, self._label, (world.name,))
        self._promised = 0, everybody[0]
        self._accepted: Summary = []
        self._hold = Hold(world)
        self._took_s: deque[float] = deque(maxlen=REMEMBERED)
        """How long answers took."""
        self._proposed_s: dict[tuple[int, str], float] = {}
        self._gone_s: dict[str, float] = {}
        self._reached_s: dict[str, float] = {}
        """Since when others are reachable."""
        self._said_here: dict[str, bool] = {}
        """Whether a node has said `here` or `away`; a member of the view is present unless it says otherwise."""
        self._silent: dict[str, tuple[int, float]] = {}
        """How many proposals in a row a node did not answer, and until when it is left out."""
        self._strays: set[str] = set()
        self._answers: dict[str, tuple[str, Summary]] | None = None
        self._answered = asyncio.Event()
        self._highest = 0, ""
        self._guest: Guest | None = None
        self._pace: Progress | None = None
        self._is_stuck = False
        self._spawn: Spawn | None = None

    def start(self, spawn: Spawn, guest: Guest, progress: Callable[[], int] | None = None) -> None:
        """Begins to take part.

        Args:
            spawn: runs coroutines in the background.
            guest: takes part in the exchanges.
            progress: a counter that grows while training proceeds; a stuck node is left out.  A node that begins late
                is admitted after its first step.
        """
        self._spawn, self._guest = spawn, guest
        self._pace = Progress(progress, self._world.now) if progress else None
        if self._others:
            spawn(hear(self._world, CHANNEL, lambda message: self._hear(message, **json.loads(message.head))))
            spawn(self._watch())

    @property
    def held(self) -> bool:
        """Whether this node has promised not to exchange until a view is installed."""
        return self._hold.is_on

    async def until_free(self) -> None:
        """Returns when this node is in no promise: what it says of itself must stay true as long."""
        await self._hold.wait()

    @property
    def is_alone(self) -> bool:
        """Whether there is no other node to exchange with."""
        return len(self.view.members) == 1

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """While training waits for an exchange, it does not count as stuck."""
        if self._pace:
            self._pace.waits += 1
        try:
            yield
        finally:
            if self._pace:
                self._pace.waits -= 1

    def object(self) -> None:
        """Asks for another view, since this node cannot continue in its own."""
        self._strays.add(self._world.name)
        self._tell(self.view.members, kind="stray", number=self.view.number, leader=self.view.leader)

    # Presence ---

    async def _watch(self) -> None:
        ticks = 0
        while True:
            await self._world.sleep(TICK_S)
            ticks += 1
            present = self._look()
            if not self._is_here():
                continue
            self._tell(self._reached(lambda name: name not in self.view.members), **self._here())
            if present is None or present[0] != self._world.name:
                continue
            if set(present) != set(self.view.members) or self._strays:
                for _ in range(TRIES):
                    if await self._propose(present):
                        break
            elif ticks % HEARTBEAT_TICKS == 0:
                self._tell_view()

    def _is_here(self) -> bool:
        """Whether this node trains; tells the others if training gets stuck or resumes."""
        if self._pace is None:
            return True
        was_stuck, self._is_stuck = self._is_stuck, self._pace.is_stuck(self._world.now)
        if self._is_stuck:
            if not was_stuck:
                log.warning("%s: training is stuck; the others continue without it until it resumes", self._world.name)
            self._tell(self._reached(), **self._away())
        elif was_stuck:
            log.warning("%s: training resumes", self._world.name)
            self._tell(self._reached(), **self._here())
        return not self._is_stuck and (self._pace.has_begun or not self._world.is_late)

    def _reached(self, wanted: Callable[[str], bool] = lambda _: True) -> list[str]:
        return [name for name in self._others if name not in self._gone_s and wanted(name)]

    def _here(self, *, asks: bool = True) -> dict[str, Any]:
        return {"kind": "here", "number": self.view.number, "leader": self.view.leader, "asks": asks}

    def _away(self) -> dict[str, Any]:
        return {**self._here(), "kind": "away"}

    def _tell_view(self) -> None:
        assert self._guest is not None
        results = self._guest.results()
        self._tell(self.view.members, kind="view", number=self.view.number, leader=self.view.leader, results=results)

    def _look(self) -> list[str] | None:
        """The present nodes; `None` while that is not clear."""
        now = self._world.now
        for name in self._others:
            if self._world.peer(name).reachable:
                self._gone_s.pop(name, None)
                self._reached_s.setdefault(name, now)
            else:
                self._gone_s.setdefault(name, now)
                self._reached_s.pop(name, None)
                self._said_here.pop(name, None)
        unknown = self._reached(lambda name: name not in self.view.members and name not in self._said_here)
        if any(now - self._reached_s[name] < HELLO_S for name in unknown):
            return None
        away = [name for name in self._gone_s if name in self.view.members]
        if any(now - self._gone_s[name] < self.grace_s for name in away):
            return None
        return [name for name in self._everybody if name == self._world.name or self._counts(name, now)]

    def _counts(self, name: str, now: float) -> bool:
        """Whether another node is present."""
        if name in self._gone_s or not self._said_here.get(name, name in self.view.members):
            return False
        return now >= self._silent.get(name, (0, 0.0))[1]

    # Agreeing ---

    @property
    def _answer_s(self) -> float:
        """How long a proposal waits: twice as long as the slowest of the last answers."""
        return min(max(ANSWER_S, 2 * max(self._took_s, default=0.0)), LONGEST_ANSWER_S)

    async def _propose(self, present: list[str]) -> bool:
        """Proposes a view of the present nodes; `False` if others have promised a higher number."""
        assert self._guest is not None
        number = 1 + max(self._promised[0], self.view.number, self._highest[0])
        mine = number, self._label
        self._proposed_s[mine] = self._world.now
        for old in list(self._proposed_s)[:-REMEMBERED]:
            del self._proposed_s[old]
        answer_s = self._answer_s
        self._promise(mine, HOLD * answer_s)
        self._strays.clear()
        self._answers = {self._world.name: (self.view.name, self._accepted)}
        self._tell(present, kind="propose", number=number, leader=self._label, hold_s=HOLD * answer_s)
        try:
            async with asyncio.timeout(answer_s):
                while self._is_open(present, mine):
                    self._answered.clear()
                    await self._answered.wait()
        except TimeoutError:
            pass
        answers, self._answers = self._answers, None
        if self._promised != mine:
            return True  # another node leads
        if self._highest > mine or self._strays:
            self._strays.add(self._world.name)  # others have promised more: once again, with a higher number
            return False
        self._leave_alone([name for name in present if name not in answers])
        members = tuple(name for name in self._everybody if name in answers)
        summaries = {name: summary for name, (_, summary) in answers.items()}
        views = {view for view, _ in answers.values()}
        if members == self.view.members and views == {self.view.name} and self._guest.are_together(summaries.values()):
            self._tell(members, kind="keep", number=number, leader=self._label)
            self._hold.end()
            return True
        view = View(number, self._label, members)
        self._tell(members, kind="install", number=number, leader=view.leader, members=members, summaries=summaries)
        self._install(view, summaries)
        return True

    def _is_open(self, present: list[str], mine: tuple[int, str]) -> bool:
        """Whether a proposal is still waiting for answers."""
        assert self._answers is not None
        waited_for = [name for name in present if name not in self._answers and self._said_here.get(name, True)]
        return bool(waited_for) and self._highest <= mine and not self._strays

    def _leave_alone(self, names: list[str]) -> None:
        """Leaves out, for a while, nodes that did not answer: no node exchanges during a proposal."""
        for name in names:
            times = self._silent.get(name, (0, 0.0))[0] + 1
            until = self._world.now + min(2.0**times, LONGEST_SILENCE_S)
            self._silent[name] = times, until
            log.info("%s: no answer from %s", self._world.name, name)

    def _promise(self, to: tuple[int, str], hold_s: float) -> None:
        assert self._guest is not None
        self._promised = to
        self._accepted = self._guest.summary()
        self._hold.begin(hold_s)

    def _install(self, view: View, summaries: dict[str, Summary]) -> None:
        assert self._guest is not None
        for name in self.view.members:
            if name not in view.members:
                self._said_here.pop(name, None)  # it says so when it is present again
        self.view = view
        self._hold.end()
        world = self._world
        world.record(ViewChanged(at=world.now, node=world.name, view=view.name, members=view.members))
        self._guest.installed(view, summaries)

    # Messages ---

    def _hear(self, message: Message, kind: str, number: int, leader: str, **more: Any) -> None:
        known = max(self._promised[0], self.view.number, self._highest[0])
        if type(number) is not int or not 0 <= number <= known + NUMBERS_AHEAD:
            raise ValueError(f"{number!r:.30} is not a view's number")
        if not isinstance(leader, str) or len(leader) > LONGEST_NAME:
            raise ValueError(f"{leader!r:.30} is not a view's leader")
        sender, name = message.sender, (number, leader)
        if sender not in self._others:
            raise ValueError(f"{sender} is not a node of this run")
        if kind == "propose":
            self._hear_proposal(sender, name, float(more["hold_s"]))
        elif kind == "accept":
            self._hear_accept(sender, name, str(more["view"])[:LONGEST_NAME], self._checked(more["summary"]))
        elif kind == "install":
            self._hear_install(sender, name, more["members"], more["summaries"])
        elif kind == "keep":
            if self._promised == name:
                self._hold.end()
        elif kind == "view":
            self._hear_view(sender, name, read_summary(more["results"]))
        elif kind == "stray":
            self._strays.add(sender)
            self._answered.set()
        elif kind in ("here", "away"):
            self._hear_presence(sender, name, is_here=kind == "here", asks=more.get("asks") is True)
            return
        else:
            raise ValueError(f"{kind!r:.30} is not a kind of message")
        self._highest = max(self._highest, name)

    def _hear_proposal(self, sender: str, name: tuple[int, str], hold_s: float) -> None:
        if not math.isfinite(hold_s) or hold_s < 0:
            raise ValueError(f"a promise cannot hold for {hold_s} s")
        if self._is_stuck:
            self._tell([sender], **self._away())
        elif name > self._promised and name[0] > self.view.number:
            self._promise(name, min(hold_s, HOLD * LONGEST_ANSWER_S))
            self._answer(sender, "accept", name, view=self.view.name, summary=self._accepted)
        else:
            self._answer(sender, "stray", max(self._promised, (self.view.number, self.view.leader)))

    def _hear_accept(self, sender: str, name: tuple[int, str], view: str, summary: Summary) -> None:
        since = self._proposed_s.get(name)
        if since is not None:  # a late answer makes the next proposal wait longer
            self._took_s.append(self._world.now - since)
            self._silent.pop(sender, None)
        if self._answers is not None and self._promised == name:
            self._answers[sender] = view, summary
            self._answered.set()

    def _hear_install(self, sender: str, name: tuple[int, str], members: Any, summaries: Any) -> None:
        assert self._guest is not None
        if [each for each in self._everybody if each in members] != members or self._world.name not in members:
            raise ValueError(f"a view of {members!r:.100}")
        checked = {member: self._checked(summaries[member]) for member in members}
        as_promised = self._promised == name and checked[self._world.name] == self._accepted
        if as_promised and self._guest.stands(self._accepted):
            self._install(View(*name, tuple(members)), checked)
        else:
            self._answer(sender, "stray", self._promised)

    def _hear_view(self, sender: str, name: tuple[int, str], results: Summary) -> None:
        assert self._guest is not None
        here = name == (self.view.number, self.view.leader)
        if not here or not self._guest.compared(sender, results):
            self._answer(sender, "stray", self._promised)

    def _hear_presence(self, sender: str, view: tuple[int, str], *, is_here: bool, asks: bool) -> None:
        if sender in self.view.members:
            if asks and is_here and view != (self.view.number, self.view.leader) and not self._is_stuck:
                self._tell([sender], **self._here(asks=False))  # it has continued without this node
            if not is_here and self._said_here.get(sender, True):
                log.warning("%s: training is stuck at %s; continuing without it", self._world.name, sender)
        self._said_here[sender] = is_here
        self._answered.set()

    def _checked(self, summary: Any) -> Summary:
        assert self._guest is not None
        found = read_summary(summary)
        self._guest.check(found)
        return found

    def _answer(self, to: str, kind: str, name: tuple[int, str], **more: Any) -> None:
        self._tell([to], kind=kind, number=name[0], leader=name[1], **more)

    def _tell(self, names: Iterable[str], **content: Any) -> None:
        assert self._spawn is not None
        head = json.dumps(content, separators=(",", ":")).encode()
        for name in names:
            if name != self._world.name:
                self._spawn(self._send(name, head))

    async def _send(self, name: str, head: bytes) -> None:
        """Sends a message, with a timeout: a late message would be about an old view."""
        try:
            async with asyncio.timeout(HOLD * self._answer_s):
                await self._world.peer(name).send(CHANNEL, head, lane=Lane.CONTROL)
        except TimeoutError:
            pass

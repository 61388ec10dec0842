"""Data injection (SelSync; Tyagi & Swany, 2023): where shards differ, nodes lend each other a few examples.

At every step, each node with probability α lends a share β of its batch to all others.  Batches have b/(1 + αβN)
examples of their own, so that with the lent examples they are as large as before.  Examples travel as messages and
join the next batch when they arrive; an unreachable peer gets none.
"""

from dataclasses import dataclass

from atoll.errors import ExamplesRefused
from atoll.state import Saved, section, under
from atoll.strategies.replica import Replica
from atoll.strategies.talk import Spawn, Strategy, Talk
from atoll.trace import ContributionRefused

__all__ = ["Injection", "Together"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Injection(Strategy):
    """Nodes lend each other examples."""

    nodes: float
    """α, the share of nodes that lend at a step."""
    batch: float
    """β, the share of its batch that such a node lends."""

    def start(self, replica: Replica) -> Talk:
        return InjectionTalk(replica, self)

    @property
    def shares_examples(self) -> bool:
        return True


class InjectionTalk(Talk):
    """One node's part in lending examples.

    Args:
        replica: its model and data.
        parts: the strategy.
    """

    def __init__(self, replica: Replica, parts: Injection) -> None:
        self._replica = replica
        self._nodes = parts.nodes
        self._batch = parts.batch
        self._sending: set[str] = set()
        self._spawn: Spawn | None = None

    def start(self, spawn: Spawn) -> None:
        self._spawn = spawn
        self._replica.scale_batch(1 / (1 + self._nodes * self._batch * len(self._replica.members)))
        spawn(self._listen())

    async def after_step(self) -> bool:
        assert self._spawn is not None
        replica, world = self._replica, self._replica.world
        if world.random.random() < self._nodes:
            examples = replica.lend(self._batch)
            for name in replica.members:
                if name != world.name and name not in self._sending and world.peer(name).reachable:
                    self._sending.add(name)
                    self._spawn(self._send(name, examples))
        return False

    async def _send(self, name: str, examples: bytes) -> None:
        """Sends examples.  Each peer has at most one message in flight, so that a slow link gets fewer."""
        try:
            await self._replica.world.peer(name).send("examples", body=examples)
        finally:
            self._sending.discard(name)

    async def _listen(self) -> None:
        world = self._replica.world
        while True:
            message = await world.receive("examples")
            try:
                self._replica.borrow(bytes(message.body))
            except ExamplesRefused as error:
                why = f"{message.sender}: {error}"
                world.record(ContributionRefused(at=world.now, node=world.name, name="examples", why=why))


@dataclass(frozen=True, slots=True)
class Together(Strategy):
    """Several strategies at once."""

    strategies: tuple[Strategy, ...]

    def start(self, replica: Replica) -> Talk:
        return TogetherTalk(*(strategy.start(replica) for strategy in self.strategies))

    @property
    def uses_gradients(self) -> bool:
        return any(strategy.uses_gradients for strategy in self.strategies)

    @property
    def shares_examples(self) -> bool:
        return any(strategy.shares_examples for strategy in self.strategies)


class TogetherTalk(Talk):
    """One node's side of several strategies; at each boundary they run in order."""

    def __init__(self, *talks: Talk) -> None:
        self._talks = talks

    def prepare(self) -> None:
        for talk in self._talks:
            talk.prepare()

    @property
    def memory_bytes(self) -> int:
        return sum(talk.memory_bytes for talk in self._talks)

    def start(self, spawn: Spawn) -> None:
        for talk in self._talks:
            talk.start(spawn)

    async def after_gradient(self) -> None:
        for talk in self._talks:
            await talk.after_gradient()

    async def after_step(self) -> bool:
        return any([await talk.after_step() for talk in self._talks])

    async def settle(self) -> None:
        for talk in self._talks:
            await talk.settle()

    def save(self) -> Saved:
        return {
            key: value
            for place, talk in enumerate(self._talks)
            for key, value in under(str(place), talk.save()).items()
        }

    def load(self, saved: Saved) -> None:
        for place, talk in enumerate(self._talks):
            talk.load(section(str(place), saved))

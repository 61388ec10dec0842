"""A node's exchanges with the owners of its layers in other islands: the same strategies as for whole replicas, each
for a range of layers.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from atoll.islands.settlement import Exchanges, RangeKey
from atoll.islands.span import Layers, SpanReplica
from atoll.state import Saved, section, under
from atoll.strategies import Strategy
from atoll.strategies.talk import Talk
from atoll.training.drive import Background
from atoll.world.base import World
from atoll.world.scope import Scoped

__all__ = ["RangeTalks"]


@dataclass(slots=True, eq=False)
class _Exchange:
    """This node's part in the exchange of one range."""

    scope: str
    replica: SpanReplica
    talk: Talk
    background: Background


class RangeTalks(Talk):
    """The exchanges of all ranges that a node holds, as one `Talk`.

    Args:
        world: the node's world.
        strategy: the communication strategy between islands.
        loss: the island's loss on its last batches.
        before_change: called before an exchange changes weights.
    """

    def __init__(
        self, world: World, strategy: Strategy, *, loss: Callable[[], float], before_change: Callable[[], None]
    ) -> None:
        self._world = world
        self._strategy = strategy
        self._loss = loss
        self._before_change = before_change
        self._exchanges: dict[RangeKey, _Exchange] = {}
        self._layers: Layers = {}
        self._gradients: list[tuple[nn.Parameter, Tensor | None]] = []
        """Gradients of the current update.  A stage drops them with the update, and strategies use them after it."""

    def follow(self, wanted: Exchanges, layers: Layers, group: asyncio.TaskGroup) -> None:
        """Takes part in these exchanges only; exchanges that continue are kept."""
        self._layers = layers
        self.close(wanted)
        for (first, last), (scope, members) in sorted(wanted.items()):
            held = {layer: layers[layer] for layer in range(first, last)}
            optimizers = {layer: each.optimizer for layer, each in held.items() if each.optimizer}
            if (first, last) in self._exchanges or len(members) < 2 or not optimizers:
                continue
            modules = nn.Sequential(*(each.module for each in held.values()))
            world = Scoped(self._world, scope, begins=True)
            replica = SpanReplica(
                world, members, modules, optimizers, loss=self._loss, before_change=self._before_change
            )
            background = Background(group)
            talk = self._strategy.start(replica)
            talk.prepare()
            talk.start(background)
            self._exchanges[first, last] = _Exchange(scope, replica, talk, background)

    def close(self, keep: Exchanges | None = None) -> None:
        """Leaves all exchanges but those to keep."""
        for key, exchange in list(self._exchanges.items()):
            if keep is None or key not in keep or keep[key][0] != exchange.scope:
                exchange.background.cancel()
                del self._exchanges[key]

    def forget(self) -> None:
        """Gives up the current update."""
        self._gradients = []

    def count(self, samples: int) -> None:
        """Counts an update and its samples."""
        for each in self._exchanges.values():
            each.replica.steps += 1
            each.replica.work[each.replica.rank] += samples

    async def after_gradient(self) -> None:
        if self._strategy.uses_gradients:
            await asyncio.gather(*(each.talk.after_gradient() for each in self._exchanges.values()))
        modules = [held.module for held in self._layers.values()]
        self._gradients = [(each, each.grad) for module in modules for each in module.parameters()]

    async def after_step(self) -> bool:
        """Runs every exchange, with the gradients of the update in place, as with whole replicas."""
        gradients, self._gradients = self._gradients, []
        talks = [each.talk for each in self._exchanges.values()]
        for parameter, gradient in gradients:
            parameter.grad = gradient
        try:
            return any(await asyncio.gather(*(talk.after_step() for talk in talks if not talk.is_idle)))
        finally:
            for parameter, _ in gradients:
                parameter.grad = None

    async def settle(self) -> None:
        for each in self._exchanges.values():
            await each.talk.settle()

    def save(self) -> Saved:
        saved: Saved = {}
        for (first, last), each in self._exchanges.items():
            saved |= under(f"range {first} {last}/replica", each.replica.save())
            saved |= under(f"range {first} {last}/talk", each.talk.save())
        return saved

    def load(self, saved: Saved) -> None:
        for (first, last), each in self._exchanges.items():
            each.replica.load(section(f"range {first} {last}/replica", saved))
            each.talk.load(section(f"range {first} {last}/talk", saved))

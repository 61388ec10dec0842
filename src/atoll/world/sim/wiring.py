"""The links between simulated nodes: their state, their pipes, and the paths through them."""

import math
from collections import Counter
from collections.abc import Callable, Iterator

from atoll.network import Link, Network
from atoll.world.sim.fair import Pipe
from atoll.world.sim.routes import Routes
from atoll.world.sim.wires import LinkState, Path

__all__ = ["Wiring"]


class Wiring:
    """The current state of a network's links.

    Args:
        network: the network.
        now: returns the time.
        seed: the seed of the weather.
    """

    def __init__(self, network: Network, now: Callable[[], float], *, seed: int) -> None:
        self._now = now
        self.states = {link.name: LinkState(link, seed, network.run_s) for link in network.links}
        self._up = {
            node.name: Pipe(f"{node.name} up", node.up_bps / 8) for node in network.nodes if node.up_bps < math.inf
        }
        self._down = {
            node.name: Pipe(f"{node.name} down", node.down_bps / 8)
            for node in network.nodes
            if node.down_bps < math.inf
        }
        self.routes = Routes(network, lambda link: self.states[link.name].up, self._latency_of)
        self.blocked: Counter[tuple[str, str]] = Counter()
        """How many faults block each pair (sender, receiver)."""
        self.faults_to_come = 0
        """How many faults are still to begin or to end."""
        self.phase_starts_s = _phase_starts_s(network)

    def pipes(self) -> Iterator[Pipe]:
        """Every pipe of the network."""
        yield from (end for state in self.states.values() for end in (state.there, state.back))
        yield from self._up.values()
        yield from self._down.values()

    def _latency_of(self, link: Link, forward: bool) -> float:  # noqa: FBT001 - the shape of a step
        state = self.states[link.name]
        return (state.there if forward else state.back).latency_s(self._now())

    def works(self, sender: str, receiver: str) -> bool:
        """Whether there is a working path from one node to another."""
        return not self.blocked[sender, receiver] and self.routes.find(sender, receiver) is not None

    def path(self, sender: str, receiver: str) -> Path | None:
        """The path from one node to another now, if there is one."""
        steps = self.routes.find(sender, receiver)
        if steps is None or self.blocked[sender, receiver]:
            return None
        states = [self.states[link.name] for link, _ in steps]
        ends = [state.there if forward else state.back for state, (_, forward) in zip(states, steps, strict=True)]
        reverse = [state.back if forward else state.there for state, (_, forward) in zip(states, steps, strict=True)]
        access = [pipe for pipe in (self._up.get(sender), self._down.get(receiver)) if pipe]
        return Path(ends, reverse, access, self.routes.version)

    def may_open(self, sender: str, receiver: str) -> bool:
        """Whether there is a path from one node to another, or may yet be one."""
        if self.blocked[sender, receiver]:
            return self.faults_to_come > 0
        return self.routes.are_joined(sender, receiver, self._up_or_may_be)

    def may_close(self, sender: str, receiver: str) -> bool:
        """Whether there is no path from one node to another, or it may yet fail."""
        return not self.routes.are_joined(sender, receiver, self._is_up_for_good)

    def _up_or_may_be(self, link: Link) -> bool:
        state = self.states[link.name]
        return state.up or state.next_change is not None

    def _is_up_for_good(self, link: Link) -> bool:
        state = self.states[link.name]
        return state.up and state.next_change is None

    def may_change(self) -> bool:
        """Whether any link may yet go down or come back."""
        return any(state.next_change is not None for state in self.states.values())

    def changed_s(self, sender: str, receiver: str) -> float:
        """When the path from one node to another may last have changed."""
        own = self.routes.own_link(sender, receiver)
        states = [self.states[own.name]] if own else self.states.values()
        return max((state.changed_s for state in states), default=-math.inf)


def _phase_starts_s(network: Network) -> list[float]:
    counts = {len(way.phases) for link in network.links for way in (link.there, link.back)} - {0}
    return sorted({index * (network.run_s or 0.0) / count for count in counts for index in range(1, count)})

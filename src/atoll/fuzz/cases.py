"""Cases of the fuzzer: a seed draws a network, a strategy, a fault script, and how the run begins."""

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass, replace

from atoll.network import Network, parse_network
from atoll.seeds import stream
from atoll.world.faults import MESSAGE_KINDS, Fault

__all__ = ["END_S", "STRATEGIES", "TROUBLE_S", "Case", "Failure", "draw_case"]

TROUBLE_S, END_S = 60.0, 120.0
"""All faults but permanent crashes end a minute before the run does."""
SMALL, LARGE = 300, 20_000
"""Values of a model; a large one takes seconds to transfer on the slowest links."""

STRATEGIES = (
    "allreduce:every=2",
    "allreduce:every=4,direct,paced",
    "allreduce:overlap,shared,codec=int8",
    "allreduce:quantity=gradient",
    "allreduce:every=5,overlap",
    "allreduce:every=2,ring",
    "allreduce:every=2,best",
    "allreduce:every=4,robust=median",
    "diloco:every=3,codec=int4",
    "diloco:every=12,codec=int8,overlap",
    "diloco:every=2,fragments=3",
    "vrl:codec=int8",
    "vrl:every=4,overlap,codec=bits2",
    "sparseloco:every=2",
    "fda",
    "selsync",
    "noloco:every=3",
    "daso",
    "admm",
    "demo",
    "flexible",
    "powersgd",
    "gossip",
    "gossip:aware,codec=int8",
    "gossip:pushsum",
    "decent",
    "ssp",
    "ssp:bound=0,codec=chunk/4",
)


@dataclass(frozen=True)
class Case:
    """One run of the fuzzer."""

    seed: int
    network: str
    """The network as TOML."""
    strategy: str
    faults: tuple[Fault, ...]
    islands: bool = False
    """Whether several nodes hold one model together."""
    joins: bool = False
    """Whether the first node begins the run and the others join it, each with a model of its own, as over real links;
    otherwise all begin together with the same model.
    """
    size: int = SMALL
    """How many values a model has."""
    blocks: int = 1
    """In how many blocks it is exchanged."""

    @property
    def net(self) -> Network:
        return parse_network(self.network, name=f"fuzz {self.seed}")

    @property
    def script(self) -> str:
        """The faults as TOML."""
        return "\n".join(fault.as_toml() for fault in self.faults)

    def without(self, number: int) -> "Case":
        """The same case without one fault."""
        left = (*self.faults[:number], *self.faults[number + 1 :])
        return replace(self, faults=left)


@dataclass(frozen=True)
class Failure:
    """A case, and the invariant that did not hold."""

    case: Case
    what: str


def draw_case(seed: int, strategies: Iterable[str] = STRATEGIES, *, islands: bool = False) -> Case:
    """The case of a seed."""
    draw = stream(seed, "fuzz")
    joins = not islands and draw.random() < 0.5
    size = draw.choice([SMALL, LARGE]) if joins else SMALL
    count = draw.randint(4, 7) if islands else draw.randint(2, 5)
    names = [str(place) for place in range(count)]
    step = draw.choice(["0.5", "0.5", "0.2"])
    slow = f'[[node]]\nnames = ["{names[-1]}"]\nstep_s = {float(step) * draw.choice([1, 2, 3]):g}\n'
    nodes = f"[[node]]\nnames = [{', '.join(map(repr, names[:-1]))}]\nstep_s = {step}\n{slow}"
    rate = draw.choice([1, 5, 20, 100] if size == SMALL else [0.5, 2, 20])
    link = f"latency_ms = {draw.choice([1, 10, 40, 90])}\nrate_mbps = {rate}\n"
    away = round(draw.uniform(0, TROUBLE_S - 10), 1)
    link += draw.choice(["", "jitter_ms = 5\n", "loss = 0.001\n", f"outages = [[{away}, {away + 8}]]\n"])
    if draw.random() < 0.3:
        text = f'hubs = ["hub"]\n{nodes}[[link]]\nbetween = ["?", "hub"]\n{link}'
    else:
        text = f'{nodes}[[link]]\namong = "*"\n{link}'
    faults = [_draw_fault(draw, names) for _ in range(draw.randint(0, 5))]
    if joins:
        faults += [fault for name in names[1:] for fault in _draw_join(draw, names, name)]
    blocks = stream(seed, "blocks").choice([1, 1, 3, 12])
    return Case(seed, text, draw.choice(list(strategies)), tuple(faults), islands, joins, size, blocks)


def _draw_join(draw: random.Random, names: list[str], name: str) -> list[Fault]:
    """A node that joins after the first, and whose link to another may break while it receives the model."""
    at = round(draw.uniform(1, TROUBLE_S - 20), 2)
    found = [Fault("crash", 0.0, at, (name,))]
    if draw.random() < 0.5:
        other = draw.choice([each for each in names if each != name])
        cut = round(at + draw.choice([0.5, 1, 2, 4]) * draw.uniform(0.5, 2), 2)
        until = round(min(TROUBLE_S, cut + draw.choice([1, 3, 12])), 2)
        found.append(Fault("cut", cut, until, (), frozenset({(name, other), (other, name)})))
    return found


def _draw_fault(draw: random.Random, names: list[str]) -> Fault:
    kinds = ["crash", "crash", "stall", "hang", "slow", "cut", "partition", "oneway", *sorted(MESSAGE_KINDS)]
    kind = draw.choice(kinds)
    at = round(draw.uniform(0, TROUBLE_S - 1), 2)
    length = draw.choice([0.3, 2, 5, 8, 20, 40])
    until = round(min(TROUBLE_S, at + length * draw.uniform(0.5, 1.5)), 2)
    if kind in ("crash", "stall", "hang", "slow"):
        if kind == "crash" and draw.random() < 0.2 and len(names) > 2:
            until = math.inf
        nodes = (draw.choice(names),)
        return Fault(kind, at, until, nodes, factor=draw.choice([2.0, 5.0]) if kind == "slow" else 1.0)
    one, other = draw.sample(names, 2)
    if kind == "oneway":
        pairs = {(one, other)}
    elif kind == "cut":
        pairs = {(one, other), (other, one)}
    else:
        side = {one, *(name for name in names if name not in (one, other) and draw.random() < 0.5)}
        pairs = {(a, b) for a in names for b in names if (a in side) != (b in side)}
    if kind not in MESSAGE_KINDS:
        return Fault(kind, at, until, (), frozenset(pairs))
    seconds = draw.choice([0.2, 1.0, 3.0]) if kind == "delay" else 0.0
    return Fault(kind, at, until, (), frozenset(pairs), share=draw.choice([0.02, 0.1, 0.4]), seconds=seconds)

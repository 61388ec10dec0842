"""The named strategies: each composes parts and does nothing else.

A recipe is a function whose keywords are what a user may set, and whose docstring is what `atoll strategies` shows: one
line, the rule, and where it comes from.  To add a strategy, add a function here.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal

from atoll.codec import Codec
from atoll.codec.reduce import Coded, Plain, Reduction
from atoll.strategy.ahead import Ahead, OwnSteps, SharedSteps
from atoll.strategy.deltas import Deltas
from atoll.strategy.merge import ByAge, ByWork, Drift, Equal, Mean, Merge, PushSum
from atoll.strategy.outer import Nesterov
from atoll.strategy.pushes import Pushes
from atoll.strategy.replica import Quantity, Replica
from atoll.strategy.rounds import Rounds
from atoll.strategy.spec import recipe
from atoll.strategy.talk import Silence, Talk
from atoll.strategy.when import Every
from atoll.strategy.whom import Aware, Uniform

__all__ = ["allreduce", "diloco", "gossip", "none", "ssp"]

Via = Literal["auto", "star", "gather", "direct", "ring", "tree", "hd", "best"]
MERGES: dict[str, Merge] = {"drift": Drift(), "equal": Equal(), "age": ByAge(), "pushsum": PushSum()}


def _ahead(name: str) -> Callable[[], Ahead]:
    return OwnSteps if name == "own" else partial(SharedSteps, reach=1.0 if name == "shared" else 0.0)


def _reduction(codec: Codec | None) -> Reduction:
    return Coded(codec) if codec else Plain()


@recipe
def none(replica: Replica) -> Talk:  # noqa: ARG001 - it asks for nothing
    """Nobody says anything: every node learns from its own shard alone.

    Rule: nothing.
    Paper: –, the baseline that every other one must beat.
    """
    return Silence()


@recipe
def allreduce(
    replica: Replica,
    *,
    every: int = 1,
    via: Via = "auto",
    overlap: bool = False,
    quantity: Literal["parameters", "gradient"] = "parameters",
    merge: Literal["mean", "work"] = "mean",
    patience: float = 2.0,
    ahead: Literal["own", "shared", "nothing"] = "own",
    codec: Codec | None = None,
) -> Talk:
    """Every so many steps all nodes take the mean of all.

    Rule: x ← mean(x), waited for; with `overlap` trained through: x ← mean + (own or shared steps since, or nothing).
    Paper: odticn (Harvard CS 243, 2023) for `every`; local SGD (Stich, 2019).
    """
    return Rounds(
        replica,
        when=Every(every),
        quantity=Quantity(quantity),
        via=via,
        weight=ByWork() if merge == "work" else Mean(),
        overlap=overlap,
        patience=patience,
        ahead=_ahead(ahead),
        reduction=_reduction(codec),
    )


@recipe
def diloco(
    replica: Replica,
    *,
    every: int = 16,
    rate: float = 0.7,
    momentum: float = 0.6,
    via: Via = "auto",
    overlap: bool = False,
    merge: Literal["mean", "work"] = "mean",
    patience: float = 2.0,
    ahead: Literal["own", "shared", "nothing"] = "own",
    fragments: int = 1,
    codec: Codec | None = None,
) -> Talk:
    """Every so many steps an outer optimiser with Nesterov momentum takes a step along what all have changed.

    Rule: Δ = θ_old − mean(θ); b ← μb + Δ; θ ← θ_old − η(Δ + μb), with η `rate` and μ `momentum`.
    Paper: Douillard et al., DiLoCo, 2023; overlapped after Streaming DiLoCo, 2025.
    """
    return Rounds(
        replica,
        when=Every(every),
        quantity=Quantity.PARAMETERS,
        via=via,
        weight=ByWork() if merge == "work" else Mean(),
        overlap=overlap,
        patience=patience,
        ahead=_ahead(ahead),
        outer=partial(Nesterov, rate=rate, momentum=momentum),
        reduction=_reduction(codec),
        fragments=fragments,
    )


@recipe
def gossip(
    replica: Replica,
    *,
    every: int = 1,
    fanout: int = 0,
    aware: bool = False,
    merge: Literal["drift", "equal", "age", "pushsum"] = "drift",
    patience_s: float = 30.0,
) -> Talk:
    """Every so many steps a node pushes its model to a few peers and merges what others pushed to it.

    Rule: x ← x + Σ(arrived − x when it was sent)/(1+n) for `drift`; `equal`, by `age` and `pushsum` as published.
    Paper: odticn (2023) for `equal` and `aware`; push-sum after Assran et al., 2019.
    """
    return Pushes(
        replica,
        when=Every(every),
        whom=Aware() if aware else Uniform(),
        fanout=fanout,
        merge=MERGES[merge],
        patience_s=patience_s,
    )


@recipe
def ssp(replica: Replica, *, bound: int = 4, every: int = 1) -> Talk:
    """Everybody tells everybody its changes as they come; nobody runs more than `bound` steps ahead of the slowest.

    Rule: x = x₀ + Σ(all changes that have arrived)/N.
    Paper: Ho et al., stale synchronous parallel, 2013.
    """
    return Deltas(replica, when=Every(every), bound=bound)

"""The named strategies: each composes parts and does nothing else.

A recipe is a function whose keywords are what a user may set, and whose docstring is what `atoll strategies` shows: one
line, the rule, and where it comes from.  To add a strategy, add a function here.
"""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Literal

import numpy as np

from atoll.codecs import Codec
from atoll.codecs.sparse import ChunkTopK
from atoll.codecs.transform import Cosine
from atoll.collectives.flexible import Flexible
from atoll.collectives.lowrank import LowRankSum
from atoll.collectives.reduce import Coded, Plain, Reduction
from atoll.collectives.robust import Robust
from atoll.strategies.deltas import Deltas
from atoll.strategies.injection import Injection, Together
from atoll.strategies.parts.ahead import Ahead, Blend, Consensus, FirstSteps, OwnSteps, SharedSteps
from atoll.strategies.parts.correction import VarianceReduced
from atoll.strategies.parts.merge import ByAge, ByWork, Drift, Equal, Mean, Merge, PushSum
from atoll.strategies.parts.outer import HeavyBall, Nesterov
from atoll.strategies.parts.when import Called, Every, Paced
from atoll.strategies.parts.whom import Aware, Exponential, Pairs, Uniform
from atoll.strategies.pushes import Pushes
from atoll.strategies.replica import Quantity, Replica
from atoll.strategies.rounds import Rounds
from atoll.strategies.rules import GradientChange, ModelDrift
from atoll.strategies.spec import Count, Momentum, Range, Share, recipe
from atoll.strategies.talk import Silence, Talk
from atoll.vectors import Vector

__all__ = [
    "admm",
    "allreduce",
    "daso",
    "decent",
    "demo",
    "diloco",
    "fda",
    "flexible",
    "gossip",
    "noloco",
    "none",
    "powersgd",
    "selsync",
    "sparseloco",
    "ssp",
    "vrl",
]

Via = Literal["auto", "star", "gather", "direct", "ring", "tree", "hd", "best"]
Handed = Literal["auto", "model", "optimizer"]
"""What a node that is new is handed; `auto`: the optimiser's state too where gradients are averaged."""
MERGES: dict[str, Merge] = {"drift": Drift(), "equal": Equal(), "age": ByAge(), "pushsum": PushSum()}


def _ahead(name: str) -> Callable[[], Ahead]:
    return OwnSteps if name == "own" else partial(SharedSteps, reach=1.0 if name == "shared" else 0.0)


def _reduction(codec: Codec | None, robust: Literal["no", "median", "trimmed", "clipped"] = "no") -> Reduction:
    if robust != "no":
        return Robust(robust, codec)
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
    every: Count = 1,
    via: Via = "auto",
    overlap: bool = False,
    quantity: Literal["parameters", "gradient"] = "parameters",
    merge: Literal["mean", "work"] = "mean",
    patience: float = 2.0,
    ahead: Literal["own", "shared", "nothing"] = "own",
    codec: Codec | None = None,
    paced: bool = False,
    robust: Literal["no", "median", "trimmed", "clipped"] = "no",
    steady: bool = False,
    handover: Handed = "auto",
) -> Talk:
    """Every so many steps all nodes take the mean of all.

    Rule: x ← mean(x), waited for; with `overlap` trained through: x ← mean + (own or shared steps since, or nothing).
    Paper: odticn (Harvard CS 243, 2023) for `every`; local SGD (Stich, 2019).
    """
    return Rounds(
        replica,
        when=Paced(every) if paced else Every(every),
        quantity=Quantity(quantity),
        via=via,
        weight=ByWork() if merge == "work" else Mean(),
        overlap=overlap,
        patience=patience,
        ahead=_ahead(ahead),
        reduction=_reduction(codec, robust),
        steady=steady,
        hand_optimizer=None if handover == "auto" else handover == "optimizer",
    )


@recipe
def diloco(
    replica: Replica,
    *,
    every: Count = 16,
    rate: float = 0.7,
    momentum: Momentum = 0.6,
    via: Via = "auto",
    overlap: bool = False,
    merge: Literal["mean", "work"] = "mean",
    patience: float = 2.0,
    ahead: Literal["own", "shared", "nothing"] = "own",
    fragments: Count = 1,
    codec: Codec | None = None,
    paced: bool = False,
    robust: Literal["no", "median", "trimmed", "clipped"] = "no",
    steady: bool = False,
    handover: Handed = "auto",
) -> Talk:
    """Every so many steps an outer optimiser with Nesterov momentum takes a step along what all have changed.

    Rule: Δ = θ_old − mean(θ); b ← μb + Δ; θ ← θ_old − η(Δ + μb), with η `rate` and μ `momentum`.
    Paper: Douillard et al., DiLoCo, 2023; overlapped after Streaming DiLoCo, 2025.
    """
    return Rounds(
        replica,
        when=Paced(every) if paced else Every(every),
        via=via,
        weight=ByWork() if merge == "work" else Mean(),
        overlap=overlap,
        patience=patience,
        ahead=_ahead(ahead),
        outer=partial(Nesterov, rate=rate, momentum=momentum),
        reduction=_reduction(codec, robust),
        fragments=fragments,
        steady=steady,
        hand_optimizer=None if handover == "auto" else handover == "optimizer",
    )


@recipe
def vrl(
    replica: Replica,
    *,
    every: Count = 2,
    rate: float = 1.0,
    momentum: Momentum = 0.0,
    via: Via = "auto",
    overlap: bool = False,
    warmup: Annotated[int, Range(0)] = 0,
    patience: float = 2.0,
    codec: Codec | None = None,
    handover: Handed = "auto",
) -> Talk:
    """All nodes average when the slowest has done so many steps; meanwhile each corrects its steps for its own drift.

    Rule: x ← step(x) + c; after a round c ← c + (mean − x)/steps and x ← x_old + η(mean − x_old), with η `rate`.
    Paper: Liang et al., Variance Reduced Local SGD, 2019.
    """
    return Rounds(
        replica,
        when=Paced(every),
        via=via,
        overlap=overlap,
        warmup=warmup,
        patience=patience,
        ahead=FirstSteps,
        outer=partial(Nesterov, rate=rate, momentum=momentum),
        reduction=_reduction(codec),
        correction=VarianceReduced,
        hand_optimizer=None if handover == "auto" else handover == "optimizer",
    )


@recipe
def gossip(
    replica: Replica,
    *,
    every: Count = 1,
    fanout: int = 0,
    aware: bool = False,
    merge: Literal["drift", "equal", "age", "pushsum"] = "drift",
    patience_s: Annotated[float, Range(0.1)] = 30.0,
    codec: Codec | None = None,
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
        codec=codec,
    )


@recipe
def ssp(
    replica: Replica,
    *,
    bound: Annotated[int, Range(0)] = 4,
    every: Count = 1,
    rate: float = 1.0,
    codec: Codec | None = None,
) -> Talk:
    """Everybody tells everybody its changes as they come; nobody runs more than `bound` steps ahead of the slowest.

    Rule: x = x₀ + η Σ(all changes that have arrived)/N, with η `rate`; with `bound` 0 nobody waits.
    Paper: Ho et al., stale synchronous parallel, 2013.
    """
    return Deltas(replica, when=Every(every), bound=bound, rate=rate, codec=codec)


@recipe
def decent(replica: Replica, *, patience_s: Annotated[float, Range(0.1)] = 30.0) -> Talk:
    """Every step a node pushes its model to one peer, 1, 2, 4, … places on in turn, while it computes the next.

    Rule: x ← x + (arrived − x when it was sent)/2, which is Σ w·x(t) and the node's own step since.
    Paper: Wang et al., decent-dp, 2024; one-peer exponential graphs after Ying et al., 2021.
    """
    whom = Exponential(replica.world.name, replica.members)
    return Pushes(replica, when=Every(1), whom=whom, fanout=1, merge=Drift(), patience_s=patience_s)


@recipe
def selsync(
    replica: Replica,
    *,
    delta: float = 0.3,
    window: Count = 25,
    via: Via = "auto",
    overlap: bool = False,
    patience: float = 2.0,
    ahead: Literal["own", "shared", "nothing"] = "own",
    codec: Codec | None = None,
    lenders: Share = 0.0,
    lend: Share = 0.5,
) -> Talk:
    """All nodes average when any node's gradients change; else they train on their own.

    Rule: Δ = |E‖g‖² − E‖g before‖²| / E‖g before‖²; when Δ ≥ δ the node calls all, and x ← mean(x).  A share `lenders`
    of the nodes lends a share `lend` of its batch to all others at every step.
    Paper: Tyagi & Swany, Accelerating Distributed ML Training via Selective Synchronization, 2023.
    """
    rounds = Rounds(
        replica,
        when=Called(partial(GradientChange, delta, window)),
        via=via,
        overlap=overlap,
        patience=patience,
        ahead=_ahead(ahead),
        reduction=_reduction(codec),
    )
    return Together(rounds, Injection(replica, nodes=lenders, batch=lend)) if lenders else rounds


@recipe
def fda(
    replica: Replica,
    *,
    estimate: Literal["linear", "sketch", "naive"] = "linear",
    theta: float = 0.0,
    share: Annotated[float, Range(0.01, 1)] = 0.2,
    via: Via = "auto",
    overlap: bool = False,
    patience: float = 2.0,
    ahead: Literal["own", "shared", "nothing"] = "own",
    codec: Codec | None = None,
) -> Talk:
    """All nodes average when their models have drifted apart; else they train on their own.

    Rule: u = x − x agreed; when mean‖u‖² − ‖mean u‖² > Θ (estimated), x ← mean(x).  Θ calibrates itself unless given.
    Paper: Theologitis et al., Communication-Efficient Distributed DL via Federated Dynamic Averaging, 2024.
    """
    return Rounds(
        replica,
        when=Called(partial(ModelDrift, estimate, theta=theta, share=share)),
        via=via,
        overlap=overlap,
        patience=patience,
        ahead=_ahead(ahead),
        reduction=_reduction(codec),
    )


@recipe
def sparseloco(
    replica: Replica,
    *,
    every: Count = 15,
    keep: Count = 64,
    decay: Share = 0.95,
    rate: float = 1.0,
    momentum: Momentum = 0.0,
    overlap: bool = False,
    patience: float = 2.0,
    ahead: Literal["own", "shared", "nothing"] = "own",
) -> Talk:
    """Seldom, and then only the largest few changes of each 4096, in 2 bits each, with error feedback.

    Rule: e ← 0.95e + Δ; send the top 64 of 4096; e ← e − sent; a position's mean is over who sent it, norms clipped.
    Paper: Sarfi et al., Communication Efficient LLM Pre-training with SparseLoCo, 2025.
    """
    return Rounds(
        replica,
        when=Every(every),
        via="gather",
        overlap=overlap,
        patience=patience,
        ahead=_ahead(ahead),
        reduction=Coded(ChunkTopK(keep, bits=2), by_senders=True),
        decay=decay,
        outer=partial(Nesterov, rate=rate, momentum=momentum),
    )


@recipe
def daso(replica: Replica, *, every: Count = 4, via: Via = "auto") -> Talk:
    """Every so many steps an average is begun, and blended in when it is there, however late.

    Rule: x ← (2S·x + Σ x received)/(2S + P), S steps after the snapshot.
    Paper: Coquelin et al., DASO: distributed asynchronous and selective optimization, 2022.
    """
    return Rounds(
        replica,
        when=Every(every),
        via=via,
        overlap=True,
        ahead=partial(Blend, len(replica.members)),
    )


@recipe
def flexible(
    replica: Replica,
    *,
    every: Count = 1,
    lead: Literal["star", "var"] = "star",
    ratio: Share = 0.0,
    way: Literal["best", "own", "star", "gather", "direct", "ring", "tree", "hd"] = "best",
    quantity: Literal["gradient", "parameters"] = "gradient",
    overlap: bool = False,
    patience: float = 2.0,
) -> Talk:
    """Compressed gradients whose size, and the collective that carries them, follow the links of now.

    Rule: AR-Topk (one leader's largest places, error feedback), or all-gather; ratio at the knee of time and gain.
    Paper: Tyagi & Swany, Flexible Communication for Optimal Distributed Learning over Unpredictable Networks, 2023.
    """
    return Rounds(
        replica,
        when=Every(every),
        quantity=Quantity(quantity),
        overlap=overlap,
        patience=patience,
        reduction=Flexible(lead=lead, ratio=ratio, via="" if way == "best" else way),
    )


@recipe
def powersgd(
    replica: Replica,
    *,
    every: Count = 1,
    rank: Count = 2,
    via: Via = "auto",
    quantity: Literal["gradient", "parameters"] = "gradient",
    overlap: bool = False,
    patience: float = 2.0,
) -> Talk:
    """Two thin factors of everybody's update are added up, with error feedback.

    Rule: P = Σ MQ, orthonormal; Q = Σ MᵀP; the sum is PQᵀ; what it misses of the own M goes with the next.
    Paper: Vogels et al., PowerSGD, 2019.
    """
    return Rounds(
        replica,
        when=Every(every),
        quantity=Quantity(quantity),
        via=via,
        overlap=overlap,
        patience=patience,
        reduction=LowRankSum(rank),
    )


@recipe
def noloco(
    replica: Replica,
    *,
    every: Count = 50,
    rate: float = 0.7,
    momentum: Momentum = 0.5,
    overlap: bool = False,
    patience: float = 2.0,
) -> Talk:
    """Every so many steps each node meets one other, drawn at random; nobody waits for all.

    Rounds are paced: where machines are uneven, everybody takes the steps that it can until the slowest has taken its
    own, since otherwise each waits for a partner who waits for a partner.

    Rule: m ← μm + η·mean(θ−φ) + η(mean φ − φ) over the pair; φ ← φ + m; θ ← φ.
    Paper: Kolehmainen et al., NoLoCo, 2025.
    """
    return Rounds(
        replica,
        when=Paced(every),
        via="gather",
        overlap=overlap,
        patience=patience,
        outer=partial(HeavyBall, rate=rate, momentum=momentum),
        who=Pairs(replica.world.name),
    )


@recipe
def admm(
    replica: Replica,
    *,
    every: Count = 4,
    pull: float = 0.1,
    via: Via = "auto",
    overlap: bool = False,
    patience: float = 2.0,
) -> Talk:
    """Nodes agree on a model and are pulled towards it, at a price that grows while they differ.

    Rule: z = mean(x + u); u ← u + x − z; every gradient gets ρ(x − z + u) on top, ρ `pull`.
    Paper: Boyd et al., Distributed Optimization via the Alternating Direction Method of Multipliers, 2011.
    """
    return Rounds(
        replica,
        when=Every(every),
        via=via,
        overlap=overlap,
        patience=patience,
        ahead=partial(Consensus, pull=pull),
    )


@recipe
def demo(
    replica: Replica, *, keep: Count = 32, decay: Share = 0.999, overlap: bool = False, patience: float = 2.0
) -> Talk:
    """Only the strongest cosines of the gradient travel, and of their mean only the sign is used.

    Rule: δ ← 0.999δ + g; send the top 32 cosines of each 64 × 64; δ ← δ − sent; g ← sign(mean)·rms(mean).
    Paper: Peng et al., DeMo: Decoupled Momentum Optimization, 2024.
    """
    return Rounds(
        replica,
        when=Every(1),
        quantity=Quantity.GRADIENT,
        via="gather",
        overlap=overlap,
        patience=patience,
        reduction=Coded(Cosine(keep)),
        decay=decay,
        post=_signs,
    )


def _signs(mean: Vector) -> Vector:
    """Signs as large as the mean is on average, so that the task's learning rate keeps its meaning."""
    signs: Vector = np.sign(mean) * np.sqrt(np.mean(np.square(mean)))
    return signs

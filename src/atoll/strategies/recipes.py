"""The named strategies: each composes parts and does nothing else.

A recipe is a function whose keywords are what a user may set, and whose docstring is what `atoll strategies` shows: one
line, the rule, and where it comes from.  To add a strategy, add a function here.
"""

from typing import Annotated, Literal

from atoll.codecs.sparse import ChunkTopK
from atoll.codecs.transform import Cosine
from atoll.collectives.flexible import Flexible
from atoll.collectives.lowrank import LowRankSum
from atoll.collectives.reduce import Coded
from atoll.settings import Count, NumberRange
from atoll.strategies.deltas import Deltas
from atoll.strategies.injection import Injection, Together
from atoll.strategies.parts.ahead import Blend, Consensus, FirstSteps
from atoll.strategies.parts.correction import VarianceReduced
from atoll.strategies.parts.merge import ByAge, Drift, Equal, Merge, PushSum
from atoll.strategies.parts.outer import HeavyBall, Nesterov
from atoll.strategies.parts.part import part
from atoll.strategies.parts.when import Called, Every, Paced
from atoll.strategies.parts.whom import Aware, Exponential, Pairs, Uniform
from atoll.strategies.pushes import Pushes
from atoll.strategies.replica import Quantity
from atoll.strategies.rounds import Meeting, Rounds
from atoll.strategies.rules import GradientChange, ModelDrift
from atoll.strategies.shared import Carried, Encoded, Late, Means, Momentum, Pacing, Seconds, Share
from atoll.strategies.spec import recipe
from atoll.strategies.talk import Silence, Strategy
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

MERGES: dict[str, Merge] = {"drift": Drift(), "equal": Equal(), "age": ByAge(), "pushsum": PushSum()}


@recipe
def none() -> Strategy:
    """Nobody says anything: every node learns from its own shard alone.

    Rule: nothing.
    Paper: –, the baseline that every other one must beat.
    """
    return Silence()


@recipe
def allreduce(
    meeting: Meeting,
    carried: Carried,
    means: Means,
    late: Late,
    pace: Pacing,
    *,
    every: Count = 1,
    quantity: Literal["parameters", "gradient"] = "parameters",
) -> Strategy:
    """Every so many steps all nodes take the mean of all.

    Rule: x ← mean(x), waited for; with `overlap` trained through: x ← mean + (own or shared steps since, or nothing).
    Paper: odticn (Harvard CS 243, 2023) for `every`; local SGD (Stich, 2019).
    """
    return Rounds(
        when=pace.every(every),
        meeting=meeting,
        via=carried.via,
        quantity=Quantity(quantity),
        weight=means.weight,
        reduction=means.reduction,
        ahead=late.part,
    )


@recipe
def diloco(
    meeting: Meeting,
    carried: Carried,
    means: Means,
    late: Late,
    pace: Pacing,
    *,
    every: Count = 16,
    rate: float = 0.7,
    momentum: Momentum = 0.6,
    fragments: Count = 1,
) -> Strategy:
    """Every so many steps an outer optimiser with Nesterov momentum takes a step along what all have changed.

    Rule: Δ = θ_old − mean(θ); b ← μb + Δ; θ ← θ_old − η(Δ + μb), with η `rate` and μ `momentum`.
    Paper: Douillard et al., DiLoCo, 2023; overlapped after Streaming DiLoCo, 2025.
    """
    return Rounds(
        when=pace.every(every),
        meeting=meeting,
        via=carried.via,
        weight=means.weight,
        reduction=means.reduction,
        ahead=late.part,
        outer=part(Nesterov, rate=rate, momentum=momentum),
        fragments=fragments,
    )


@recipe
def vrl(
    meeting: Meeting,
    carried: Carried,
    means: Means,
    *,
    every: Count = 2,
    rate: float = 1.0,
    momentum: Momentum = 0.0,
    warmup: Annotated[int, NumberRange(0)] = 0,
) -> Strategy:
    """All nodes average when the slowest has done so many steps; meanwhile each corrects its steps for its own drift.

    Rule: x ← step(x) + c; after a round c ← c + (mean − x)/steps and x ← x_old + η(mean − x_old), with η `rate`.
    Paper: Liang et al., Variance Reduced Local SGD, 2019.
    """
    return Rounds(
        when=part(Paced, every),
        meeting=meeting,
        via=carried.via,
        weight=means.weight,
        reduction=means.reduction,
        warmup=warmup,
        ahead=part(FirstSteps),
        outer=part(Nesterov, rate=rate, momentum=momentum),
        correction=part(VarianceReduced),
    )


@recipe
def gossip(
    *,
    every: Count = 1,
    fanout: int = 0,
    aware: bool = False,
    merge: Literal["drift", "equal", "age", "pushsum"] = "drift",
    patience_s: Seconds = 30.0,
    codec: Encoded = None,
) -> Strategy:
    """Every so many steps a node pushes its model to a few peers and merges what others pushed to it.

    Rule: x ← x + Σ(arrived − x when it was sent)/(1+n) for `drift`; `equal`, by `age` and `pushsum` as published.
    Paper: odticn (2023) for `equal` and `aware`; push-sum after Assran et al., 2019.
    """
    return Pushes(
        when=part(Every, every),
        whom=Aware() if aware else Uniform(),
        fanout=fanout,
        merge=MERGES[merge],
        patience_s=patience_s,
        codec=codec,
    )


@recipe
def ssp(
    *, bound: Annotated[int, NumberRange(0)] = 4, every: Count = 1, rate: float = 1.0, codec: Encoded = None
) -> Strategy:
    """Everybody tells everybody its changes as they come; nobody runs more than `bound` steps ahead of the slowest.

    Rule: x = x₀ + η Σ(all changes that have arrived)/N, with η `rate`; with `bound` 0 nobody waits.
    Paper: Ho et al., stale synchronous parallel, 2013.
    """
    return Deltas(when=part(Every, every), bound=bound, rate=rate, codec=codec)


@recipe
def decent(*, patience_s: Seconds = 30.0) -> Strategy:
    """Every step a node pushes its model to one peer, 1, 2, 4, … places on in turn, while it computes the next.

    Rule: x ← x + (arrived − x when it was sent)/2, which is Σ w·x(t) and the node's own step since.
    Paper: Wang et al., decent-dp, 2024; one-peer exponential graphs after Ying et al., 2021.
    """
    return Pushes(when=part(Every, 1), whom=Exponential(), fanout=1, merge=Drift(), patience_s=patience_s)


@recipe
def selsync(
    meeting: Meeting,
    carried: Carried,
    means: Means,
    late: Late,
    *,
    delta: float = 0.3,
    window: Count = 25,
    lenders: Share = 0.0,
    lend: Share = 0.5,
) -> Strategy:
    """All nodes average when any node's gradients change; else they train on their own.

    Rule: Δ = |E‖g‖² − E‖g before‖²| / E‖g before‖²; when Δ ≥ δ the node calls all, and x ← mean(x).  A share `lenders`
    of the nodes lends a share `lend` of its batch to all others at every step.
    Paper: Tyagi & Swany, Accelerating Distributed ML Training via Selective Synchronization, 2023.
    """
    rounds = Rounds(
        when=part(Called, part(GradientChange, delta, window)),
        meeting=meeting,
        via=carried.via,
        weight=means.weight,
        reduction=means.reduction,
        ahead=late.part,
    )
    return Together((rounds, Injection(nodes=lenders, batch=lend))) if lenders else rounds


@recipe
def fda(
    meeting: Meeting,
    carried: Carried,
    means: Means,
    late: Late,
    *,
    estimate: Literal["linear", "sketch", "naive"] = "linear",
    theta: float = 0.0,
    share: Annotated[float, NumberRange(0.01, 1)] = 0.2,
) -> Strategy:
    """All nodes average when their models have drifted apart; else they train on their own.

    Rule: u = x − x agreed; when mean‖u‖² − ‖mean u‖² > Θ (estimated), x ← mean(x).  Θ calibrates itself unless given.
    Paper: Theologitis et al., Communication-Efficient Distributed DL via Federated Dynamic Averaging, 2024.
    """
    return Rounds(
        when=part(Called, part(ModelDrift, estimate, theta=theta, share=share)),
        meeting=meeting,
        via=carried.via,
        weight=means.weight,
        reduction=means.reduction,
        ahead=late.part,
    )


@recipe
def sparseloco(
    meeting: Meeting,
    late: Late,
    *,
    every: Count = 15,
    keep: Count = 64,
    decay: Share = 0.95,
    rate: float = 1.0,
    momentum: Momentum = 0.0,
) -> Strategy:
    """Seldom, and then only the largest few changes of each 4096, in 2 bits each, with error feedback.

    Rule: e ← 0.95e + Δ; send the top 64 of 4096; e ← e − sent; a position's mean is over who sent it, norms clipped.
    Paper: Sarfi et al., Communication Efficient LLM Pre-training with SparseLoCo, 2025.
    """
    return Rounds(
        when=part(Every, every),
        meeting=meeting,
        via="gather",
        reduction=part(Coded, ChunkTopK(keep, bits=2), by_senders=True),
        decay=decay,
        ahead=late.part,
        outer=part(Nesterov, rate=rate, momentum=momentum),
    )


@recipe
def daso(carried: Carried, *, every: Count = 4) -> Strategy:
    """Every so many steps an average is begun, and blended in when it is there, however late.

    Rule: x ← (2S·x + Σ x received)/(2S + P), S steps after the snapshot.
    Paper: Coquelin et al., DASO: distributed asynchronous and selective optimization, 2022.
    """
    return Rounds(when=part(Every, every), meeting=Meeting(overlap=True), via=carried.via, ahead=part(Blend))


@recipe
def flexible(
    meeting: Meeting,
    *,
    every: Count = 1,
    lead: Literal["star", "var"] = "star",
    ratio: Share = 0.0,
    way: Literal["best", "own", "star", "gather", "direct", "ring", "tree", "hd"] = "best",
    quantity: Literal["gradient", "parameters"] = "gradient",
) -> Strategy:
    """Compressed gradients whose size, and the collective that carries them, follow the links of now.

    Rule: AR-Topk (one leader's largest places, error feedback), or all-gather; ratio at the knee of time and gain.
    Paper: Tyagi & Swany, Flexible Communication for Optimal Distributed Learning over Unpredictable Networks, 2023.
    """
    return Rounds(
        when=part(Every, every),
        meeting=meeting,
        quantity=Quantity(quantity),
        reduction=part(Flexible, lead=lead, ratio=ratio, via="" if way == "best" else way),
    )


@recipe
def powersgd(
    meeting: Meeting,
    carried: Carried,
    *,
    every: Count = 1,
    rank: Count = 2,
    quantity: Literal["gradient", "parameters"] = "gradient",
) -> Strategy:
    """Two thin factors of everybody's update are added up, with error feedback.

    Rule: P = Σ MQ, orthonormal; Q = Σ MᵀP; the sum is PQᵀ; what it misses of the own M goes with the next.
    Paper: Vogels et al., PowerSGD, 2019.
    """
    return Rounds(
        when=part(Every, every),
        meeting=meeting,
        via=carried.via,
        quantity=Quantity(quantity),
        reduction=part(LowRankSum, rank),
    )


@recipe
def noloco(meeting: Meeting, *, every: Count = 50, rate: float = 0.7, momentum: Momentum = 0.5) -> Strategy:
    """Every so many steps each node meets one other, drawn at random; nobody waits for all.

    Rounds are paced: where machines are uneven, everybody takes the steps that it can until the slowest has taken its
    own, since otherwise each waits for a partner who waits for a partner.

    Rule: m ← μm + η·mean(θ−φ) + η(mean φ − φ) over the pair; φ ← φ + m; θ ← φ.
    Paper: Kolehmainen et al., NoLoCo, 2025.
    """
    return Rounds(
        when=part(Paced, every),
        meeting=meeting,
        via="gather",
        outer=part(HeavyBall, rate=rate, momentum=momentum),
        who=Pairs(),
    )


@recipe
def admm(meeting: Meeting, carried: Carried, *, every: Count = 4, pull: float = 0.1) -> Strategy:
    """Nodes agree on a model and are pulled towards it, at a price that grows while they differ.

    Rule: z = mean(x + u); u ← u + x − z; every gradient gets ρ(x − z + u) on top, ρ `pull`.
    Paper: Boyd et al., Distributed Optimization via the Alternating Direction Method of Multipliers, 2011.
    """
    return Rounds(when=part(Every, every), meeting=meeting, via=carried.via, ahead=part(Consensus, pull=pull))


@recipe
def demo(meeting: Meeting, *, keep: Count = 32, decay: Share = 0.999) -> Strategy:
    """Only the strongest cosines of the gradient travel, and of their mean only the sign is used.

    Rule: δ ← 0.999δ + g; send the top 32 cosines of each 64 × 64; δ ← δ − sent; g ← sign(mean)·rms(mean).
    Paper: Peng et al., DeMo: Decoupled Momentum Optimization, 2024.
    """
    return Rounds(
        when=part(Every, 1),
        meeting=meeting,
        quantity=Quantity.GRADIENT,
        via="gather",
        reduction=part(Coded, Cosine(keep)),
        decay=decay,
        post=_signs,
    )


def _signs(mean: Vector) -> Vector:
    """Signs as large as the mean is on average, so that the task's learning rate keeps its meaning."""
    return mean.sign() * mean.square().mean().sqrt()

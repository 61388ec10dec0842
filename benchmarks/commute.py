"""Fits the random model of the preset `commute` to real LTE traces, prints it as TOML and draws both side by side.

    python -m benchmarks.commute --traces FOLDER --plot docs/img/commute-fit.png

FOLDER holds mahimahi traces (one line = the millisecond at which a packet of 1,500 bytes could pass), named *.up.gz and
*.down.gz.  What is fitted, and how, is told in docs/networks.md.
"""

import argparse
import gzip
import itertools
import math
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import NDArray

from atoll.network import Link, load_network
from atoll.network.weather import outages, rates

Array = NDArray[np.float64]
GAP_S = 0.5
"""No packet for this long is a gap."""
SERVICE_S = 0.2
"""Less than this between two gaps does not part them."""
LONG_S = 60.0
LEAST_S, MOST_S = 0.5, 5.0
MODEL_S = 20_000
LAGS = [1, 2, 3, 5, 8, 12, 20, 30]


@dataclass
class Observed:
    """What one direction of one trace, real or made, showed."""

    name: str
    seconds: float
    rates_mbps: Array  # one a second, nan in seconds touched by a gap
    gaps_s: Array
    apart_s: Array  # service between gaps


def _joined(starts: Array, ends: Array) -> tuple[Array, Array]:
    """A lone packet between two gaps is no service: they are one gap."""
    served = starts[1:] - ends[:-1] >= SERVICE_S
    return starts[np.r_[True, served]], ends[np.r_[served, True]]


def observe(path: Path) -> Observed:
    with gzip.open(path, "rt") as lines:
        times = np.array([int(line) for line in lines]) / 1000
    pauses = np.diff(times)
    where = np.flatnonzero(pauses >= GAP_S)
    starts, ends = _joined(times[where], times[where + 1])
    seconds = int(times[-1])
    counts = np.bincount(times.astype(int), minlength=seconds)[:seconds] * 1500 * 8 / 1e6
    for start, end in zip(starts, ends, strict=True):
        counts[int(start) : int(end) + 1] = np.nan
    return Observed(path.stem, float(times[-1]), counts, ends - starts, starts[1:] - ends[:-1])


def observe_model(link: Link, forward: bool) -> Observed:  # noqa: FBT001
    spans = list(itertools.takewhile(lambda span: span[0] < MODEL_S, outages(link, seed=1)))
    way, name = (link.there, f"{link.a}>{link.b}") if forward else (link.back, f"{link.b}>{link.a}")
    values = np.array(
        [
            rate / 1e6
            for time, rate in itertools.takewhile(lambda change: change[0] < MODEL_S, rates(way, name, 1, None))
        ]
    )
    for start, end in spans:
        values[int(start) : int(end) + 1] = np.nan
    starts, ends = np.array(spans).T
    return Observed("model", MODEL_S, values, ends - starts, starts[1:] - ends[:-1])


def normal_scores(values: Array) -> Array:
    """Each value's place in the distribution of all, as a standard normal."""
    order = np.argsort(np.argsort(values[~np.isnan(values)]))
    scores = np.full(len(values), np.nan)
    scores[~np.isnan(values)] = [NormalDist().inv_cdf((place + 0.5) / len(order)) for place in order]
    return scores


def autocorrelation(pieces: list[Array], lag: int) -> float:
    pairs = np.concatenate([np.stack([piece[:-lag], piece[lag:]]) for piece in pieces], axis=1)
    return float(np.corrcoef(pairs[:, ~np.isnan(pairs).any(0)])[0, 1])


def pieces_of(observed: list[Observed]) -> list[Array]:
    """Normal scores against all of the direction, cut back into traces."""
    scores = normal_scores(np.concatenate([each.rates_mbps for each in observed]))
    return np.split(scores, np.cumsum([len(each.rates_mbps) for each in observed])[:-1])


def two_exponentials(values: Array) -> tuple[float, float, float]:
    """A mixture of two exponentials by expectation maximisation: the short one's share and mean, the long one's."""
    share, short, long = 0.5, float(np.median(values)), float(values.mean() * 2)
    for _ in range(2000):
        a = share / short * np.exp(-values / short)
        b = (1 - share) / long * np.exp(-values / long)
        belongs = a / (a + b)
        share = float(belongs.mean())
        short = float((belongs * values).sum() / belongs.sum())
        long = float(((1 - belongs) * values).sum() / (1 - belongs).sum())
    return share, short, long


def two_time_constants(observed: list[Observed]) -> tuple[float, float, float]:
    """Two processes whose correlations add up to the traces': the slow one's share, its time, and the fast one's."""
    pieces = pieces_of(observed)
    seen = np.array([autocorrelation(pieces, lag) for lag in LAGS])
    lags = np.array(LAGS)
    best = min(
        itertools.product(
            np.arange(0.05, 1, 0.05), [20, 40, 60, 80, 100, 150, 200, 300, 500], [1, 1.5, 2, 3, 4, 6, 8, 12]
        ),
        key=lambda p: float(((p[0] * np.exp(-lags / p[1]) + (1 - p[0]) * np.exp(-lags / p[2]) - seen) ** 2).sum()),
    )
    return float(best[0]), float(best[1]), float(best[2])


def fit(up: list[Observed], down: list[Observed]) -> str:
    lines = []
    for observed in (up, down):
        values = np.concatenate([each.rates_mbps for each in observed])
        shares = np.linspace(0, 1, 21)
        shares[-1] = 0.995  # one lucky second is no part of the distribution
        listed = ", ".join(f"{value:.2f}" for value in np.nanquantile(values, shares))
        share, slow_s, fast_s = two_time_constants(observed)
        lines.append(
            f"    {{ slow_share = {share:.2f}, slow_s = {slow_s:.0f}, fast_s = {fast_s:g}, "
            f"quantiles_mbps = [{listed}] }},"
        )
    gaps = np.concatenate([each.gaps_s for each in up + down])
    seconds = sum(each.seconds for each in up + down)
    long = gaps[gaps >= LONG_S]
    excess = np.log(np.maximum(gaps[gaps < LONG_S] - LEAST_S, 0.01))
    again, again_s, every_s = two_exponentials(np.concatenate([each.apart_s for each in up + down]))
    return "\n".join(
        [
            "fading = [",
            *lines,
            "]",
            "",
            "[link.gaps]",
            f"every_s = {every_s:.0f}",
            f"again = {again:.2f}",
            f"again_s = {again_s:.1f}",
            f"median_s = {math.exp(np.median(excess)):.2f}",
            f"sigma = {excess.std():.2f}",
            f"least_s = {LEAST_S}",
            f"most_s = {MOST_S:.0f}",
            f"long_every_s = {seconds / len(long):.0f}",
            "long_least_s = 60",
            "long_most_s = 90",
        ]
    )


def cumulative(values: Array) -> tuple[Array, Array]:
    values = np.sort(values[~np.isnan(values)])
    return values, (np.arange(len(values)) + 1) / len(values)


def draw(up: list[Observed], down: list[Observed], path: Path) -> None:
    link = load_network("commute").links[0]
    model_up, model_down = observe_model(link, forward=True), observe_model(link, forward=False)
    figure, axes = plt.subplots(3, 2, figsize=(11, 11), layout="constrained")
    real, made = {"color": "#666666", "lw": 0.9}, {"color": "#d1495b", "lw": 2.0}
    for column, (name, observed, model) in enumerate((("up", up, model_up), ("down", down, model_down))):
        axis = axes[0, column]
        for number, each in enumerate(observed):
            axis.plot(*cumulative(each.rates_mbps), **real, label="traces, one by one" if number == 0 else None)
        axis.plot(
            *cumulative(np.concatenate([each.rates_mbps for each in observed])),
            color="black",
            lw=2,
            label="traces, all",
        )
        axis.plot(*cumulative(model.rates_mbps), **made, label="model")
        axis.set(title=f"rate in seconds without a gap, {name}", xlabel="Mbit/s", ylabel="share of seconds")
        axis.legend()
        axis = axes[1, column]
        axis.plot(
            LAGS, [autocorrelation(pieces_of(observed), lag) for lag in LAGS], "o-", color="black", label="traces"
        )
        axis.plot(
            LAGS, [autocorrelation([normal_scores(model.rates_mbps)], lag) for lag in LAGS], "o-", **made, label="model"
        )
        axis.set(
            title=f"rate now and later, {name}",
            xlabel="seconds later",
            ylabel="correlation of normal scores",
            ylim=(0, 1),
        )
        axis.legend()
    gaps = [each.gaps_s for each in up + down]
    apart = [each.apart_s for each in up + down]
    for axis, values, theirs, title in (
        (axes[2, 0], gaps, model_up.gaps_s, "length of gaps"),
        (axes[2, 1], apart, model_up.apart_s, "service between gaps"),
    ):
        for number, lengths in enumerate(values):
            axis.plot(*cumulative(lengths), **real, label="traces, one by one" if number == 0 else None)
        axis.plot(*cumulative(np.concatenate(values)), color="black", lw=2, label="traces, all")
        axis.plot(*cumulative(theirs), **made, label="model")
        axis.set(title=title, xlabel="seconds", ylabel="share", xscale="log")
        axis.legend()
    figure.savefig(path, dpi=110)
    for name, observed, model in (("up", up, model_up), ("down", down, model_down)):
        seconds = sum(each.seconds for each in observed)
        count = sum(len(each.gaps_s) for each in observed)
        away = sum(each.gaps_s.sum() for each in observed)
        mean = sum(np.nansum(each.rates_mbps) for each in observed) / seconds
        print(
            f"{name:5} traces: mean {mean:.2f} Mbit/s, a gap every {seconds / count:.1f} s, "
            f"away {away / seconds:.1%}; model: mean {np.nansum(model.rates_mbps) / MODEL_S:.2f} Mbit/s, "
            f"a gap every {MODEL_S / len(model.gaps_s):.1f} s, away {model.gaps_s.sum() / MODEL_S:.1%}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, required=True)
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    up = [observe(path) for path in sorted(arguments.traces.glob("*.up.gz"))]
    down = [observe(path) for path in sorted(arguments.traces.glob("*.down.gz"))]
    if not up or not down:
        parser.error(f"{arguments.traces}: expected traces named *.up.gz and *.down.gz")
    print(fit(up, down))
    if arguments.plot:
        draw(up, down, arguments.plot)


if __name__ == "__main__":
    main()

"""The changes of a link over time: pure functions of a link and a seed, the same for every world and every drawing.

Each iterator yields changes in order of time and may never end.  `outages` is for the whole link (its two directions
fail together), `rates` and `latency_at` for one direction.
"""

import heapq
import itertools
import math
import random
from collections.abc import Iterator
from statistics import NormalDist

from atoll.network.bandwidth import BandwidthTrace
from atoll.network.model import Fading, Gaps, Link, UpDown, Way
from atoll.seeds import stream

__all__ = ["changes_of_state", "latency_at", "outages", "rates"]

Span = tuple[float, float]
_NORMAL = NormalDist()


def outages(link: Link, seed: int) -> Iterator[Span]:
    """When the link is down: disjoint spans in order of time, from all causes."""
    sources: list[Iterator[Span]] = [iter(sorted((outage.start_s, outage.end_s) for outage in link.outages))]
    if link.up_down:
        sources.append(_up_down(link.up_down, link.name, seed))
    if link.gaps:
        sources.append(_short_gaps(link.gaps, link.name, seed))
        sources.append(_long_gaps(link.gaps, link.name, seed))
    sources.extend(_repeated(way.trace) for way in (link.there, link.back) if way.trace and way.trace.outages)
    yield from _merged(heapq.merge(*sources))


def changes_of_state(link: Link, seed: int) -> Iterator[tuple[float, bool]]:
    """The times at which the link goes down (False) and comes back (True)."""
    for start, end in outages(link, seed):
        yield start, False
        if end < math.inf:
            yield end, True


def rates(way: Way, name: str, seed: int, run_s: float | None) -> Iterator[tuple[float, float]]:
    """The times at which the rate of a direction called `name` changes, with the rate in bits a second from then on."""
    if way.trace:
        yield from _replayed(way.trace)
    elif way.fading:
        yield from _faded(way.fading, name, seed)
    elif way.phases:
        length = (run_s or math.inf) / len(way.phases)
        for index, phase in enumerate(way.phases):
            yield (index * length if index else 0.0), phase.rate_bps
    else:
        yield 0.0, way.rate_bps


def latency_at(way: Way, time_s: float, run_s: float | None) -> float:
    """The latency of a direction without a walk (a walk depends on the traffic, so the world computes it)."""
    if not way.phases:
        return way.latency_s
    index = int(time_s / ((run_s or math.inf) / len(way.phases)) + 1e-9)
    return way.phases[min(index, len(way.phases) - 1)].latency_s


def _up_down(what: UpDown, name: str, seed: int) -> Iterator[Span]:
    draw = stream(seed, "link", name, "up/down")
    time = 0.0
    while True:
        start = time + draw.expovariate(1 / what.up_s)
        time = start + draw.expovariate(1 / what.down_s)
        yield start, time


def _short_gaps(gaps: Gaps, name: str, seed: int) -> Iterator[Span]:
    draw = stream(seed, "link", name, "gaps")
    time = 0.0
    while True:
        apart = gaps.again_s if time and draw.random() < gaps.again else gaps.every_s
        start = time + draw.expovariate(1 / apart)
        length = gaps.least_s + draw.lognormvariate(math.log(gaps.median_s), gaps.sigma)
        time = start + min(length, gaps.most_s)
        yield start, time


def _long_gaps(gaps: Gaps, name: str, seed: int) -> Iterator[Span]:
    draw = stream(seed, "link", name, "long gaps")
    time = 0.0
    while gaps.long_every_s < math.inf:
        start = time + draw.expovariate(1 / gaps.long_every_s)
        time = start + draw.uniform(gaps.long_least_s, gaps.long_most_s)
        yield start, time


def _repeated(trace: BandwidthTrace) -> Iterator[Span]:
    for lap in itertools.count():
        for start, end in trace.outages:
            yield lap * trace.period_s + start, lap * trace.period_s + end


def _merged(spans: Iterator[Span]) -> Iterator[Span]:
    """Joins spans that touch or overlap; they come ordered by their start."""
    current: Span | None = None
    for span in spans:
        if current is None:
            current = span
        elif current[1] == math.inf:
            break  # permanent: nothing after it matters, and the rest may never end
        elif span[0] <= current[1]:
            current = current[0], max(current[1], span[1])
        else:
            yield current
            current = span
    if current:
        yield current


def _replayed(trace: BandwidthTrace) -> Iterator[tuple[float, float]]:
    if len(set(trace.rates_bps)) == 1:
        yield 0.0, trace.rates_bps[0]
        return
    last = -1.0
    for lap in itertools.count():
        for time, rate in zip(trace.times_s, trace.rates_bps, strict=True):
            if rate != last:
                yield lap * trace.period_s + time, rate
                last = rate


def _faded(fading: Fading, name: str, seed: int) -> Iterator[tuple[float, float]]:
    parts = [
        _ar1(math.exp(-fading.every_s / length_s), share, stream(seed, "way", name, "fading", kind))
        for kind, length_s, share in (
            ("slow", fading.slow_s, fading.slow_share),
            ("fast", fading.fast_s, 1 - fading.slow_share),
        )
    ]
    for tick, (slow, fast) in enumerate(zip(*parts, strict=True)):
        yield tick * fading.every_s, _quantile(fading.quantiles_bps, _NORMAL.cdf(slow + fast))


def _ar1(correlation: float, variance: float, draw: random.Random) -> Iterator[float]:
    """A stationary normal process with this correlation between neighbours."""
    spread = math.sqrt(variance)
    value = spread * draw.normalvariate()
    while True:
        yield value
        value = correlation * value + spread * math.sqrt(1 - correlation**2) * draw.normalvariate()


def _quantile(values: tuple[float, ...], share: float) -> float:
    """The value at `share` of a distribution given by evenly spaced quantiles."""
    place = share * (len(values) - 1)
    low = min(int(place), len(values) - 2)
    return values[low] + (values[low + 1] - values[low]) * (place - low)

"""Bandwidth traces: the recorded rate of a real link, read from a file and repeated when it ends.

Two formats, plain or gzipped:

* one column, as recorded by mahimahi: each line is the millisecond at which one packet of 1,500 bytes could pass.  It
  becomes a rate for each tenth of a second (an exact count of the bytes that could pass in it).
* two columns: a time in seconds, and the rate in Mbit/s from then on.  The first time is 0; the last line ends the
  trace.

A second or more with no service at all is an outage: a transport notices it, and so do peers.
"""

import gzip
import math
import zlib
from dataclasses import dataclass
from pathlib import Path

from atoll.errors import NetworkError

__all__ = ["BandwidthTrace", "read_bandwidth_trace"]

PACKET_BYTES = 1500
BIN_S = 0.1
LARGEST = 1e9
"""The largest time or rate in a trace."""
OUTAGE_S = 1.0
"""No service for this long is an outage: a live transport gives a connection up after about a second."""


@dataclass(frozen=True, slots=True)
class BandwidthTrace:
    """A rate that is constant from each of `times_s` to the next, repeated every `period_s`."""

    times_s: tuple[float, ...]
    rates_bps: tuple[float, ...]
    period_s: float
    source: str = ""

    def __post_init__(self) -> None:
        rising = all(a < b for a, b in zip(self.times_s, (*self.times_s[1:], self.period_s), strict=True))
        if not self.times_s or self.times_s[0] != 0 or not rising or len(self.times_s) != len(self.rates_bps):
            raise NetworkError(f"bandwidth trace {self.source}: times must start at 0 and rise, with a rate for each")
        if not all(rate >= 0 and math.isfinite(rate) for rate in self.rates_bps) or max(self.rates_bps) == 0:
            raise NetworkError(f"bandwidth trace {self.source}: rates must be 0 or more, finite, and not all 0")

    @property
    def outages(self) -> tuple[tuple[float, float], ...]:
        """Outages of a second or more in one period; one that continues in the next period counts."""
        holes: list[tuple[float, float]] = []
        start: float | None = None
        for time, rate in zip((*self.times_s, self.period_s), (*self.rates_bps, 1.0), strict=True):
            if rate == 0 and start is None:
                start = time
            elif rate > 0 and start is not None:
                holes.append((start, time))
                start = None
        across = 0.0
        if holes and holes[0][0] == 0 and holes[-1][1] == self.period_s:
            across = holes[0][1] + self.period_s - holes[-1][0]
        ends = {holes[0], holes[-1]} if across >= OUTAGE_S - 1e-9 else set()
        return tuple(hole for hole in holes if hole[1] - hole[0] >= OUTAGE_S - 1e-9 or hole in ends)

    @property
    def mean_bps(self) -> float:
        ends = (*self.times_s[1:], self.period_s)
        carried = sum(rate * (end - time) for time, end, rate in zip(self.times_s, ends, self.rates_bps, strict=True))
        return carried / self.period_s


def read_bandwidth_trace(path: Path) -> BandwidthTrace:
    """Reads either format; the file itself shows which one it is, and whether it is gzipped."""
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("ascii")
    except (EOFError, UnicodeDecodeError, gzip.BadGzipFile, zlib.error):
        raise NetworkError(f"bandwidth trace {path}: neither text nor gzipped text") from None
    except OSError as error:
        raise NetworkError(f"bandwidth trace {path}: {error.strerror or error}") from None
    except ValueError:
        raise NetworkError(f"bandwidth trace {str(path)!r}: not the name of a file") from None
    rows: list[list[float]] = []
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.split()
        if not fields or fields[0].startswith("#"):
            continue
        try:
            rows.append([_finite(field) for field in fields])
        except ValueError:
            raise NetworkError(
                f"bandwidth trace {path}, line {number}: expected numbers, not {line.strip()!r}"
            ) from None
        if len(rows[-1]) != len(rows[0]) or len(fields) > 2:
            expected = "milliseconds (one column), or seconds and Mbit/s (two)"
            raise NetworkError(f"bandwidth trace {path}, line {number}: expected {expected}, not {line.strip()!r}")
    if len(rows) < 2:
        raise NetworkError(f"bandwidth trace {path}: expected at least two lines, found {len(rows)}")
    build = _from_packets if len(rows[0]) == 1 else _from_rates
    return build(rows, str(path))


def _finite(text: str) -> float:
    value = float(text)
    if not abs(value) <= LARGEST:
        raise ValueError(text)
    return value


def _from_packets(rows: list[list[float]], source: str) -> BandwidthTrace:
    times_ms = [row[0] for row in rows]
    if times_ms != sorted(times_ms) or times_ms[0] < 0 or times_ms[-1] <= 0:
        raise NetworkError(f"bandwidth trace {source}: packet times must start at 0 or later and not fall")
    bins = math.ceil(times_ms[-1] / 1000 / BIN_S)
    counts = [0] * bins
    for time_ms in times_ms:
        counts[min(int(time_ms / 1000 / BIN_S), bins - 1)] += 1
    times: list[float] = []
    rates: list[float] = []
    for index, count in enumerate(counts):
        rate = count * PACKET_BYTES * 8 / BIN_S
        if not rates or rate != rates[-1]:
            times.append(round(index * BIN_S, 9))
            rates.append(rate)
    return BandwidthTrace(tuple(times), tuple(rates), round(bins * BIN_S, 9), source)


def _from_rates(rows: list[list[float]], source: str) -> BandwidthTrace:
    times = tuple(row[0] for row in rows[:-1])
    return BandwidthTrace(times, tuple(row[1] * 1e6 for row in rows[:-1]), rows[-1][0], source)

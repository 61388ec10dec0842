import gzip
from pathlib import Path

import pytest

from atoll.errors import NetworkError
from atoll.network import BandwidthTrace, read_bandwidth_trace


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "trace"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_packets_become_a_rate_a_tenth_of_a_second(tmp_path: Path) -> None:
    # Two packets in the first tenth, none in the second, one in the third; 300 ms in all.
    trace = read_bandwidth_trace(write(tmp_path, "0\n50\n250\n300\n"))
    assert trace.times_s == (0.0, 0.1, 0.2)
    assert trace.rates_bps == (2 * 12_000 / 0.1, 0.0, 2 * 12_000 / 0.1)
    assert trace.period_s == pytest.approx(0.3)
    assert trace.mean_bps == pytest.approx(4 * 12_000 / 0.3)


def test_two_columns_plain_and_gzipped(tmp_path: Path) -> None:
    text = "# time rate\n0 1.5\n\n2 0\n4.5 3\n10 0\n"
    plain = read_bandwidth_trace(write(tmp_path, text))
    assert list(plain.times_s) == [0, 2, 4.5]
    assert list(plain.rates_bps) == [1.5e6, 0, 3e6]
    assert plain.period_s == 10
    assert list(plain.outages) == [(2, 4.5)]
    zipped = read_bandwidth_trace(write(tmp_path, gzip.compress(text.encode())))
    assert zipped == plain


def test_a_short_hole_is_no_outage(tmp_path: Path) -> None:
    assert read_bandwidth_trace(write(tmp_path, "0 1\n2 0\n2.9 1\n5 0\n")).outages == ()
    assert read_bandwidth_trace(write(tmp_path, "0 1\n4 0\n5 0\n")).outages == ((4, 5),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0\nfive\n", "line 2: expected numbers, not 'five'"),
        ("0 1\n5\n", "line 2: expected milliseconds"),
        ("0 1 2\n1 2 3\n", "line 1: expected milliseconds"),
        ("0\n", "expected at least two lines, found 1"),
        ("5\n3\n", "packet times must start at 0 or later and not fall"),
        ("1 5\n2 5\n", "times must start at 0 and rise"),
        ("0 5\n0 5\n", "times must start at 0 and rise"),
        ("0 0\n1 0\n", "not all 0"),
        ("0 -1\n1 0\n", "rates must be 0 or more"),
        (b"\x1f\x8bnonsense", "neither text nor gzipped text"),
        (b"\xff\xfe", "neither text nor gzipped text"),
    ],
)
def test_what_is_wrong_is_told(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(NetworkError, match="bandwidth trace") as refused:
        read_bandwidth_trace(write(tmp_path, text))
    assert message in str(refused.value)


def test_a_value_checks_itself() -> None:
    with pytest.raises(NetworkError):
        BandwidthTrace((0.0, 2.0), (1.0,), 3.0)

"""What a member measures, against what is true."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atoll.codecs.sparse import kept
from atoll.collectives.meter import RATIOS, SAMPLE, Meter
from atoll.vectors import of_array

MEMBERS = ("0", "1", "2")


def draw(size: int, seed: int) -> torch.Tensor:
    return of_array(np.random.default_rng(seed).standard_t(2, size=size))


@given(st.integers(1, 3000), st.integers(0, 99))
def test_what_each_ratio_would_keep(size: int, seed: int) -> None:
    meter, values = Meter(), draw(size, seed)
    meter.saw(meter.look(values))
    report = meter.report(MEMBERS)
    assert len(report) == Meter.numbers(3)
    squares = np.sort(np.square(values.numpy().astype(float)))[::-1]
    for place, ratio in enumerate(RATIOS):
        assert report[4 + place] == pytest.approx(squares[: kept(size, ratio)].sum(), rel=1e-4)
    assert report[4 + len(RATIOS)] == pytest.approx(squares.sum(), rel=1e-4)
    assert not meter.report(MEMBERS).any(), "a report is of what is new"


def test_of_a_long_vector_a_sample_tells() -> None:
    meter, values = Meter(), draw(40 * SAMPLE, 1)
    for block in torch.split(values, 10 * SAMPLE):
        meter.saw(meter.look(block))
    report = meter.report(MEMBERS)
    squares = values.double().square().sort(descending=True).values
    for place, ratio in enumerate(RATIOS):
        share = float(squares[: kept(len(values), ratio)].sum() / squares.sum())
        assert report[4 + place] / report[4 + len(RATIOS)] == pytest.approx(share, rel=0.15)


def test_what_a_leaders_places_keep_of_the_own_update() -> None:
    meter, values = Meter(), torch.tensor([3.0, -4.0, 1.0, 2.0])
    meter.saw_shared(meter.shared(values, torch.tensor([0.0, -4.0, 1.0, 2.0]), 0.25))
    kept_there, own_largest = meter.report(MEMBERS)[-4:-2]
    assert (kept_there, own_largest) == (9, 16)


def test_uplinks_and_computing_are_per_byte_and_value() -> None:
    meter = Meter()
    log = meter.log
    log.add(0.0, 2.0, 4000)
    log.computed_s = 3.0
    meter.done(5.0, 1000, dense=False)
    meter.begin(7.5)
    report = meter.report(MEMBERS)
    assert report[3] == pytest.approx(2 / 4000)
    assert report[-5] == 2.5, "seconds of training since the last round"
    assert report[-2:].tolist() == pytest.approx([3e-3, 0])
    log.computed_s = 1.0
    log.add(8.0, 8.5, 4000)
    meter.done(9.0, 1000, dense=True)
    report = meter.report(MEMBERS)
    assert report[-2:].tolist() == pytest.approx([3e-3, 1e-3]), "blocks of a round have the log before it begins"
    assert report[3] == pytest.approx(0.3 * 2 / 4000 + 0.7 * 0.5 / 4000)

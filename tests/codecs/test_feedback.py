"""Nothing that was given is lost."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.codecs import Feedback, parse_codec
from tests.codecs.vectors import ALL, roundtrip, vector


@settings(deadline=None, max_examples=60)
@given(
    name=st.sampled_from(ALL),
    count=st.integers(1, 5000),
    seed=st.integers(0, 2**31),
    size=st.sampled_from([1e-6, 1.0, 1e4]),
    messages=st.integers(1, 4),
)
def test_sent_plus_kept_is_given(name: str, count: int, seed: int, size: float, messages: int) -> None:
    codec, feedback = parse_codec(name), Feedback()
    total, sent = torch.zeros(count).double(), torch.zeros(count).double()
    for message in range(messages):
        values = vector(count, seed + message) * size
        total += values
        now = feedback.given(values)
        arrived = roundtrip(codec, now, message)
        sent += arrived
        feedback.keep(now - arrived)
    kept = feedback.kept
    assert kept is not None
    np.testing.assert_allclose(sent + kept, total, rtol=1e-4, atol=1e-4 * size)


def test_what_is_kept_decays() -> None:
    feedback = Feedback(decay=0.5)
    feedback.keep(torch.tensor([4.0, 1.0]))
    assert feedback.given(torch.zeros(2)).tolist() == [2, 0.5]
    assert feedback.given(torch.zeros(2)).tolist() == [2, 0.5], "a message that was not sent changes nothing"
    feedback.keep(None)
    assert feedback.given(torch.zeros(2)).tolist() == [0, 0]

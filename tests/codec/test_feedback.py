"""Nothing that was given is lost."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.codec import Feedback, parse_codec
from atoll.codec.sparse import TopK
from tests.codec.vectors import ALL, vector


@settings(deadline=None, max_examples=60)
@given(
    name=st.sampled_from(ALL),
    count=st.integers(1, 5000),
    seed=st.integers(0, 2**31),
    size=st.sampled_from([1e-6, 1.0, 1e4]),
    messages=st.integers(1, 4),
)
def test_sent_plus_kept_is_given(name: str, count: int, seed: int, size: float, messages: int) -> None:
    feedback = Feedback(parse_codec(name))
    total, sent = torch.zeros(count, dtype=torch.float64), torch.zeros(count, dtype=torch.float64)
    for message in range(messages):
        values = vector(count, seed + message) * size
        encoded = feedback.encode(values, message)
        total += values
        sent += feedback.codec.decode(encoded, count, message)
    assert feedback.kept is not None
    np.testing.assert_allclose(sent + feedback.kept, total, rtol=1e-4, atol=1e-4 * size)
    flushed = feedback.flush()
    assert flushed is not None
    assert feedback.kept is None, "once"


def test_what_is_kept_decays_and_comes_back() -> None:
    feedback = Feedback(TopK(0.5), decay=0.5)
    feedback.encode(torch.tensor([4.0, 1.0]))
    assert feedback.given(torch.zeros(2)).tolist() == [0, 0.5]
    feedback.give_back(torch.tensor([1.0, 1.0]))
    assert feedback.kept is not None
    assert feedback.kept.tolist() == [1, 2]

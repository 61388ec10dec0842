import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atoll.codecs import parse_codec
from atoll.islands.wire import pack_tensors, unpack_tensors


@given(st.sampled_from(["dense", "bf16", "int8", "topk/0.3", "randk/0.5"]), st.lists(st.integers(1, 7), max_size=3))
def test_what_travels_is_what_was_sent(name: str, shape: list[int]) -> None:
    wire = parse_codec(name)
    values = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    came = unpack_tensors(pack_tensors(values, wire, 3), wire, 3)
    assert came.shape == values.shape
    if name == "dense":
        assert torch.equal(came, values)
    half = values.to(torch.bfloat16)
    assert unpack_tensors(pack_tensors(half, wire, 3), wire, 3).dtype == torch.bfloat16
    whole = torch.arange(6).view(2, 3)
    assert torch.equal(unpack_tensors(pack_tensors(whole, wire, 3), wire, 3), whole)
    coded = pack_tensors(values, wire, 3)
    for wrong in (
        {**coded, "shape": torch.tensor([*shape, 40])},
        {**coded, "shape": torch.tensor([*shape, -1])},
        {**coded, "coded": coded["coded"][:-1]},
        {**coded, "coded": coded["coded"].float()},
    ):
        with pytest.raises(ValueError, match="bytes for"):
            unpack_tensors(wrong, wire, 3)

import torch
from hypothesis import given
from hypothesis import strategies as st

from atoll.codecs.bits import pack, packed_size, unpack, width


@given(numbers=st.lists(st.integers(0, 2**20 - 1), max_size=50), bits=st.integers(1, 21))
def test_packing(numbers: list[int], bits: int) -> None:
    given_numbers = torch.tensor([number % 2**bits for number in numbers], dtype=torch.int64)
    packed = pack(given_numbers, bits)
    assert len(packed) == packed_size(len(numbers), bits)
    whole = sum(int(number) << (bits * place) for place, number in enumerate(given_numbers))
    assert bytes(packed.tolist()) == whole.to_bytes(len(packed), "little")
    assert unpack(packed, len(numbers), bits).tolist() == given_numbers.tolist()


def test_width() -> None:
    assert [width(n) for n in (0, 1, 2, 255, 256, 4095)] == [1, 1, 2, 8, 9, 12]

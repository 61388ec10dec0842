import pytest

from atoll.codecs import CODECS, parse_codec, write_codec
from atoll.codecs.blocks import Blocks
from atoll.codecs.sparse import ChunkTopK, TopK
from atoll.errors import StrategyError


def test_by_name() -> None:
    assert parse_codec("int8") == Blocks(8)
    assert parse_codec("topk") == TopK(0.01)
    assert parse_codec("topk/0.25") == TopK(0.25)
    assert parse_codec("chunk2/32") == ChunkTopK(32, bits=2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("inf8", "there is no codec 'inf8'; did you mean 'int8'"),
        ("int8/3", "codec 'int8' takes no number"),
        ("topk/2", "expected a share above 0 and up to 1"),
        ("topk/some", "expected a share"),
        ("chunk/0", "expected a whole number from 1 to 4096"),
        ("chunk/1.5", "expected a whole number"),
        ("chunk/nan", "expected a whole number"),
        ("lowrank/inf", "expected a whole number"),
    ],
)
def test_mistakes(text: str, message: str) -> None:
    with pytest.raises(StrategyError, match="strategy 'x'") as error:
        parse_codec(text, "strategy 'x'")
    assert message in str(error.value)


@pytest.mark.parametrize("text", [*CODECS, "topk/0.25", "chunk2/32", "randk/0.5", "dct/8", "lowrank/4"])
def test_what_is_written_is_read_again(text: str) -> None:
    codec = parse_codec(text)
    assert parse_codec(write_codec(codec)) == codec

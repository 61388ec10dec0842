"""What is said: vectors in few bytes, and what is left unsaid."""

from atoll.codecs.base import Codec
from atoll.codecs.dense import Dense
from atoll.codecs.feedback import Feedback
from atoll.codecs.spec import CODECS, parse_codec, write_codec

__all__ = ["CODECS", "Codec", "Dense", "Feedback", "parse_codec", "write_codec"]

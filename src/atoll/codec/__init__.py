"""What is said: vectors in few bytes, and what is left unsaid."""

from atoll.codec.base import Codec
from atoll.codec.dense import Dense
from atoll.codec.feedback import Feedback
from atoll.codec.spec import CODECS, parse_codec

__all__ = ["CODECS", "Codec", "Dense", "Feedback", "parse_codec"]

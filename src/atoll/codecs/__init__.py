"""Codecs compress vectors; error feedback keeps their loss.  Every file here registers its codecs."""

import importlib
import pkgutil

from atoll.codecs.base import CODECS, Codec
from atoll.codecs.dense import Dense
from atoll.codecs.feedback import Feedback
from atoll.codecs.spec import parse_codec, write_codec

__all__ = ["CODECS", "Codec", "Dense", "Feedback", "parse_codec", "write_codec"]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

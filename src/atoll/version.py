"""Which Atoll this is."""

from importlib.metadata import version

__all__ = ["VERSION"]

VERSION = version("atoll")

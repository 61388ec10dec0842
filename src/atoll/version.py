"""Which Atoll this is.  The build reads it from here too, so a source tree needs no installed metadata."""

__all__ = ["VERSION"]

VERSION = "0.1.0"

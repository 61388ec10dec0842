"""Where a system does not allow emulation there is nothing to test; anything else that goes wrong is a failure."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from atoll.errors import EmulationError


@contextmanager
def where_it_is_allowed() -> Iterator[None]:
    try:
        yield
    except EmulationError as error:
        if str(error).startswith(("tun: ", "veth: ")):
            pytest.skip(str(error))
        raise

"""A script with a key file: it is started again, and goes on in its run."""

from pathlib import Path

import pytest

import atoll
from atoll.errors import AtollError
from atoll.trace import RunStarted, read_trace
from atoll.world.live.keys import Invitation


def test_a_script_goes_on_with_its_run(tmp_path: Path) -> None:
    runs = []
    for _ in range(2):
        with atoll.join(listen="127.0.0.1:0", key=tmp_path / "key", out=tmp_path / "live") as run:
            runs.append((run.name, Invitation.parse(run.invitation).run_id))
            with pytest.raises(AtollError, match="another node on this machine uses it"):
                atoll.join(invitation=run.invitation, key=tmp_path / "key")
    assert runs[0] == runs[1]
    for name in ("n0.jsonl", "n0.2.jsonl"):
        first = next(iter(read_trace(tmp_path / "live" / name)))
        assert isinstance(first, RunStarted)
        assert first.run == runs[0][1]

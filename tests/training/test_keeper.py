"""A node's state is kept while it trains, and found again after a power cut."""

import asyncio
import dataclasses
import errno
import logging
import os
from pathlib import Path

import pytest

from atoll.errors import CheckpointError
from atoll.runs.card import Card, LocalMachine
from atoll.runs.live import begin_run
from atoll.state import Saved, note, read_note, section
from atoll.trace import Event, Tested
from atoll.training import keeper as keeper_module
from atoll.training.checkpoint import read_node, write_node

CARD = Card(task="digits", strategy="vrl:every=4,codec=int8", seats=2)


def machine(folder: Path) -> LocalMachine:
    return LocalMachine(
        data=None,
        device="cpu",
        listen=("127.0.0.1", 0),
        public=[],
        out=folder / "live",
        key=folder / "key",
        checkpoint=folder / "kept",
    )


def steps_in(path: Path) -> int:
    return int(read_note(section("replica", read_node(path, {}))["steps"]))


async def _train(card: Card, own: LocalMachine, steps: int, tests: list[Tested]) -> None:
    def watch(event: Event) -> None:
        if isinstance(event, Tested):
            tests.append(event)

    async with asyncio.timeout(60), begin_run(card, own, watch) as member:
        await member.train(steps=steps)


def test_it_is_kept_now_and_then_and_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper_module, "KEEP_EVERY_S", 0.001)
    monkeypatch.setattr(os, "fsync", lambda _: None)  # a busy disk would take longer than all steps
    written: list[int] = []

    def write(path: Path, saved: Saved, identity: dict[str, object]) -> None:
        write_node(path, saved, identity)
        written.append(steps_in(path))

    monkeypatch.setattr(keeper_module, "write_node", write)
    tests: list[Tested] = []
    again: list[Tested] = []
    asyncio.run(_train(CARD, machine(tmp_path), 60, tests))
    assert len(written) > 2
    assert written == sorted(written)
    assert written[-1] == 60
    asyncio.run(_train(CARD, machine(tmp_path), 90, again))
    assert again[0].steps > 60
    assert again[0].measure > tests[0].measure
    assert abs(again[0].measure - tests[-1].measure) < 0.2, "it goes on where it was"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"strategy": "none"}, "strategy is 'vrl:every=4,codec=int8' there, and 'none' here"),
        ({"seed": 5}, "seed is 0 there, and 5 here"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(tmp_path: Path, change: dict[str, object], why: str) -> None:
    asyncio.run(_train(CARD, machine(tmp_path), 8, []))
    (tmp_path / "key.run").unlink()  # another run
    with pytest.raises(CheckpointError, match=why):
        asyncio.run(_train(dataclasses.replace(CARD, **change), machine(tmp_path), 9, []))  # type: ignore[arg-type]


def test_another_seat_is_told_of_the_key(tmp_path: Path) -> None:
    write_node(tmp_path / "kept", {"x": note(1)}, {"node": "n1"})
    with pytest.raises(CheckpointError, match=r"n1 wrote it, and this is n2; with the same key file .*old seat back"):
        read_node(tmp_path / "kept", {"node": "n2"})


@pytest.mark.parametrize("missing", ["replica/steps", "talk/", "tested at"])
def test_half_a_state_is_refused(tmp_path: Path, missing: str) -> None:
    """In one line, not with a group of exceptions."""
    path = tmp_path / "kept"
    asyncio.run(_train(CARD, machine(tmp_path), 8, []))
    saved = {name: value for name, value in read_node(path, {}).items() if not name.startswith(missing)}
    identity = {**CARD.config(machine(tmp_path)).identity, "node": "n0"}
    write_node(path, saved, identity)
    with pytest.raises(CheckpointError, match="does not fit this model and strategy"):
        asyncio.run(_train(CARD, machine(tmp_path), 9, []))


def test_a_full_disk_does_not_end_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(keeper_module, "KEEP_EVERY_S", 0.001)
    is_full, fsync = True, os.fsync
    tried = 0

    def fail(file: int) -> None:
        nonlocal tried
        tried += 1
        if is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(file)

    own = dataclasses.replace(machine(tmp_path), key=None)
    monkeypatch.setattr(os, "fsync", fail)
    with caplog.at_level(logging.WARNING):
        asyncio.run(_train(CARD, own, 40, []))
    assert tried > 2
    assert not (tmp_path / "kept").exists()
    assert not (tmp_path / "kept.part").exists(), "half a file is of no use on a full disk"
    told = [message for message in caplog.messages if "checkpoint" in message]
    assert len(told) == 1
    assert "No space left on device" in told[0]
    assert "training continues" in told[0]
    is_full = False
    asyncio.run(_train(CARD, own, 8, []))
    assert steps_in(tmp_path / "kept") == 8

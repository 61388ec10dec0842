"""Machines that begin a run, join it and leave it; here they are in one process, over loopback."""

import asyncio
import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import safetensors.torch
from rich.console import Console

from atoll.errors import InvitationError
from atoll.network import parse_network
from atoll.report.board import Board
from atoll.report.probe import network_of
from atoll.runs import live as member_module
from atoll.runs.live import Card, LocalMachine, begin_run, join_run
from atoll.trace import Event, Exchanged, Joined, ReachChanged, RunEnded, RunStarted, read_trace
from atoll.world.live.join import ask_for_report
from atoll.world.live.keys import Identity, Invitation

CARD = Card(task="digits", strategy="allreduce:every=4,codec=int8", seats=3)


def machine(folder: Path, *, listens: bool = True) -> LocalMachine:
    return LocalMachine(
        data=None, device="cpu", listen=("127.0.0.1", 0) if listens else None, public=[], out=folder / "live"
    )


def test_begin_join_and_leave(tmp_path: Path) -> None:
    """The second comes in the middle and cannot be dialled; what the first has learned is handed to it."""
    boards = [Board(), Board()]
    together = 0

    def watch(event: Event) -> None:
        nonlocal together
        boards[1].watch(event)
        together += isinstance(event, Exchanged) and event.members == 2

    model = tmp_path / "model.safetensors"

    async def run() -> None:
        async with asyncio.timeout(60), begin_run(CARD, machine(tmp_path), boards[0].watch) as first:
            boards[0].world = first.world
            training = asyncio.create_task(first.train())
            await asyncio.sleep(2)
            async with join_run(first.invitation, machine(tmp_path, listens=False), watch) as second:
                boards[1].world = second.world
                assert second.card == first.card
                assert second.world.name != first.world.name
                assert Invitation.parse(str(second.invitation)).addresses == first.invitation.addresses
                joining = asyncio.create_task(second.train(save=model))
                while together < 3:  # noqa: ASYNC110 - events are counted
                    await asyncio.sleep(0.05)
                joining.cancel()
                await asyncio.wait([joining])
                assert "direct" in _shown(boards[0])
                report = await ask_for_report(first.invitation, Identity(first.invitation.secret))
            network = parse_network(network_of(report), name="probed")
            assert set(network.node_names) == {"n0", "n1"}
            assert len(network.links) == 1
            await first.world.peer("n1").wait_until(reachable=False)
            assert "unreachable" in _shown(boards[0])
            training.cancel()
            await asyncio.wait([training])

    asyncio.run(run())
    first, second = (list(read_trace(tmp_path / "live" / f"{name}.jsonl")) for name in ("n0", "n1"))
    assert any(isinstance(event, Joined) for event in second)
    assert any(isinstance(event, Exchanged) and event.members == 2 for event in first)
    assert isinstance(first[-1], RunEnded)
    assert isinstance(second[-1], RunEnded)
    assert safetensors.torch.load_file(model)
    assert "exchanges" in boards[0].line()


def _shown(board: Board) -> str:
    console = Console(width=120)
    with console.capture() as capture:
        console.print(board)
    return capture.get()


def test_a_machine_gets_its_seat_back(tmp_path: Path) -> None:
    """By its key; another one does not."""

    async def run() -> None:
        async with asyncio.timeout(60), begin_run(CARD, machine(tmp_path), _ignore) as first:
            key = tmp_path / "key"
            names = []
            for own in (key, key, None):
                async with join_run(
                    first.invitation, dataclasses.replace(machine(tmp_path), key=own), _ignore
                ) as member:
                    names.append(member.world.name)
                await first.world.peer(member.world.name).wait_until(reachable=False)
            assert names == ["n1", "n1", "n2"]

    asyncio.run(run())


def test_a_copied_key_does_not_disturb_who_is_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second gives up with a reason, whether it asks for a seat or takes the one that it remembers."""
    monkeypatch.setattr(member_module, "IN_USE_S", 1.0)
    reached: list[bool] = []

    def watch(event: Event) -> None:
        if isinstance(event, ReachChanged):
            reached.append(event.reachable)

    async def run() -> None:
        own, copy = (dataclasses.replace(machine(tmp_path), key=tmp_path / name) for name in ("own", "copy"))
        async with (
            asyncio.timeout(60),
            begin_run(CARD, machine(tmp_path), watch) as first,
            join_run(first.invitation, own, _ignore) as second,
        ):
            shutil.copy(tmp_path / "own", tmp_path / "copy")
            with pytest.raises(InvitationError, match=r"copy: .* in use by another process .*name another file"):
                async with join_run(first.invitation, copy, _ignore):
                    pass
            shutil.copy(tmp_path / "own.run", tmp_path / "copy.run")
            with pytest.raises(InvitationError, match=r"copy: .* in use by another process .*name another file"):
                async with begin_run(CARD, copy, _ignore):
                    pass
            with pytest.raises(InvitationError, match="another node on this machine uses it"):
                async with join_run(first.invitation, own, _ignore):
                    pass
            assert second.world.peer(first.world.name).reachable
            assert reached == [True], "the first was never disturbed"

    asyncio.run(run())


def test_a_machine_that_joined_begins_the_run_again(tmp_path: Path) -> None:
    """All are gone; any machine with a key file brings the run back, in its own seat, and others get theirs."""

    async def run() -> None:
        key = dataclasses.replace(machine(tmp_path), key=tmp_path / "key")
        other = dataclasses.replace(machine(tmp_path), key=tmp_path / "other")
        async with asyncio.timeout(60):
            async with begin_run(CARD, other, _ignore) as first:
                old = first.invitation
                async with join_run(old, key, _ignore) as second:
                    name, age = second.world.name, second.world.now
                    await asyncio.sleep(0.2)
            async with begin_run(dataclasses.replace(CARD, strategy="none"), key, _ignore) as second:
                assert second.world.name == name == "n1"
                assert second.card == CARD
                assert second.invitation.secret == old.secret
                assert age <= second.world.now < age + 30
                async with join_run(second.invitation, machine(tmp_path), _ignore) as third:
                    assert third.world.name == "n2", "the first seat is kept for who had it"
                    async with join_run(second.invitation, other, _ignore) as first:
                        assert first.world.name == "n0"

    asyncio.run(run())


def test_a_run_that_was_is_joined_with_its_old_invitation(tmp_path: Path) -> None:
    async def run() -> None:
        own = dataclasses.replace(machine(tmp_path), key=tmp_path / "key")
        async with asyncio.timeout(60):
            async with begin_run(CARD, own, _ignore) as first:
                old = first.invitation
            async with join_run(old, own, _ignore) as first:
                assert first.world.name == "n0"
                assert first.world.host.run_id == old.run_id
            with pytest.raises(InvitationError, match="can be reached"):
                async with join_run(Invitation.new(old.addresses), own, _ignore):
                    pass

    asyncio.run(run())


def test_another_task_than_the_remembered_one_is_refused(tmp_path: Path) -> None:
    async def run() -> None:
        own = dataclasses.replace(machine(tmp_path), key=tmp_path / "key")
        async with asyncio.timeout(60):
            async with begin_run(CARD, own, _ignore):
                pass
            with pytest.raises(InvitationError, match=r"key.run remembers a run of 'digits', .*remove that file"):
                async with begin_run(CARD, dataclasses.replace(own, task="mnist"), _ignore):
                    pass

    asyncio.run(run())


def test_a_restart_overwrites_no_trace(tmp_path: Path) -> None:
    async def run() -> None:
        for _ in range(2):
            async with asyncio.timeout(60), begin_run(CARD, machine(tmp_path), _ignore):
                pass

    asyncio.run(run())
    traces = [list(read_trace(tmp_path / "live" / name)) for name in ("n0.jsonl", "n0.2.jsonl")]
    started = [trace[0] for trace in traces]
    assert all(isinstance(trace[-1], RunEnded) for trace in traces)
    assert all(isinstance(event, RunStarted) and event.run for event in started)
    assert len({event.run for event in started if isinstance(event, RunStarted)}) == 2, "two runs"


def test_all_seats_are_taken(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            asyncio.timeout(60),
            begin_run(CARD, machine(tmp_path), _ignore) as first,
            join_run(first.invitation, machine(tmp_path), _ignore),
            join_run(first.invitation, machine(tmp_path), _ignore),
        ):
            with pytest.raises(InvitationError, match="all seats are taken"):
                async with join_run(first.invitation, machine(tmp_path), _ignore):
                    pass

    asyncio.run(run())


def test_others_do_not_choose_what_code_runs_here(tmp_path: Path) -> None:
    own = dataclasses.replace(CARD, task="os:abort")

    async def run() -> None:
        async with asyncio.timeout(60), begin_run(own, machine(tmp_path), _ignore) as first:
            with pytest.raises(InvitationError, match="add --task os:abort to run it"):
                async with join_run(first.invitation, machine(tmp_path), _ignore):
                    pass
            agreed = dataclasses.replace(machine(tmp_path), task="os:abort")
            async with join_run(first.invitation, agreed, _ignore) as second:
                assert second.card.task == "os:abort"

    asyncio.run(run())


def test_an_invitation_that_leads_nowhere(tmp_path: Path) -> None:
    async def run() -> None:
        nowhere = Invitation.new((("127.0.0.1", 1),))
        with pytest.raises(InvitationError, match="nobody whom the invitation names can be reached"):
            async with join_run(nowhere, machine(tmp_path), _ignore):
                pass

    asyncio.run(run())


@pytest.mark.parametrize(
    "wrong", [{}, {"task": "digits", "strategy": "x", "more": 1}, {"task": "digits", "strategy": "none", "seats": 0}]
)
def test_a_card_that_is_none(wrong: dict[str, object]) -> None:
    with pytest.raises(InvitationError):
        Card.read(json.loads(json.dumps(wrong)))


@pytest.mark.parametrize("wrong", [{}, {"nodes": 3}, {"nodes": {"a": {}}}, {"nodes": {"a": {"step_s": 1, "links": 3}}}])
def test_a_report_that_is_none(wrong: dict[str, object]) -> None:
    with pytest.raises(InvitationError, match="is not understood"):
        network_of(wrong)


def _ignore(event: object) -> None:
    pass

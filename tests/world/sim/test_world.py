import asyncio

import pytest

from atoll.errors import UnknownPeer
from atoll.network import load_network
from atoll.world.sim.world import SimWorld
from tests.world.networks import PAIR, STAR, network, run, sized


class TestReceiving:
    def test_by_sender_and_from_anyone(self) -> None:
        async def program(world: SimWorld) -> list[bytes]:
            if world.name != "0":
                await world.sleep(int(world.name))
                await world.peer("0").send("x", world.name.encode())
                await world.peer("0").send("y", b"y" + world.name.encode())
                return []
            second = await world.peer("2").receive("x")
            return [second.head, *[(await world.receive("x")).head for _ in range(2)], (await world.receive("y")).head]

        assert run(network(STAR), program)["0"] == [b"2", b"1", b"3", b"y1"]

    def test_a_message_is_a_copy(self) -> None:
        async def program(world: SimWorld) -> bytes:
            if world.name == "1":
                return bytes((await world.receive("x")).body)
            body = bytearray(b"as it was")
            await world.peer("1").send("x", b"", body)
            body[:] = b"overwritt"
            return b""

        assert run(network(PAIR), program)["1"] == b"as it was"

    def test_a_receive_that_times_out_loses_nothing(self) -> None:
        async def program(world: SimWorld) -> list[float]:
            if world.name == "0":
                await world.peer("1").send("x", b"", sized(1_000_000))
                return []
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await world.receive("x")
            await world.receive("x")
            return [world.now]

        assert run(network(PAIR), program)["1"] == [pytest.approx(0.83)]

    def test_empty_mailboxes_are_not_kept(self) -> None:
        async def program(world: SimWorld) -> int:
            for n in range(100):
                if world.name == "0":
                    await world.peer("1").send(f"round {n}")
                else:
                    await world.receive(f"round {n}")
            return len(world._mailboxes)

        assert run(network(PAIR), program) == {"0": 0, "1": 0}

    def test_unknown_peers(self) -> None:
        async def program(world: SimWorld) -> None:
            with pytest.raises(UnknownPeer, match="has no peer 'A9'; choose from: "):
                world.peer("A9")
            with pytest.raises(UnknownPeer, match="this node itself"):
                world.peer(world.name)

        run(load_network("nine"), program)


class TestComputing:
    def test_costs_the_declared_time_one_thing_at_a_time(self) -> None:
        async def program(world: SimWorld) -> tuple[list[int], float]:
            async with asyncio.TaskGroup() as group:
                first = group.create_task(world.compute(lambda: 1))
                second = group.create_task(world.compute(lambda: 2, steps=3))
            return [first.result(), second.result()], world.now

        nine = run(load_network("nine"), program)
        assert nine["A1"] == ([1, 2], 2.0)
        assert nine["C1"] == ([1, 2], 4.0)

    def test_randomness_is_a_nodes_own(self) -> None:
        async def program(world: SimWorld) -> float:
            await world.sleep(world.random.random())
            return world.random.random()

        one = run(load_network("nine"), program, seed=1)
        assert one == run(load_network("nine"), program, seed=1)
        assert len(set(one.values())) == 9
        assert one != run(load_network("nine"), program, seed=2)

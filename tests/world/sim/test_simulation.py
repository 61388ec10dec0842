import asyncio
import contextlib
import hashlib
import logging
import resource
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from atoll.errors import Stalled
from atoll.network import load_network
from atoll.trace import Computed, LinkChanged, ReachChanged, RunEnded, RunStarted, Trace, Transferred, read_trace
from atoll.world import IDEAL, Lane, Simulation
from atoll.world.sim.world import SimWorld
from tests.world.networks import PAIR, STAR, network, run, sized


class TestCancelling:
    def test_a_send_that_times_out_frees_the_link(self) -> None:
        async def program(world: SimWorld) -> list[float]:
            if world.name == "0":
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.4):
                        await world.peer("1").send("x", b"", sized(100_000_000))
                await world.peer("1").send("x", b"", sized(1_000_000))
                return [world.now]
            await world.receive("x")
            return [world.now]

        assert run(network(PAIR), program) == {"0": [pytest.approx(1.2)], "1": [pytest.approx(1.23)]}

    def test_a_cancelled_neighbour_gives_its_share_back(self) -> None:
        async def program(world: SimWorld) -> float:
            if world.name in "01":
                async with asyncio.TaskGroup() as group:
                    transfer = group.create_task(world.peer("2").send("x", b"", sized(1_000_000)))
                    if world.name == "1":
                        await world.sleep(0.5)
                        transfer.cancel()
            elif world.name == "2":
                await world.receive("x")
            return world.now

        # 8 Mbit/s shared by two for half a second, then one alone: 0.25 MB, then 0.75 MB.
        assert run(network(STAR), program)["2"] == pytest.approx(0.5 + 0.75 + 0.02)

    @pytest.mark.parametrize("when", [0.0, 0.2, 1.5, 2.99, 3.01])
    def test_in_whatever_state_it_is(self, when: float) -> None:
        """Queued, sending, stranded by an outage, waiting to resume: afterwards it is as if it had never been."""
        flapping = network(PAIR + "outages = [[1, 3]]")

        async def program(world: SimWorld) -> float:
            if world.name == "1":
                await world.receive("y")
                return world.now
            async with asyncio.TaskGroup() as group:
                transfers = [group.create_task(world.peer("1").send("x", b"", sized(9_000_000))) for _ in range(3)]
                await world.sleep(when)
                for transfer in transfers:
                    transfer.cancel()
            await world.sleep(10 - world.now)
            await world.peer("1").send("y", b"", sized(125_000))
            return 0.0

        simulation = Simulation(flapping, physics=IDEAL)
        arrived = simulation.run(program)["1"]
        assert arrived == pytest.approx(10.13)
        assert not simulation.links.busy
        assert not simulation.links.stranded
        assert all(not pipe.flows for pipe in simulation.links.wiring.pipes())


class TestReach:
    def test_is_noticed_after_a_while(self) -> None:
        async def program(world: SimWorld) -> list[float]:
            peer = world.peer("1" if world.name == "0" else "0")
            seen = [float(peer.reachable)]
            await peer.wait_until(reachable=False)
            seen.append(world.now)
            await peer.wait_until(reachable=True)
            return [*seen, world.now]

        # Silence for half a second; then one round trip after the return.
        assert run(network(PAIR + "outages = [[5, 20]]"), program)["0"] == [
            1.0,
            pytest.approx(5.5),
            pytest.approx(20.06),
        ]

    def test_a_short_outage_is_not_noticed(self) -> None:
        async def program(world: SimWorld) -> bool:
            peer = world.peer("1" if world.name == "0" else "0")
            assert peer.reachable
            await world.sleep(5.9)
            return peer.reachable

        assert run(network(PAIR + "outages = [[5, 5.8]]"), program) == {"0": True, "1": True}

    def test_waiting_for_what_cannot_come_stalls(self) -> None:
        async def program(world: SimWorld) -> None:
            await world.peer("1" if world.name == "0" else "0").wait_until(reachable=False)

        with pytest.raises(Stalled, match="0 ··· 1: waits until it cannot be reached"):
            run(network(PAIR), program)


def test_simulated_nodes_log_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def program(world: SimWorld) -> None:
        logging.getLogger("atoll").warning("%s: training stands still", world.name)

    run(network(PAIR), program)
    logging.getLogger("atoll").warning("after it")
    assert caplog.messages == ["after it"]


class TestStalling:
    def test_a_deadlocked_protocol_is_told_with_its_waiting_parts(self) -> None:
        async def reduce_step(world: SimWorld, other: str) -> None:
            await world.peer(other).receive("gradients")  # both wait for the other to begin
            await world.peer(other).send("gradients")

        async def program(world: SimWorld) -> None:
            await world.sleep(2.5)
            if world.name in "01":
                await reduce_step(world, "1" if world.name == "0" else "0")

        began = time.perf_counter()
        with pytest.raises(Stalled) as stalled:
            run(network(STAR), program)
        assert time.perf_counter() - began < 1
        picture = str(stalled.value)
        assert "nothing can happen any more at 2.5" in picture
        assert "0 ◀── 1: waits to receive 'gradients'" in picture
        assert "reduce_step (test_simulation.py:" in picture
        assert "a circle: 0 → 1 → 0" in picture

    def test_with_weather_that_goes_on_for_ever(self) -> None:
        async def program(world: SimWorld) -> None:
            await world.receive("never")

        with pytest.raises(Stalled, match="A1 ◀── anyone"):
            run(load_network("nine"), program)

    def test_a_link_that_never_returns(self) -> None:
        async def program(world: SimWorld) -> None:
            if world.name == "0":
                await world.peer("1").send("x", b"", sized(100_000_000))

        with pytest.raises(Stalled, match=r"0 ──▶ 1: waits to send 100,000,000 bytes, no path works"):
            run(network(PAIR + "outages = [[1, inf]]"), program)

    def test_waiting_for_something_that_is_not_the_worlds(self) -> None:
        async def wait_for_godot() -> None:
            await asyncio.Event().wait()

        async def program(world: SimWorld) -> None:
            if world.name == "0":
                await wait_for_godot()

        with pytest.raises(Stalled, match=r"0: is in .*wait_for_godot \(test_simulation.py:\d+\)"):
            run(network(PAIR), program)

    def test_a_program_that_waits_on_though_cancelled(self) -> None:
        async def program(world: SimWorld) -> None:
            while True:
                try:
                    await world.receive("never")
                except asyncio.CancelledError:
                    continue

        with pytest.raises(Stalled):
            run(network(PAIR), program)


class TestRunning:
    def test_a_failing_node_ends_the_run_with_its_own_error(self) -> None:
        async def program(world: SimWorld) -> None:
            await world.sleep(1)
            if world.name == "0":
                raise ZeroDivisionError("of node 0")
            await world.sleep(100)

        with pytest.raises(ZeroDivisionError, match="of node 0"):
            run(network(PAIR), program)

    def test_limit(self) -> None:
        async def program(world: SimWorld) -> str:
            await world.sleep(1 if world.name == "0" else 100)
            return "done"

        simulation = Simulation(network(PAIR))
        assert simulation.run(program, limit_s=10) == {"0": "done"}
        assert simulation.now == 10


async def busy(world: SimWorld) -> None:
    """A bit of everything."""

    async def listen() -> None:
        while True:
            await world.receive("x")

    async def talk() -> None:
        for _ in range(30):
            await world.compute(lambda: None)
            peer = world.peer(world.random.choice(world.peer_names))
            if peer.reachable:
                await peer.send("x", b"", bytes(world.random.randrange(200_000)))
            await peer.send("x", b"hello", lane=Lane.CONTROL)

    listener = asyncio.ensure_future(listen())
    try:
        await talk()
    finally:
        listener.cancel()


def traced(path: str, name: str, seed: int) -> str:
    with Trace(Path(path)) as trace:
        Simulation(load_network(name), seed=seed, trace=trace).run(busy)
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


class TestTrace:
    @pytest.mark.parametrize("name", ["nine", "commute", "triangle"])
    def test_one_seed_gives_the_same_bytes(self, tmp_path: Path, name: str) -> None:
        first = traced(str(tmp_path / "a"), name, 7)
        assert traced(str(tmp_path / "b"), name, 7) == first
        assert traced(str(tmp_path / "c"), name, 8) != first
        with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
            others = [pool.submit(traced, str(tmp_path / f"p{n}"), name, 7) for n in range(2)]
            assert [other.result() for other in others] == [first, first]

    def test_tells_what_happened(self, tmp_path: Path) -> None:
        traced(str(tmp_path / "trace"), "nine", 3)
        events = list(read_trace(tmp_path / "trace"))
        assert isinstance(events[0], RunStarted)
        assert events[0].network == "nine"
        assert isinstance(events[-1], RunEnded)
        assert events[-1].reason == "finished"
        assert [event.at for event in events] == sorted(event.at for event in events)
        kinds = {type(event) for event in events}
        assert {Transferred, Computed, LinkChanged, ReachChanged} <= kinds

    def test_is_small(self, tmp_path: Path) -> None:
        """Nine nodes and 1,000 steps with sixteen messages a step: under 20 MB."""

        async def program(world: SimWorld) -> None:
            for _ in range(1000):
                await world.compute(lambda: None)
                if world.name == "A1":
                    for name in world.peer_names:
                        await world.peer(name).receive("gradient")
                    for name in world.peer_names:
                        await world.peer(name).send("mean", b"", bytes(1000))
                else:
                    await world.peer("A1").send("gradient", b"", bytes(1000))
                    await world.peer("A1").receive("mean")

        with Trace(tmp_path / "trace") as trace:
            Simulation(load_network("nine"), trace=trace).run(program)
        assert (tmp_path / "trace").stat().st_size < 5_000_000
        assert sum(isinstance(event, Computed) for event in read_trace(tmp_path / "trace")) == 9000


class TestRegressions:
    """Found by a review that tried to break it."""

    SECOND = '[[node]]\ncount = 2\n[[link]]\namong = "*"\nlatency_ms = 1000'

    def test_a_receive_cancelled_as_its_message_comes_hands_it_on(self) -> None:
        async def program(world: SimWorld) -> bytes:
            if world.name == "0":
                await world.peer("1").send("x", b"m1")
                return b""

            async def impatient() -> None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(1.0):
                        await world.receive("x")

            async with asyncio.TaskGroup() as group:
                first = group.create_task(impatient())
                second = group.create_task(world.receive("x"))
            return second.result().head if first.done() else b""

        assert run(network(self.SECOND), program)["1"] == b"m1"

    def test_two_cancelled_at_once_keep_the_order(self) -> None:
        async def program(world: SimWorld) -> list[bytes]:
            if world.name == "0":
                await world.peer("1").send("x", b"m1")
                await world.peer("1").send("x", b"m2")
                return []
            receives = [asyncio.ensure_future(world.receive("x")) for _ in range(2)]
            await world.sleep(0.5)
            for receive in receives:  # when both messages have come and neither receive has run
                world.simulation.loop.call_at(1.0, receive.cancel)
            await asyncio.wait(receives)
            assert all(receive.cancelled() for receive in receives)
            return [(await world.receive("x")).head for _ in range(2)]

        assert run(network(self.SECOND), program)["1"] == [b"m1", b"m2"]

    def test_a_woken_receive_that_is_cancelled_loses_nothing(self) -> None:
        async def program(world: SimWorld) -> list[bytes]:
            if world.name == "1":
                await world.peer("0").send("x", b"m1")
                await world.peer("0").send("x", b"m2")
                return []
            waiting = asyncio.ensure_future(world.receive("x"))
            await world.sleep(1)
            got = asyncio.ensure_future(world.receive("x"))
            waiting.cancel()
            await asyncio.wait([waiting])
            return [(await got).head, (await world.receive("x")).head]

        assert sorted(run(network(self.SECOND), program)["0"]) == [b"m1", b"m2"]

    def test_an_isolated_node_stalls_whatever_the_weather_elsewhere(self) -> None:
        apart = network('[[node]]\nnames = ["a", "b", "c"]\n[[link]]\nbetween = ["a", "b"]\nup_s = 3\ndown_s = 1')

        async def sends(world: SimWorld) -> None:
            if world.name == "a":
                await world.peer("c").send("x")

        async def waits(world: SimWorld) -> None:
            if world.name == "a":
                await world.peer("c").wait_until(reachable=True)

        for program in (sends, waits):
            with pytest.raises(Stalled):
                run(apart, program)

    def test_noticing_keeps_nothing_alive(self) -> None:
        many = network(
            'hubs = ["h"]\n[[node]]\ncount = 60\n'
            '[[link]]\nbetween = ["*", "h"]\nlatency_ms = 300\nup_s = 20\ndown_s = 5'
        )

        async def program(world: SimWorld) -> None:
            for name in world.peer_names[:3]:
                assert world.peer(name).reachable in (True, False)
            await world.sleep(30)
            await world.receive("never")

        simulation = Simulation(many)
        with pytest.raises(Stalled):
            simulation.run(program)
        assert simulation.now < 31

    def test_reach_does_not_depend_on_having_looked(self) -> None:
        async def program(world: SimWorld) -> list[bool]:
            peer = world.peer("1" if world.name == "0" else "0")
            if world.name == "0":
                assert peer.reachable
            seen = []
            for when in (5.1, 6.1, 20.02, 20.1):
                await world.sleep(when - world.now)
                seen.append(peer.reachable)
            return seen

        assert run(network(PAIR + "outages = [[5, 20]]"), program) == {
            "0": [True, False, False, True],
            "1": [True, False, False, True],
        }

    def test_tasks_left_behind_are_ended(self) -> None:
        ended: list[str] = []

        async def left_behind(world: SimWorld) -> None:
            try:
                await world.sleep(1000)
            finally:
                ended.append(world.name)

        kept: list[asyncio.Task[None]] = []

        async def loose(world: SimWorld) -> None:
            kept.append(asyncio.ensure_future(left_behind(world)))
            await world.sleep(1)

        run(network(PAIR), loose)
        assert sorted(ended) == ["0", "1"]

    def test_sleeping_for_ever_is_not_living(self) -> None:
        async def program(world: SimWorld) -> None:
            await world.sleep(float("inf"))

        with pytest.raises(Stalled, match="0: is in"):
            run(network(PAIR), program)

    def test_many_unread_messages_of_another_cost_little(self) -> None:
        async def program(world: SimWorld) -> float:
            if world.name == "0":
                for _ in range(4000):
                    await world.peer("2").receive("x")
                return time.perf_counter()
            if world.name in "12":
                for _ in range(4000):
                    await world.peer("0").send("x")
            return 0.0

        began = time.perf_counter()
        run(network(STAR), program)
        assert time.perf_counter() - began < 5

    def test_cancelled_timers_are_thrown_out(self) -> None:
        async def program(world: SimWorld) -> int:
            for _ in range(5000):
                async with asyncio.timeout(1e6):
                    await world.sleep(0.001)
            return len(world.simulation.loop._timers)

        assert max(run(network(PAIR), program).values()) < 2500

    def test_a_message_is_gone_once_it_was_received(self) -> None:
        """Megabytes must not wait for the garbage collector, which counts objects and not bytes."""
        big = network(PAIR.replace("rate_mbps = 10", "rate_mbps = 10000"))

        async def program(world: SimWorld) -> int:
            for _ in range(200):
                if world.name == "0":
                    await world.peer("1").send("x", b"", bytearray(5_000_000))
                else:
                    await world.receive("x")
            return _resident_bytes()

        before = _resident_bytes()
        assert max(run(big, program).values()) - before < 200_000_000


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

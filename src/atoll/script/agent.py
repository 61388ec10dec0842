"""The per-node agent of a script: the world in its thread, the strategy, and the model as the strategy sees it."""

import asyncio
import contextlib
import json
from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

from torch import nn
from torch.optim import Optimizer

from atoll.errors import AtollError, CheckpointError
from atoll.script.launch import Launch, parse_for_script
from atoll.script.lines import say
from atoll.script.loader import Present
from atoll.script.replica import ScriptReplica
from atoll.script.stages import Batch, Stages
from atoll.state import Saved, section, under
from atoll.strategies import Quantity, Talk, parse_strategy
from atoll.trace import Computed, Tested, TrainingStarted, finite_measure
from atoll.vectors import CPU, Vector, bytes_of, of_bytes
from atoll.world.base import Lane
from atoll.world.live.thread import WorldThread

__all__ = ["NO_TARGET", "Agent", "StepNews"]

FIRST_MODEL = "first model"
FIRST_MODEL_S = 120.0
NO_TARGET = 1e9
LARGE_BYTES = 1 << 28
"""Strategies that need more memory than that say so."""


class StepNews(NamedTuple):
    """What all processes of a node must know after a step."""

    changed: bool = False
    """Whether a strategy has changed the model."""
    remembers_anew: bool = False
    """Whether the optimiser received the state of another node's."""
    present: Present = Present(0, 1)
    """This node's rank among the present nodes, and their number."""
    batch_factor: float = 1.0
    """The factor of the batch size."""
    global_step: int = 0
    """How many steps the model has had."""


class Agent:
    """The agent of one node."""

    def __init__(self, launch: Launch, strategy: str, target: float, *, rising: bool) -> None:
        self._target, self._rising = target, rising
        self._task = launch.task
        self._thread = WorldThread(partial(launch.open_world, strategy))
        self.world = self._thread.world
        self.strategy = str(launch.strategy or self.world.host.registry.card.get("strategy") or strategy)
        try:
            parse_for_script(self.strategy)
        except AtollError:
            self._thread.close()
            raise
        self._replica: ScriptReplica | None = None
        self._stages: Stages | None = None
        self._talk = Talk()

    @property
    def name(self) -> str:
        return self.world.name

    @property
    def steps(self) -> int:
        if self._stages:
            return self._stages.steps
        return self._replica.steps if self._replica else 0

    @property
    def global_step(self) -> int:
        return self._replica.global_step if self._replica else self.steps

    @property
    def members(self) -> tuple[str, ...]:
        """The nodes that are present now."""
        if self._replica is None:
            here = {name for name in self.world.peer_names if self.world.peer(name).reachable}
            return tuple(name for name in self.world.names if name in here or name == self.name)
        return self._replica.group.view.members

    @property
    def present(self) -> Present:
        if self._stages:  # an island shares data as one node
            return Present(*self._stages.place)
        members = self.members
        return Present(members.index(self.name), len(members))

    @cached_property
    def uses_gradients(self) -> bool:
        return parse_strategy(self.strategy).uses_gradients

    def news(self) -> "StepNews":
        """The changes since the last call."""
        replica = self._replica
        if replica is None:
            return StepNews(present=self.present)
        told = StepNews(
            replica.changed, replica.remembers_anew, self.present, replica.batch_factor, replica.global_step
        )
        replica.changed = replica.remembers_anew = False
        return told

    def memory(self) -> Saved:
        """The state of the optimiser."""
        assert self._replica is not None
        return self._replica.memory()

    def begin(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
        replica = ScriptReplica(self.world, self.world.names, model, optimizers, in_script=self._thread.in_caller)
        self.world.helpers.around = replica.streams.beside
        self._refuse_another_size(replica.size)
        self._thread.call(self._begin(replica))
        self._replica = replica
        self._thread.step_begins()

    def _refuse_another_size(self, size: int) -> None:
        card = self.world.host.registry.card
        if card.setdefault("parameters", size) not in {0, size}:
            told = f"the model has {size} values here and {card['parameters']} in the run"
            raise AtollError(f"{told}: run the same script with the same arguments on all nodes")
        card["parameters"] = size  # for nodes that join

    def hold(self, model: nn.Module, optimizer: Optimizer, example_batch: Batch, **more: Any) -> Stages:
        """Trains a part of a model that several nodes hold together."""
        self._refuse_another_size(sum(each.numel() for each in model.parameters()))
        self._stages = Stages(
            self._thread, self.strategy, model, optimizer, example_batch, started=self._started, **more
        )
        return self._stages

    def computed(self) -> None:
        """Records that the computation of a step is done."""
        since, at = self._thread.rest_of_step()
        self.world.record(Computed(at=at, node=self.name, since=since, steps=1))

    def gradient_is_there(self) -> None:
        self.computed()
        if self.uses_gradients:
            self._thread.call(self._talk.after_gradient())

    def step_is_done(self, samples: int, *, stepped: bool) -> None:
        assert self._replica is not None
        if stepped:
            self._replica.stepped(samples)
            if not self._talk.is_idle:
                self._thread.call(self._talk.after_step())
        self._thread.step_begins()

    def _started(self, parameters: int) -> TrainingStarted:
        return TrainingStarted(
            at=max(0.0, self.world.now),
            task=self._task,
            strategy=self.strategy,
            role="strategy",
            shards="own",
            target=self._target,
            rising=self._rising,
            parameters=parameters,
        )

    def measured(self, value: float) -> None:
        world = self.world
        measure = finite_measure(value, rising=self._rising)
        world.record(
            Tested(at=world.now, node=world.name, steps=self.steps, measure=measure, sent_bytes=world.sent_bytes)
        )

    def save(self) -> Saved:
        return under("stages", self._stages.save()) if self._stages else self._thread.call(self._save())

    def load(self, saved: Saved) -> None:
        if self._stages:
            self._stages.load(section("stages", saved))
        else:
            self._thread.call(self._load(saved))

    def close(self) -> None:
        if self._stages:
            with contextlib.suppress(AtollError):  # failures were reported before
                self._stages.close()
        self._thread.close()

    # In the world's thread ---

    async def _begin(self, replica: ScriptReplica) -> None:
        world = self.world
        replica.streams.enter()
        if not world.is_late and len(world.names) > 1:
            await self._take_first_model(replica)
        talk = self._talk = parse_strategy(self.strategy).start(replica)
        if (more := talk.memory_bytes) > LARGE_BYTES:
            say(
                "%s: %.0f M parameters; %s needs about %.1f GB beyond training (%.1f times the weights in float32)",
                *(world.name, replica.size / 1e6, self.strategy, more / 1e9, more / 4 / replica.size),
            )
        await replica.touch(talk.prepare)
        self._talk.start(self._thread.spawn)
        if world.name == world.names[0] or world.is_late:
            world.record(self._started(replica.size))

    async def _take_first_model(self, replica: ScriptReplica) -> None:
        """Takes the model of the first node, so that nodes that begin together begin with the same model."""
        world, first, size, most = self.world, self.world.names[0], replica.size, replica.block_values
        spans = [slice(start, min(start + most, size)) for start in range(0, size, most)]
        if world.name == first:
            blocks = await replica.touch(lambda: replica.read_blocks(spans))
            bodies = [await world.offload(partial(_on_host, each), values=len(each)) for each in blocks]
            for name in world.peer_names:
                self._thread.spawn(self._give_first_model(name, size, bodies))
            return
        theirs: list[Vector] = []
        while sum(map(len, theirs)) < size:
            try:
                async with asyncio.timeout(FIRST_MODEL_S):
                    message = await world.peer(first).receive(FIRST_MODEL)
            except TimeoutError:
                told = f"{first}, whose model all nodes begin with, sent no part of it for {FIRST_MODEL_S:.0f} s"
                raise AtollError(told) from None
            there = json.loads(message.head)
            if there != size or len(message.body) != 4 * (spans[len(theirs)].stop - spans[len(theirs)].start):
                here = f"the model has {size} values here and {there} on {first}"
                raise AtollError(f"{here}: run the same script on all nodes")
            read = partial(of_bytes, message.body, device=replica.device)
            theirs.append(await world.offload(read, values=most))

        def write() -> None:
            for span, values in zip(spans, theirs, strict=True):
                replica.write(Quantity.PARAMETERS, values, span)

        await replica.touch(write)

    async def _give_first_model(self, name: str, size: int, bodies: list[memoryview]) -> None:
        for body in bodies:
            await self.world.peer(name).send(FIRST_MODEL, json.dumps(size).encode(), body, lane=Lane.BULK)

    async def _save(self) -> Saved:
        if self._replica is None:
            raise CheckpointError("run.checkpoint: call run.wrap first, so that there is a state to save")
        await self._talk.settle()
        told = under("talk", self._talk.save())  # at once: what is agreed on from now on is in neither
        return {**under("replica", await self._replica.touch(self._replica.save)), **told}

    async def _load(self, saved: Saved) -> None:
        assert self._replica is not None
        replica = self._replica
        await replica.touch(lambda: replica.load(section("replica", saved)))
        self._talk.load(section("talk", saved))


def _on_host(values: Vector) -> memoryview:
    """The bytes of a vector, in the host's ordinary memory."""
    return bytes_of(values.to(CPU))

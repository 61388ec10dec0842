"""The layers that a node has, and how it comes by others: from who uses them, from who did, or from a checkpoint."""

import asyncio
import json
from collections.abc import Callable, Iterable, Sequence

import safetensors.torch
from torch import Tensor

from atoll.errors import CheckpointError
from atoll.island import read_tensors
from atoll.train.lesson import Lesson
from atoll.train.node import Background
from atoll.train.span import Held, Layers, fill, layers_in, tensors_of, updates_in
from atoll.world.base import Lane, Message, World
from atoll.world.hearing import hear

__all__ = ["Stock"]

ASK_AGAIN_S = 5.0
"""How long a request for layers may take to leave before the next node is asked."""


class Stock:
    """A node's layers.

    Args:
        hall: where nodes ask each other.
        lesson: what is learned.
    """

    def __init__(self, hall: World, lesson: Lesson) -> None:
        self._hall = hall
        self._lesson = lesson
        self._requests = 0
        self.used: Layers = {}
        """What its stage is made of."""
        self._before: dict[int, Held] = {}
        """What it was made of before, for those who ask."""
        self._shelf: dict[str, Tensor] = {}
        """What a checkpoint has: for when nobody has anything newer."""

    def start(self, background: Background) -> None:
        background(hear(self._hall, "give", lambda message: self._asked(message, background)))

    @property
    def here(self) -> dict[int, Held]:
        return {**self._before, **self.used}

    @property
    def held(self) -> list[int]:
        return sorted(self.here)

    @property
    def shelved(self) -> dict[int, int]:
        """Layers that a checkpoint has, and how many updates they had had by then."""
        return {layer: updates_in(self._shelf, layer) for layer in layers_in(self._shelf)}

    def use(self, layers: Layers) -> None:
        self._before = {layer: held for layer, held in self.here.items() if layer not in layers}
        self.used = dict(layers)

    def pack(self) -> bytes:
        """All that it uses, for a checkpoint."""
        return safetensors.torch.save(tensors_of(self.used))

    def shelve(self, packed: bytes | memoryview) -> None:
        """What a checkpoint has is there to be used if nobody has anything newer."""
        self._shelf = read_tensors(packed)

    def build(self, layers: Iterable[int]) -> dict[int, Held]:
        """Layers as they are at first."""
        chain = self._lesson.build()
        built = {}
        for layer in layers:
            parameters = list(chain[layer].parameters())
            built[layer] = Held(chain[layer], self._lesson.optimizer(parameters) if parameters else None)
        return built

    def take_from_shelf(self) -> None:
        """What the checkpoint has is what this node has."""
        layers = self.build(self.shelved)
        if not fill(layers, self._shelf):
            raise CheckpointError("the checkpoint's layers are not those of this model")
        self._shelf = {}
        self.use(layers)

    async def fetch(self, wanted: Iterable[int], sources: Callable[[int], Sequence[str]]) -> dict[int, Held]:
        """Layers, as they are now: own ones, and what others know of the rest.

        Args:
            wanted: which ones.
            sources: who may be asked for a layer, the best first.
        """
        wanted, here = list(wanted), self.here
        built = self.build(layer for layer in wanted if layer not in here)
        missing: dict[tuple[str, ...], list[int]] = {}
        for layer, held in built.items():
            if held.module.state_dict() and (names := tuple(sources(layer))):
                missing.setdefault(names, []).append(layer)
        for names, layers in missing.items():
            await self._from_any(names, {layer: built[layer] for layer in layers})
        return {layer: here[layer] if layer in here else built[layer] for layer in wanted}

    async def _from_any(self, names: Sequence[str], layers: Layers) -> None:
        for name in names:
            if name == self._hall.name:
                if fill(layers, self._shelf):
                    return
            elif await self._ask(name, layers):
                return

    async def _ask(self, name: str, layers: Layers) -> bool:
        """Asks a node for layers, and fills them with what it answers; `False` if it has none or cannot be reached."""
        self._requests += 1
        token = f"{self._hall.name} {self._hall.now:g} {self._requests}"
        peer = self._hall.peer(name)
        head = json.dumps({"layers": list(layers), "token": token}).encode()
        try:
            async with asyncio.timeout(ASK_AGAIN_S):
                await peer.send("give", head, lane=Lane.CONTROL)
        except TimeoutError:
            return False
        answer = asyncio.create_task(peer.receive(f"given {token}"))
        lost = asyncio.create_task(peer.wait_until(reachable=False))
        try:
            await asyncio.wait({answer, lost}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                return False
            try:
                return fill(layers, read_tensors(answer.result().body))
            except ValueError:
                return False
        finally:
            answer.cancel()
            lost.cancel()

    def _asked(self, message: Message, background: Background) -> None:
        asked = json.loads(message.head)
        background(self._give(message.sender, f"given {asked['token']}", [int(layer) for layer in asked["layers"]]))

    async def _give(self, name: str, channel: str, layers: Sequence[int]) -> None:
        body = await self._hall.aside(lambda: safetensors.torch.save(self._known(layers)))
        await self._hall.peer(name).send(channel, b"", body, lane=Lane.BULK)

    def _known(self, layers: Sequence[int]) -> dict[str, Tensor]:
        """What is known of layers here: as they are, as a checkpoint has them, or as they are at first."""
        here, shelved = self.here, self.shelved
        found = tensors_of({layer: here[layer] for layer in layers if layer in here})
        for layer in layers:
            if layer not in here and layer in shelved:
                found |= {key: value for key, value in self._shelf.items() if key.startswith(f"{layer}/")}
        rest = [layer for layer in layers if layer not in here and layer not in shelved]
        if rest and not self._lesson.alike:
            chain = self._lesson.build()
            found |= tensors_of({layer: Held(chain[layer], None) for layer in rest})
        return found

"""A node's layers, and where it gets others: from nodes that use them, from nodes that did, or from a checkpoint."""

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Sequence

import safetensors.torch
from torch import Tensor

from atoll.errors import AtollError, CheckpointError
from atoll.islands import read_tensors
from atoll.islands.curriculum import Curriculum
from atoll.islands.span import Held, Layers, fill, layers_in, tensors_of, updates_in
from atoll.training.drive import Background
from atoll.world.base import Lane, Message, World
from atoll.world.hearing import NOT_UNDERSTOOD, hear

__all__ = ["LayerStore"]

log = logging.getLogger("atoll")

ASK_AGAIN_S = 5.0
"""How long sending a request for layers may take before the next node is asked."""
TRIES, BETWEEN_S = 6, 0.5
"""How often all nodes that may have a layer are asked, and the pause in between."""


class LayerStore:
    """A node's layers.

    Args:
        hall: the world in which nodes ask each other.
        curriculum: builds the initial layers.
    """

    def __init__(self, hall: World, curriculum: Curriculum) -> None:
        self._hall = hall
        self._curriculum = curriculum
        self._requests = 0
        self.used: Layers = {}
        """The layers of its stage."""
        self._before: Layers = {}
        """The layers of its previous stage: spares, which others may ask for."""
        self._shelf: dict[str, Tensor] = {}
        """The layers of a checkpoint: spares too."""
        self.giving = 0
        """How many nodes are being sent layers now."""
        self.asked_s = 0.0
        """The time of the last request."""

    def start(self, background: Background) -> None:
        background(hear(self._hall, "give", lambda message: self._asked(message, background)))

    @property
    def held(self) -> list[int]:
        """The layers that it uses."""
        return sorted(self.used)

    @property
    def spare(self) -> dict[int, int]:
        """Older layers, of the previous stage or of a checkpoint, and how many updates they had by then: of use only if
        no node uses them.
        """
        found = {layer: updates_in(self._shelf, layer) for layer in layers_in(self._shelf)}
        for layer, held in self._before.items():
            found[layer] = max(held.updates, found.get(layer, 0))
        return {layer: updates for layer, updates in found.items() if layer not in self.used}

    def use(self, layers: Layers) -> None:
        """Uses other layers, or none; the previous ones are kept until the next call."""
        self._before = {layer: held for layer, held in self.used.items() if layer not in layers}
        self.used = dict(layers)

    def pack(self) -> bytes:
        """All layers in use, for a checkpoint."""
        return safetensors.torch.save(tensors_of(self.used))

    def shelve(self, packed: bytes | memoryview) -> None:
        """Keeps the layers of a checkpoint as spares, in case no node has newer ones."""
        self._shelf = read_tensors(packed)

    def build(self, layers: Iterable[int]) -> dict[int, Held]:
        """Builds layers in their initial state."""
        chain = self._curriculum.build()
        built = {}
        for layer in layers:
            parameters = list(chain[layer].parameters())
            built[layer] = Held(chain[layer], self._curriculum.optimizer(parameters) if parameters else None)
        return built

    def take_from_shelf(self) -> None:
        """Uses the layers of the checkpoint."""
        layers = self.build(layers_in(self._shelf))
        if not fill(layers, self._shelf):
            raise CheckpointError("the checkpoint's layers are not those of this model")
        self._shelf = {}
        self.use(layers)

    async def fetch(self, wanted: Iterable[int], sources: Callable[[int], Sequence[str]]) -> dict[int, Held]:
        """Layers in their current state: those in use here, and the rest from other nodes.

        Args:
            wanted: the layers.
            sources: the nodes to ask for a layer, the best first.
        """
        wanted = list(wanted)
        built = self.build(layer for layer in wanted if layer not in self.used)
        filled = {layer: held for layer, held in built.items() if held.module.state_dict()}
        left = await self._fill(filled, sources, first=not self._curriculum.alike)
        if left:
            log.warning("%s: no node sent layers %s: they begin in their initial state", self._hall.name, left)
        return {layer: self.used[layer] if layer in self.used else built[layer] for layer in wanted}

    async def copy(self, into: Layers, sources: Callable[[int], Sequence[str]]) -> None:
        """Copies all layers, in their current state, into others of the same shapes, which are not trained.

        Raises:
            AtollError: no reachable node has some of them.
        """
        own = [layer for layer in into if layer in self.used]
        tensors = await self._hall.aside(lambda: tensors_of({layer: self.used[layer] for layer in own}))
        fill({layer: into[layer] for layer in own}, tensors)
        rest = {layer: each for layer, each in into.items() if layer not in own and each.module.state_dict()}
        left = await self._fill(rest, sources, first=False)
        if left:
            raise AtollError(f"layers {', '.join(map(str, left))}: no reachable node holds them: try again")

    async def _fill(self, layers: Layers, sources: Callable[[int], Sequence[str]], *, first: bool) -> list[int]:
        """Fills layers with the state that other nodes have; returns the layers for which that failed."""
        left = {layer: names for layer in layers if (names := tuple(sources(layer)))}
        for attempt in range(TRIES):
            if attempt and left:
                await self._hall.sleep(BETWEEN_S)
            for names in dict.fromkeys(left.values()):
                some = [layer for layer, each in left.items() if each == names]
                if await self._from_any(names, {layer: layers[layer] for layer in some}, first=first):
                    left = {layer: each for layer, each in left.items() if layer not in some}
        return sorted(left)

    async def _from_any(self, names: Sequence[str], layers: Layers, *, first: bool) -> bool:
        for name in names:
            if name == self._hall.name:
                if fill(layers, self._known(list(layers), first=False)):
                    return True
            elif await self._ask(name, layers, first=first):
                return True
        return False

    async def _ask(self, name: str, layers: Layers, *, first: bool) -> bool:
        """Asks a node for layers and fills them with its answer; `False` if it has none or cannot be reached."""
        self._requests += 1
        token = f"{self._hall.name} {self._hall.now:g} {self._requests}"
        peer = self._hall.peer(name)
        head = json.dumps({"layers": list(layers), "token": token, "first": first}).encode()
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
            except NOT_UNDERSTOOD:
                return False
        finally:
            answer.cancel()
            lost.cancel()

    def _asked(self, message: Message, background: Background) -> None:
        asked = json.loads(message.head)
        layers = [int(layer) for layer in asked["layers"]]
        channel = f"given {asked['token']}"
        self.asked_s = self._hall.now
        background(self._give(message.sender, channel, layers, first=bool(asked["first"])))

    async def _give(self, name: str, channel: str, layers: Sequence[int], *, first: bool) -> None:
        """Sends the state of layers, unless the node that asked becomes unreachable."""
        body = await self._hall.aside(lambda: safetensors.torch.save(self._known(layers, first=first)))
        peer = self._hall.peer(name)
        sending = asyncio.create_task(peer.send(channel, b"", body, lane=Lane.BULK))
        lost = asyncio.create_task(peer.wait_until(reachable=False))
        self.giving += 1
        try:
            await asyncio.wait({sending, lost}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.giving -= 1
            sending.cancel()
            lost.cancel()

    def _known(self, layers: Sequence[int], *, first: bool) -> dict[str, Tensor]:
        """The state of layers here: current, older, or initial."""
        here = {**self._before, **self.used}
        kept = set(layers_in(self._shelf))
        newer = [
            layer
            for layer in layers
            if layer in kept
            and layer not in self.used
            and (layer not in here or here[layer].updates < updates_in(self._shelf, layer))
        ]
        found = tensors_of({layer: here[layer] for layer in layers if layer in here and layer not in newer})
        for layer in newer:
            found |= {key: value for key, value in self._shelf.items() if key.startswith(f"{layer}/")}
        if first:
            chain = self._curriculum.build()
            rest = [layer for layer in layers if layer not in here and layer not in newer and 0 <= layer < len(chain)]
            found |= tensors_of({layer: Held(chain[layer], None) for layer in rest})
        return found

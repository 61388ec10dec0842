"""A script's part in a run: `atoll.join()`, and what it returns.

The script trains as it always did; Atoll acts in the optimiser's own step hooks.  The world lives in a thread of its
own; while a strategy reads or changes the model the script's thread stands in a hook, so nothing else touches it.
"""

import atexit
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import Any, Self, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from atoll.errors import AtollError, CheckpointError, InvitationError, StrategyError
from atoll.saved import note, part, read_note
from atoll.script.inside import Inside
from atoll.script.launch import Launch, launched
from atoll.script.loader import Present, Shard
from atoll.script.stages import Stages
from atoll.script.voice import NO_TARGET, News, Voice
from atoll.strategy import parse_strategy
from atoll.trace import Event
from atoll.train.checkpoint import read_node, write_node
from atoll.train.member import Card, Machine, Member, take_part
from atoll.train.memory import remember
from atoll.world.live.keys import Invitation, parse_address
from atoll.world.live.world import LiveWorld

__all__ = ["Run", "join", "launch_member"]

M = TypeVar("M", bound=nn.Module)
O = TypeVar("O", bound=Optimizer)  # noqa: E741 - an optimiser


def join(
    strategy: str = "allreduce:every=8",
    *,
    invitation: str | None = None,
    listen: str | None = None,
    target: float | None = None,
    rising: bool = True,
    seed: int = 0,
    seats: int = 16,
    sharded: bool = False,
    out: Path | str | None = None,
) -> "Run":
    """Takes part in a run: the one that the launcher is for (`atoll run`, `atoll node`), the one that an invitation is
    for, or a new one; without any of these the script trains alone.

    Args:
        strategy: how nodes talk, as in `atoll strategies`; what the launcher or the run says goes first.
        invitation: to a run.
        listen: HOST:PORT to be dialled at; without an invitation this begins a run, and `run.invitation` is for others.
        target: what `run.measure` should come to.
        rising: whether it rises towards that (an accuracy) or falls (a loss).
        seed: of the order of the data, the same on all nodes.
        seats: how many machines may take part at one time.
        sharded: under torchrun, whether each process has a part of the model (FSDP2) and speaks for that; it listens at
            its own port then, counted from `listen` on.
        out: a folder for the trace; none if left out.
    """
    parse_strategy(strategy)
    inside = Inside.find()
    launch = launched()
    if launch is None:
        address = parse_address(listen, "listen") if listen else None
        place = Path(out) if out else None
        if sharded and inside:
            invitation = _of_process(invitation, inside) if invitation else None
            address = (address[0], address[1] + inside.rank) if address and address[1] else address
            place = place / str(inside.rank) if place else None
        machine = Machine(data=None, device="cpu", listen=address, public=[], out=place)
        card = Card(task="script", strategy=strategy, seed=seed, seats=seats)
        launch = launch_member(Invitation.parse(invitation) if invitation else card, machine)
    voice = None
    if inside is None or inside.speaks or sharded:
        voice = Voice(launch, strategy, NO_TARGET if target is None else target, rising=rising)
    return Run(launch, voice, inside, sharded=sharded)


def _of_process(invitation: str, inside: Inside) -> str:
    """Every process of a group that is sharded has an invitation of its own."""
    found = invitation.split(",")
    if len(found) != inside.size:
        raise InvitationError(
            f"the run's nodes are groups of {len(found)} processes, and this is one of {inside.size}: "
            f"--nproc-per-node {len(found)}, so that each has the same part of the model"
        )
    return found[inside.rank]


def launch_member(what: Card | Invitation, machine: Machine, watch: Callable[[Event], None] = lambda _: None) -> Launch:
    """A place in a run over real links: in a new one, or in the one that an invitation is for."""
    members: list[Member] = []

    @contextlib.asynccontextmanager
    async def open_world() -> AsyncIterator[LiveWorld]:
        async with take_part(what, machine, watch) as member:
            members.append(member)
            yield member.world

    return Launch(
        open_world=open_world,
        alone=isinstance(what, Card) and machine.listen is None,
        invitation=lambda: str(members[0].invitation) if members else "",
    )


class Run:
    """A script's part in a run.  Made by `atoll.join()`."""

    def __init__(self, launch: Launch, voice: Voice | None, inside: Inside | None, *, sharded: bool) -> None:
        self._launch = launch
        self._voice = voice
        self._inside = inside
        self._sharded = sharded
        facts: dict[str, Any] = {}
        if voice:
            facts = {"name": voice.name, "strategy": voice.strategy, "seed": voice.world.seed}
        if inside:
            facts = inside.tell_once(facts)
        self._invitations = inside.gather(launch.invitation()) if inside and sharded else []
        self.name: str = facts["name"]
        """This node's."""
        self.strategy: str = facts["strategy"]
        """How nodes talk."""
        self.steps = 0
        """The optimiser's, so far."""
        self._seed: int = facts["seed"]
        self._model: nn.Module | None = None
        self._optimizer: Optimizer | None = None
        self._hooks: list[RemovableHandle] = []
        self._shards: list[Shard] = []
        self._samples = 0
        self._news = News()
        atexit.register(self.close)

    # What a script asks ---

    @property
    def members(self) -> tuple[str, ...]:
        """The nodes that are here now; known to the process that speaks for its node."""
        return self._voice.members if self._voice else ()

    @property
    def invitation(self) -> str:
        """For others: `atoll node --join`, or `atoll.join(invitation=…)`.  Empty where nobody can join."""
        if self._invitations:
            return ",".join(self._invitations) if all(self._invitations) else ""
        return self._launch.invitation() if self._voice else ""

    # What a script does ---

    def wrap(self, model: M, optimizer: O) -> tuple[M, O]:
        """Has Atoll act at every step of an optimiser.  Returns what it was given: both are as they were.

        All nodes begin with the same model, that of the first of them, or of those who have been learning for a while.
        """
        if self._model is not None:
            raise AtollError("run.wrap was called before: a run is of one model and one optimiser")
        known = {id(each) for each in model.parameters()}
        if not known >= {id(each) for group in optimizer.param_groups for each in group["params"]}:
            raise StrategyError("run.wrap: the optimiser has parameters that are not the model's")
        self._model, self._optimizer = model, optimizer
        if self._voice:
            self._voice.begin(model, optimizer)
        self._agree(self._tensors)
        self._hooks.append(optimizer.register_step_pre_hook(self._before_step))
        self._hooks.append(optimizer.register_step_post_hook(self._after_step))
        return model, optimizer

    def wrap_stages(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        example_batch: tuple[torch.Tensor, torch.Tensor],
        *,
        loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = nn.functional.cross_entropy,
        islands: str = "auto",
        memory: str | None = None,
        test: tuple[torch.Tensor, torch.Tensor] | None = None,
        measure: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
    ) -> Stages:
        """Has nodes hold the model together: each trains some of its layers, in an island's pipeline (docs/islands.md).
        Who holds what is worked out from what nodes measure, and anew when nodes come and go.

        Args:
            model: takes one tensor and returns one; an `nn.Sequential`, or what `torch.fx` can trace.
            optimizer: of its parameters; each node has one like it for the layers that it holds.
            example_batch: inputs and targets, to measure on.
            loss: of outputs and targets, a mean over a batch.
            islands: `auto`, and settings after a colon, as `auto:weights=predict,recompute`.
            memory: what this node may use, as `8GB`; what is free if left out.
            test: inputs and targets to test on now and then, through the stages.
            measure: what is measured there, of outputs and targets; the loss if left out.
        """
        if self._inside is not None or self._voice is None:
            raise AtollError("run.wrap_stages: a node is one process here: start the script without torchrun")
        if self._model is not None:
            raise AtollError("run.wrap was called before: a run is of one model and one optimiser")
        self._model, self._optimizer = model, optimizer
        return self._voice.hold(
            model, optimizer, example_batch, loss=loss, islands=islands, memory=memory, test=test, measure=measure
        )

    def shard(self, data: Iterable[Any]) -> Iterable[Any]:
        """This node's part of a loader, a dataset, or anything that can be gone through.

        Nodes go through the same order and take turns; who leaves or comes is noticed at the next batch.  A script that
        trains alone gets back what it gave.
        """
        if self._launch.alone and self._inside is None:
            return data
        found = Shard(
            data,
            self._who,
            factor=lambda: self._news.batch_factor,
            seed=self._seed,
            taken=self._took,
            even=self._inside is not None,
        )
        self._shards.append(found)
        return found

    def measure(self, value: float) -> None:
        """Says how good the model is now: an accuracy, a loss, whatever the target is of."""
        if self._voice:
            self._voice.measured(value)

    def checkpoint(self, path: Path | str) -> None:
        """Saves all that this node is: model, optimiser, place in the data, and what its strategy remembers."""
        if self._voice:
            saved = self._voice.save()
            saved["places"] = note([shard.save() for shard in self._shards])
            write_node(self._own(path), saved, self._identity)

    def resume(self, path: Path | str) -> bool:
        """Goes on from a checkpoint, after `wrap` and `shard`; says whether there was one."""
        if not self._own(path).exists():
            return False
        if self._optimizer is None:
            raise CheckpointError("run.resume: call run.wrap and run.shard first, which say what is to go on")
        saved = read_node(self._own(path), self._identity)
        if self._voice:
            self._voice.load(saved)
        else:  # the model is told by who speaks; optimisers are each process's own, and must stay alike
            remember(self._optimizer, part("replica/optimizer", saved))
        steps = saved.get("replica/steps", saved.get("stages/steps"))
        self.steps = int(read_note(steps)) if steps is not None else 0
        for shard, place in zip(self._shards, read_note(saved["places"]), strict=False):
            shard.load(place)
        self._agree(self._tensors)
        return True

    def close(self) -> None:
        """Leaves; the others go on, and so may this script, on its own.  Done by itself when the script ends."""
        atexit.unregister(self.close)
        for hook in self._hooks:
            hook.remove()
        if self._voice:
            self._voice.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _own(self, path: Path | str) -> Path:
        """Where this process saves what it is: each its own file if each has a part of the model."""
        path = Path(path)
        return path.with_name(f"{path.name}.{self._inside.rank}") if self._inside and self._sharded else path

    @property
    def _identity(self) -> dict[str, Any]:
        return {"node": self.name, "strategy": self.strategy}

    # In the optimiser's hooks ---

    def _before_step(self, *_: Any) -> None:
        if self._voice:
            self._voice.gradient_is_there()
        if self._uses_gradients:
            self._agree(self._gradients)

    def _after_step(self, optimizer: Optimizer, *_: Any) -> None:
        found_inf = getattr(optimizer, "found_inf", None)
        stepped = not (isinstance(found_inf, torch.Tensor) and found_inf.item() > 0)  # else nothing has changed
        self.steps += stepped
        if self._voice:
            self._voice.step_is_done(self._samples or 1, stepped=stepped)
        self._samples = 0
        self._agree(self._tensors)

    @cached_property
    def _uses_gradients(self) -> bool:
        used = self._voice is not None and self._voice.uses_gradients
        return self._inside.tell([used])[0] > 0 if self._inside and not self._sharded else used

    def _agree(self, tensors: Callable[[], Iterable[torch.Tensor]]) -> None:
        """The processes of a node learn from the one that speaks who is here, and what has changed."""
        if self._voice:
            self._news = self._voice.news()
        if self._inside is None:
            return
        changed, anew, here, factor = self._news
        told = self._inside.tell([changed, anew, here.rank, here.count, factor])
        self._news = News(bool(told[0]), bool(told[1]), Present(int(told[2]), int(told[3])), told[4])
        if self._sharded:
            return
        if self._news.changed:
            self._inside.copy(tensors())
        if self._news.remembers_anew:
            assert self._optimizer is not None
            memory = self._inside.tell_arrays(self._voice.memory() if self._voice else {})
            if self._voice is None:
                remember(self._optimizer, memory)

    def _tensors(self) -> Iterable[torch.Tensor]:
        assert self._model is not None
        return [*self._model.parameters(), *(each for each in self._model.buffers() if each.is_floating_point())]

    def _gradients(self) -> Iterable[torch.Tensor]:
        assert self._model is not None
        return [each.grad for each in self._model.parameters() if each.grad is not None]

    # For the data ---

    def _who(self) -> Present:
        """The place of this process among all processes of all nodes."""
        if self._voice and self._inside is None:
            return self._voice.present
        inside, here = self._inside, self._news.present
        assert inside is not None
        return Present(here.rank * inside.size + inside.rank, here.count * inside.size)

    def _took(self, examples: int) -> None:
        self._samples += examples * (self._inside.size if self._inside else 1)

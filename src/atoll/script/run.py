"""A script's part in a run: the object that `atoll.join()` returns.

The script trains as before; Atoll acts in the optimiser's step hooks.  The world runs in a thread of its own; while a
strategy reads or changes the model, the script's thread waits in a hook, so nothing else touches the model.
"""

import atexit
import gc
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from atoll.errors import AtollError, CheckpointError, StrategyError
from atoll.script.agent import Agent, StepNews
from atoll.script.inside import Inside
from atoll.script.launch import Launch
from atoll.script.loader import Present, Shard
from atoll.script.optimizers import Optimizers, as_module, with_closure
from atoll.script.signals import Leaving
from atoll.script.stages import Stages
from atoll.state import Saved, note, read_note, section, under
from atoll.strategies import parse_strategy
from atoll.training.checkpoint import read_node, write_node

__all__ = ["Run"]

M = TypeVar("M", bound=nn.Module | Sequence[nn.Module])
O = TypeVar("O")  # noqa: E741 - an optimiser, several, or what wraps one
OF_THE_SPEAKER = ("replica/model/", "replica/world", "talk/")
"""The parts of a checkpoint that only rank 0 of a node needs."""


class Run:
    """A script's part in a run.  Made by `atoll.join()`."""

    def __init__(self, launch: Launch, agent: Agent | None, inside: Inside | None, *, sharded: bool) -> None:
        self._launch = launch
        self._agent = agent
        self._inside = inside
        self._sharded = sharded
        facts: dict[str, Any] = {}
        if agent:
            facts = {"name": agent.name, "strategy": agent.strategy, "seed": agent.world.seed}
        if inside:
            facts = inside.tell_once(facts)
        self._invitations = inside.gather(launch.invitation()) if inside and sharded else []
        self.name: str = facts["name"]
        """This node's name."""
        self.strategy: str = facts["strategy"]
        """The communication strategy."""
        self.steps = 0
        """The optimiser's steps on this node so far; with several optimisers, those of the last one."""
        self._seed: int = facts["seed"]
        self._model: nn.Module | None = None
        self._optimizers: Optimizers | None = None
        self._hooks: list[RemovableHandle] = []
        self._shards: list[Shard] = []
        self._samples = 0
        self._is_computed = False
        self._news = StepNews()
        self._global_step = 0
        self._leaving = Leaving() if agent else None
        self._is_collector_spared = False
        atexit.register(self.close)

    # Queries ---

    @property
    def members(self) -> tuple[str, ...]:
        """The nodes that are present now; known to rank 0 of the node."""
        return self._agent.members if self._agent else ()

    @property
    def global_step(self) -> int:
        """How many steps the model has had: this node's own, and those before the node received it.

        It never decreases, and is about the same on all nodes; schedules should use it.
        """
        return self._agent.global_step if self._agent else self._global_step

    @property
    def invitation(self) -> str:
        """An invitation for others: `atoll node --join`, or `atoll.join(invitation=…)`.  Empty if no node can join."""
        if self._invitations:
            return ",".join(self._invitations) if all(self._invitations) else ""
        return self._launch.invitation() if self._agent else ""

    # Actions ---

    def wrap(self, model: M, optimizer: O, *, scheduler: Any = None) -> tuple[M, O]:
        """Makes Atoll act at every step of an optimiser.  Returns both arguments, unchanged.

        All nodes begin with the same model: that of the first node or, in a run that has begun, that of its nodes.

        Args:
            model: one module, or a list of them, as a generator and a discriminator.
            optimizer: the optimiser of the model's parameters, or a list.  With several, nodes exchange after the steps
                of the last one.  An object that wraps an optimiser (accelerate) works too.
            scheduler: a schedule that advances at every step, or a list: saved and restored with checkpoints, and
                advanced to the run's step when this node receives a model.
        """
        self._refuse_twice()
        module, optimizers = as_module(model), Optimizers(optimizer, scheduler)
        optimizers.refuse_other_parameters(module, "run.wrap")
        if self._uses_gradients:
            optimizers.refuse_gradients(self.strategy)
        self._model, self._optimizers = module, optimizers
        if self._agent:
            self._agent.begin(module, optimizers.all)
        self._agree(self._tensors)
        self._spare_the_collector()
        self._hooks.append(optimizers.last.register_step_pre_hook(self._before_step))
        self._hooks.append(optimizers.last.register_step_post_hook(self._after_step))
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
        scheduler: Any = None,
    ) -> Stages:
        """Makes nodes hold the model together: each trains some of its layers, in an island's pipeline
        (docs/islands.md).  Layers are assigned by measurements, and again when nodes join or leave.

        Args:
            model: takes one tensor and returns one; an `nn.Sequential`, or a model that `torch.fx` can trace.
            optimizer: the optimiser of its parameters; each node makes one like it for its layers.
            example_batch: inputs and targets, for measurements.
            loss: the mean loss of a batch, from outputs and targets.
            islands: `auto`, and settings after a colon, as `auto:weights=predict,recompute`.
            memory: the memory that this node may use, as `8GB`; default: the free memory.
            test: inputs and targets for regular tests, through the stages.
            measure: the measure of a test, from outputs and targets; default: the loss.
            scheduler: a schedule of the optimiser, or a list: saved and restored with checkpoints.
        """
        if self._inside is not None or self._agent is None:
            raise AtollError("run.wrap_stages: a node is one process here: start the script without torchrun")
        self._refuse_twice()
        self._model, self._optimizers = model, Optimizers(optimizer, scheduler)
        own = self._optimizers.last
        return self._agent.hold(
            model, own, example_batch, loss=loss, islands=islands, memory=memory, test=test, measure=measure
        )

    def _spare_the_collector(self) -> None:
        """Python's garbage collector looks at no object that is there now, until the run is closed.  Exchanges make
        objects enough to start it, and torch alone has so many that it would hold up a step for a tenth of a second.
        """
        gc.collect()
        gc.freeze()
        self._is_collector_spared = True

    def _refuse_twice(self) -> None:
        if self._model is not None:
            raise AtollError("run.wrap was called before: pass all models and all optimisers of a run in one call")

    def shard(self, data: Iterable[Any]) -> Iterable[Any]:
        """This node's part of a loader, a dataset, or any iterable.

        Nodes iterate over the same order and take turns; nodes that join or leave count from the next batch on.  A
        script that trains alone gets its data back unchanged.
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
        """Records the measure of the model now: an accuracy, a loss, or whatever the target is for."""
        if self._agent:
            self._agent.measured(value)

    def checkpoint(self, path: Path | str) -> None:
        """Saves this node's whole state: model, optimisers, rates, schedules (those given to `wrap`), position in the
        data, and the strategy's state.
        """
        if self._agent:
            saved = self._agent.save()
            assert self._optimizers is not None
            saved |= under("script", self._optimizers.save())
            saved["places"] = note([shard.save() for shard in self._shards])
            write_node(self._own(path), saved, self._identity)

    def resume(self, path: Path | str) -> bool:
        """Resumes from a checkpoint, after `wrap` and `shard`; returns whether there was one.  It may come from another
        seat or another run.
        """
        if self._optimizers is None:
            raise CheckpointError("run.resume: call run.wrap and run.shard first, so that there is a state to restore")
        own = self._own(path)
        saved = self._read(own)
        if saved is None:
            return False
        try:
            if self._agent:
                self._agent.load(saved)
            else:  # rank 0 broadcasts the model; optimisers belong to each process, and must stay equal
                self._optimizers.remember(section("replica/optimizer", saved))
            self._optimizers.load(section("script", saved))
        except CheckpointError as error:
            raise CheckpointError(f"{own}: {error}") from None
        self.steps, before = (
            next((int(read_note(saved[each])) for each in names if each in saved), 0)
            for names in (["replica/steps", "stages/steps"], ["replica/steps before"])
        )
        self._global_step = self.steps + before
        for shard, place in zip(self._shards, read_note(saved["places"]), strict=False):
            shard.load(place)
        self._agree(partial(self._tensors, all_buffers=True))
        return True

    def _read(self, path: Path) -> Saved | None:
        """Reads a checkpoint, on every process of a node, or on none."""
        inside = self._inside
        if inside is None:
            return read_node(path, self._identity) if path.exists() else None
        if self._sharded:
            found = inside.gather("found" if path.exists() else "")
            if any(found) and not all(found):
                lacking = ", ".join(str(rank) for rank, each in enumerate(found) if not each)
                raise CheckpointError(f"{path}: the files of processes {lacking} are missing; all of a node are needed")
            return read_node(path, self._identity) if all(found) else None
        saved, error = None, ""
        if inside.speaks:
            try:
                saved = read_node(path, self._identity) if path.exists() else None
            except CheckpointError as found_error:
                error = str(found_error)
        is_there, error = inside.tell_once([saved is not None, error])
        if error:
            raise CheckpointError(error)
        if not is_there:
            return None
        told = inside.tell_arrays({key: each for key, each in (saved or {}).items() if _is_for_all(key)})
        return saved or told

    def close(self) -> None:
        """Leaves the run; the others continue, and this script may continue alone.  Called when the script ends."""
        atexit.unregister(self.close)
        if self._leaving:
            self._leaving.close()
        for hook in self._hooks:
            hook.remove()
        if self._is_collector_spared:
            self._is_collector_spared = False
            gc.unfreeze()
        if self._agent:
            self._agent.close()
        if self._inside:
            self._inside.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _own(self, path: Path | str) -> Path:
        """The checkpoint file of this process: each has its own if each has a part of the model."""
        path = Path(path)
        return path.with_name(f"{path.name}.{self._inside.rank}") if self._inside and self._sharded else path

    @property
    def _identity(self) -> dict[str, Any]:
        """The identity that a checkpoint must match; the model's shapes are checked when it is loaded."""
        return {"strategy": self.strategy}

    # In the optimiser's hooks ---

    def _before_step(self, _: Optimizer, args: Any, kwargs: Any) -> tuple[Any, dict[str, Any]] | None:
        with_ours = with_closure(args, kwargs, self._followed)
        if with_ours is None:
            self._gradient_is_there()
        return with_ours if self._uses_gradients else None

    def _followed(self, closure: Callable[..., Any]) -> Callable[..., Any]:
        """A closure that computes gradients, and then handles them before they are used."""
        evaluations = 0

        def evaluate(*args: Any, **kwargs: Any) -> Any:
            nonlocal evaluations
            evaluations += 1
            if evaluations > 1:
                raise StrategyError(
                    f"the optimiser calls its closure several times in a step, and strategy {self.strategy!r} acts on "
                    "gradients once a step: choose one that averages parameters, as allreduce:every=8"
                )
            loss = closure(*args, **kwargs)
            self._gradient_is_there()
            return loss

        return evaluate

    def _gradient_is_there(self) -> None:
        self._is_computed = True
        if self._uses_gradients:
            assert self._optimizers is not None
            self._optimizers.unscale()
        if self._agent:
            self._agent.gradient_is_there()
        if self._uses_gradients:
            self._agree(self._gradients)

    def _after_step(self, optimizer: Optimizer, *_: Any) -> None:
        found_inf = getattr(optimizer, "found_inf", None)
        stepped = not (isinstance(found_inf, torch.Tensor) and found_inf.item() > 0)  # GradScaler skipped the step
        self.steps += stepped
        self._global_step += stepped
        if self._agent:
            if not self._is_computed:  # a closure was used
                self._agent.computed()
            self._agent.step_is_done(self._samples or 1, stepped=stepped)
        self._samples, self._is_computed = 0, False
        self._agree(self._tensors)

    @cached_property
    def _uses_gradients(self) -> bool:
        return parse_strategy(self.strategy).uses_gradients

    def _agree(self, tensors: Callable[[], Iterable[torch.Tensor]]) -> None:
        """Shares news from rank 0 with all processes of a node: the present nodes, and changes of the model."""
        if self._agent:
            self._news = self._agent.news()
        if self._inside:
            changed, anew, here, factor, step = self._news
            told = self._inside.tell([changed, anew, here.rank, here.count, factor, step])
            present = Present(int(told[2]), int(told[3]))
            self._news = StepNews(bool(told[0]), bool(told[1]), present, told[4], int(told[5]))
            if not self._sharded:
                self._follow(tensors)
        if self._optimizers and self._news.global_step > self._global_step:
            self._optimizers.skip(self._news.global_step - self._global_step)
            self._global_step = self._news.global_step

    def _follow(self, tensors: Callable[[], Iterable[torch.Tensor]]) -> None:
        """Copies the changes from rank 0."""
        assert self._inside is not None
        if self._news.changed:
            self._inside.copy(tensors())
        if self._news.remembers_anew:
            assert self._optimizers is not None
            memory = self._inside.tell_arrays(self._agent.memory() if self._agent else {})
            if self._agent is None:
                self._optimizers.remember(memory)

    def _tensors(self, *, all_buffers: bool = False) -> Iterable[torch.Tensor]:
        assert self._model is not None
        buffers = [each for each in self._model.buffers() if all_buffers or each.is_floating_point()]
        return [*self._model.parameters(), *buffers]

    def _gradients(self) -> Iterable[torch.Tensor]:
        assert self._model is not None
        return [each.grad for each in self._model.parameters() if each.grad is not None]

    # For the data ---

    def _who(self) -> Present:
        """The rank of this process among all processes of all nodes, and their number."""
        if self._agent and self._inside is None:
            return self._agent.present
        inside, here = self._inside, self._news.present
        assert inside is not None
        return Present(here.rank * inside.size + inside.rank, here.count * inside.size)

    def _took(self, examples: int) -> None:
        self._samples += examples * (self._inside.size if self._inside else 1)


def _is_for_all(key: str) -> bool:
    return not key.startswith(OF_THE_SPEAKER)

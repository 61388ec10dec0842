"""A script's optimisers and schedules: unwrapped, saved and restored together."""

import inspect
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import LBFGS, Optimizer

from atoll.errors import CheckpointError, StrategyError
from atoll.state import Saved, note, read_note
from atoll.training.optimizer_state import (
    optimizer_settings,
    put_settings,
    readable,
    remember,
    what_is_remembered,
    writable,
)

__all__ = ["Optimizers", "as_module", "with_closure"]

log = logging.getLogger("atoll")


class Optimizers:
    """The optimisers and schedules of a script's model.

    Args:
        given: an optimiser, or several; each torch's own kind, or an object that wraps one (`.optimizer`).
        schedulers: a schedule, or several; `None`: no schedule that Atoll knows of.
    """

    def __init__(self, given: Any, schedulers: Any = None) -> None:
        several = list(given) if isinstance(given, list | tuple) else [given]
        if not several:
            raise StrategyError("run.wrap: expected an optimiser, or a list of them; the list is empty")
        self.all: tuple[Optimizer, ...] = tuple(_unwrapped(each) for each in several)
        if len({id(each) for each in self.all}) < len(self.all):
            raise StrategyError("run.wrap: the same optimiser is there twice: expected each of them once")
        found = list(schedulers) if isinstance(schedulers, list | tuple) else [schedulers]
        self._schedulers: list[Any] = [each for each in found if each is not None]
        for each in self._schedulers:
            if not (hasattr(each, "state_dict") and hasattr(each, "load_state_dict")):
                kind = type(each).__name__
                raise StrategyError(f"run.wrap: scheduler: a {kind} has no state_dict: expected one of torch's kind")

    @property
    def last(self) -> Optimizer:
        """The optimiser at whose steps nodes exchange."""
        return self.all[-1]

    def refuse_other_parameters(self, model: nn.Module, where: str) -> None:
        known = {id(each) for each in model.parameters()}
        if not known >= {id(each) for o in self.all for group in o.param_groups for each in group["params"]}:
            raise StrategyError(f"{where}: the optimiser has parameters that are not the model's")

    def refuse_gradients(self, strategy: str) -> None:
        """Raises if a strategy acts on gradients, which needs one optimiser and one gradient a step."""
        told = f"run.wrap: strategy {strategy!r} acts on the gradients of all parameters, once a step"
        instead = "choose one that averages parameters, as allreduce:every=8"
        if len(self.all) > 1:
            raise StrategyError(f"{told}, and there are {len(self.all)} optimisers: {instead}")
        if isinstance(self.last, LBFGS):
            raise StrategyError(f"{told}, and LBFGS makes several in a step: {instead}")

    def unscale(self) -> None:
        """Divides gradients by `GradScaler`'s scale, which differs between nodes, if the optimiser's step would do that
        itself, as fused ones do.
        """
        for each in self.all:
            scale = getattr(each, "grad_scale", None)
            if isinstance(scale, torch.Tensor):
                gradients = [p.grad for group in each.param_groups for p in group["params"] if p.grad is not None]
                for gradient in gradients:
                    gradient.div_(scale.to(gradient.device))
                each.grad_scale = None  # type: ignore[attr-defined]

    # State ---

    def memory(self) -> Saved:
        return what_is_remembered(*self.all)

    def remember(self, memory: Saved) -> None:
        remember(self.all, memory)

    def save(self) -> Saved:
        """The state besides tensors: rates and other settings, and schedules."""
        states = [
            writable(dict(each.state_dict()), f"run.checkpoint: the state of {type(each).__name__}")
            for each in self._schedulers
        ]
        return {"settings": note(optimizer_settings(self.all)), "schedules": note(states)}

    def load(self, saved: Saved) -> None:
        if "settings" not in saved:  # of an earlier version
            return
        states = read_note(saved["schedules"])
        if len(states) != len(self._schedulers):
            raise CheckpointError(
                f"has {len(states)} schedules, and run.wrap was given {len(self._schedulers)}: "
                "expected the same in run.wrap(…, scheduler=…)"
            )
        put_settings(self.all, read_note(saved["settings"]))
        for each, state in zip(self._schedulers, states, strict=True):
            each.load_state_dict(readable(state))

    def skip(self, steps: int) -> None:
        """Advances schedules by this many steps of other nodes."""
        for each in self._schedulers:
            step = getattr(each, "step", None)
            if step is None:
                continue
            if any(_is_needed(each) for each in inspect.signature(step).parameters.values()):
                log.warning("%s needs arguments at each step, and cannot follow the run's steps", type(each).__name__)
                continue
            for _ in range(steps):
                step()


def _is_needed(parameter: inspect.Parameter) -> bool:
    return parameter.default is parameter.empty and parameter.kind in (
        parameter.POSITIONAL_ONLY,
        parameter.POSITIONAL_OR_KEYWORD,
        parameter.KEYWORD_ONLY,
    )


def _unwrapped(given: Any) -> Optimizer:
    """The optimiser whose steps have hooks: the given object, or the one that it wraps (as in accelerate)."""
    found, seen = given, 0
    while not (isinstance(found, Optimizer) and "_optimizer_step_pre_hooks" in vars(found)):
        found, seen = getattr(found, "optimizer", None), seen + 1
        if found is None or seen > 8:
            kind = type(given).__name__
            raise StrategyError(
                f"run.wrap: a {kind} is no torch.optim.Optimizer and wraps none (it has no .optimizer): "
                "pass the optimiser that it was made from"
            )
    return found


def as_module(model: Any, where: str = "run.wrap") -> nn.Module:
    """One model, or several as one."""
    if isinstance(model, nn.Module):
        return model
    if isinstance(model, list | tuple) and model and all(isinstance(each, nn.Module) for each in model):
        return nn.ModuleList(model)
    kind = "an empty list" if model in ([], ()) else f"a {type(model).__name__}"
    raise StrategyError(f"{where}: expected a torch.nn.Module, or a list of them, not {kind}")


def with_closure(
    args: Sequence[Any], kwargs: dict[str, Any], wrap: Callable[[Callable[[], Any]], Callable[[], Any]]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The arguments of an optimiser's step with another closure; `None` if there is no closure.

    Args:
        args: the positional arguments, the optimiser first, as torch's hooks get them.
        kwargs: the keyword arguments.
        wrap: makes the new closure from the old one.
    """
    if callable(kwargs.get("closure")):
        return tuple(args), {**kwargs, "closure": wrap(kwargs["closure"])}
    if len(args) > 1 and callable(args[1]):
        return (args[0], wrap(args[1]), *args[2:]), kwargs
    return None

"""Copies of a module, with a stand-in for its Trainer, on which steps are tried before training, without a trace."""

import copy
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import cached_property
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lightning_multigrid.host import DummyLogger, LightningModule, Trainer, is_a
from lightning_multigrid.training.trainer.lightning_internals import copy_without_trainer
from lightning_multigrid.training.trainer.torch_internals import forget_hooks

_WITHOUT_EFFECT = "log", "log_dict", "print", "clip_gradients", "toggle_optimizer", "untoggle_optimizer"
_LONG = 1000  # elements; those of longer containers are shared with a copy


def _held_by(value: Any) -> Iterator[Any]:
    """Everything that an object holds, itself included, but for the elements of long containers, and the Trainer."""
    seen, waiting = set(), [value]
    while waiting:
        value = waiting.pop()
        if id(value) in seen or isinstance(value, (type, ModuleType)):
            continue
        seen.add(id(value))
        yield value
        if isinstance(value, (dict, list, tuple, set, deque)):
            if len(value) <= _LONG:
                waiting += value.values() if isinstance(value, dict) else value
        elif not isinstance(value, (Tensor, np.ndarray)):
            attributes = getattr(value, "__dict__", {})
            waiting += (part for name, part in attributes.items() if name not in ("_trainer", "_fabric"))


def _copy(module: LightningModule, copied: Callable[[Tensor], Tensor], memo: dict[int, Any]) -> LightningModule:
    # Arrays are shared, and can't be written to. Elements of containers of over 1000 are shared, and no others.
    for value in _held_by(module):
        if isinstance(value, nn.Parameter):
            memo[id(value)] = nn.Parameter(copied(value.detach()), value.requires_grad)
        elif isinstance(value, Tensor):
            memo[id(value)] = copied(value.detach())
        elif isinstance(value, torch.Generator):
            memo[id(value)] = value.clone_state()
        elif isinstance(value, np.ndarray):
            memo[id(value)] = value.view()
            memo[id(value)].flags.writeable = False
        elif isinstance(value, (dict, list, tuple, set, deque)) and len(value) > _LONG:
            memo[id(value)] = copy.copy(value)
    probe = copy_without_trainer(module, memo)
    forget_hooks(probe)  # they may write to what they have seen where they were made
    return probe


def meta_copy(module: LightningModule) -> LightningModule:
    """Returns a copy whose tensors have shapes but no memory, and which has no Trainer."""
    return _copy(module, lambda tensor: tensor.to("meta"), {}).train()


def working_copy(module: LightningModule, trainer: Trainer) -> LightningModule:
    """Returns a copy that can train for a step: nobody hears what it logs, and its optimizers don't move it.

    It has the module's values, but for parameters of zeros alone, which training has not filled yet. They become a
    ramp, so that what they multiply can be seen, and the places of a table be told apart. `let_go` frees its memory.
    """
    memo: dict[int, Any] = {}
    onlooker = memo[id(trainer)] = _Onlooker(trainer, memo)
    probe = _copy(module, lambda tensor: tensor.clone(), memo)
    for parameter in probe.parameters():
        if parameter.is_floating_point() and parameter.numel() > 1 and not parameter.detach().any():
            inputs = parameter.numel() / len(parameter)  # of a row, as in an initialisation
            with torch.no_grad():
                parameter.copy_(torch.linspace(1, 2, parameter.numel()).view_as(parameter) / inputs**0.5)
    instead: dict[str, Any] = dict.fromkeys(_WITHOUT_EFFECT, _nothing)
    instead["manual_backward"] = _backward
    instead["optimizers"] = lambda use_pl_optimizer=True: _alone(onlooker.optimizers)
    instead["lr_schedulers"] = lambda: _alone([config.scheduler for config in onlooker.lr_scheduler_configs]) or None
    for part in probe.modules():
        if is_a(part, "LightningModule"):
            vars(part).update(instead)
    probe.trainer = onlooker  # type: ignore[assignment]
    return probe


def let_go(probe: LightningModule) -> None:
    """Ends the use of a working copy: what it and its stand-in for the Trainer hold of each other."""
    vars(probe.trainer).clear()


def _nothing(*_: Any, **__: Any) -> None:
    pass


def _backward(loss: Tensor, *arguments: Any, **named: Any) -> None:
    # In a thread of its own, where nothing watches the operations: those of a backward are no part of the step forward.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(loss.backward, *arguments, **named).result()


def _alone(several: list[Any]) -> Any:
    return several[0] if len(several) == 1 else several


def _still(optimizers: list[Any]) -> list[Any]:
    """Lets the steps of optimizers only evaluate their closures, and gives them what Lightning's wrappers have."""
    for optimizer in optimizers:
        optimizer.step = lambda closure=None, **_: closure and closure()
        optimizer.toggle_model = lambda sync_grad=True: nullcontext()
        if not hasattr(optimizer, "optimizer"):
            optimizer.optimizer = optimizer
    return optimizers


class _Onlooker:
    """Answers as a Trainer. Nothing that is set on it, or done to its optimizers, reaches the Trainer or a logger."""

    def __init__(self, trainer: Trainer, memo: dict[int, Any]) -> None:
        self._trainer, self._memo = trainer, memo
        self.loggers = [DummyLogger() for _ in trainer.loggers]
        self.logger = self.loggers[0] if self.loggers else None
        self.save_checkpoint = _nothing

    @cached_property
    def optimizers(self) -> list[Any]:
        return _still(copy.deepcopy(self._trainer.optimizers, self._memo))

    @cached_property
    def lr_scheduler_configs(self) -> list[Any]:
        return copy.deepcopy(self._trainer.lr_scheduler_configs, self._memo)

    def __getattr__(self, name: str) -> Any:
        if "_trainer" not in vars(self):  # let go
            raise AttributeError(name)
        return getattr(self._trainer, name)

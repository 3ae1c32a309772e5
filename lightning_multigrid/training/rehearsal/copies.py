"""Copies of a module, on which steps are tried before training, without a trace."""

import copy
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from lightning_multigrid.host import DummyLogger, LightningDataModule, LightningModule, Trainer
from lightning_multigrid.training.trainer.lightning_internals import copy_without_trainer, told_optimizers
from lightning_multigrid.training.trainer.torch_internals import forget_hooks
from lightning_multigrid.training.trainer.trainer_view import TrainerView, lightning_modules

_LONG = 1000  # elements; those of longer containers are shared with a copy
_LARGE = 2**20  # bytes of the tensors of a dataset or a loader; with more, they are shared with a copy


def held_by(value: Any) -> Iterator[Any]:
    """Everything that an object holds, itself included, but for the elements of long containers, and Trainers."""
    seen, waiting = set(), [value]
    while waiting:
        value = waiting.pop()
        if id(value) in seen or isinstance(value, (type, ModuleType, Trainer, TrainerView)):
            continue
        seen.add(id(value))
        yield value
        if isinstance(value, (dict, list, tuple, set, deque)):
            if len(value) <= _LONG:
                waiting += value.values() if isinstance(value, dict) else value
        elif not isinstance(value, (Tensor, np.ndarray)):
            waiting += getattr(value, "__dict__", {}).values()


class Copies:
    """Makes copies of a module. What it holds is looked for once.

    Arrays are shared with a copy, which can't write to them, and so are the tensors of large datasets and loaders, and
    elements of containers of over 1000. Everything else is the copy's own.
    """

    def __init__(self, module: LightningModule, trainer: Trainer | None = None) -> None:
        self._module, self._trainer = module, trainer
        held = [*held_by(module)]
        own = {id(tensor) for tensor in (*module.parameters(), *module.buffers())}
        self._shared: dict[int, Tensor] = {}
        for value in held:
            if isinstance(value, (Dataset, DataLoader, LightningDataModule)):
                data = [part for part in held_by(value) if isinstance(part, Tensor) and id(part) not in own]
                if sum(tensor.nbytes for tensor in data) > _LARGE:
                    self._shared |= {id(tensor): tensor for tensor in data}
        kinds = Tensor, np.ndarray, torch.Generator, dict, list, tuple, set, deque
        self._held = [value for value in held if isinstance(value, kinds) and id(value) not in self._shared]

    def _copy(self, copied: Callable[[Tensor], Tensor], memo: dict[int, Any]) -> LightningModule:
        memo |= self._shared
        for value in self._held:
            if isinstance(value, nn.Parameter):
                memo[id(value)] = nn.Parameter(copied(value.detach()), value.requires_grad)
            elif isinstance(value, Tensor):
                memo[id(value)] = copied(value.detach())
            elif isinstance(value, torch.Generator):
                memo[id(value)] = value.clone_state()
            elif isinstance(value, np.ndarray):
                memo[id(value)] = value.view()
                memo[id(value)].flags.writeable = False
            elif len(value) > _LONG:
                memo[id(value)] = copy.copy(value)
        probe = copy_without_trainer(self._module, memo)
        forget_hooks(probe)  # they may write to what they have seen where they were made
        return probe

    def on_shapes(self) -> LightningModule:
        """Returns a copy whose tensors have shapes but no memory, and which has no Trainer."""
        return self._copy(lambda tensor: tensor.to("meta"), {}).train().to("meta")

    @contextmanager
    def working(self, losses: list[Tensor]) -> Iterator[LightningModule]:
        """Gives a copy that can train for a step: nobody hears what it logs, and its optimizers don't move it.

        It has the module's values, but for parameters of zeros alone, which training has not filled yet. They become a
        ramp, so that what they multiply can be seen, and the places of a table be told apart. Without a Trainer it has
        shapes only. What `manual_backward` gets goes to `losses`.
        """
        if self._trainer is None:
            yield self.on_shapes()
            return
        memo: dict[int, Any] = {}
        trainer = self._trainer
        view = memo[id(trainer)] = TrainerView(trainer, barebones=True, progress_bar_callback=None)  # it logs nothing
        try:
            probe = self._copy(Tensor.clone, memo)
            _fill(probe)
            vars(view).update(_told(trainer, losses, memo), lightning_module=probe)
            for part in lightning_modules(probe):
                part.trainer = view
            yield probe
        finally:
            vars(view).clear()  # what the copy and its view hold of each other
            memo.clear()


def meta_copy(module: LightningModule) -> LightningModule:
    """Returns a copy whose tensors have shapes but no memory, and which has no Trainer."""
    return Copies(module).on_shapes()


def _told(trainer: Trainer, losses: list[Tensor], memo: dict[int, Any]) -> dict[str, Any]:
    """What a copy's view is told: optimizers of its own that hold still, and loggers that nobody reads."""

    def backward(loss: Tensor, optimizer: Any, *arguments: Any, **named: Any) -> None:
        losses.append(loss.detach())
        # In a thread of its own, where nothing watches the operations: they are no part of the step forward.
        with ThreadPoolExecutor(1) as thread:
            thread.submit(loss.backward, *arguments, **named).result()

    optimizers: list[Any] = []  # those that can't be copied: most steps need none
    schedulers: list[Any] = []
    with suppress(Exception):
        optimizers, schedulers = copy.deepcopy((trainer.optimizers, trainer.lr_scheduler_configs), memo)
    for optimizer in optimizers:
        optimizer.step = lambda closure=None, **_: closure and closure()
        optimizer.toggle_model = lambda sync_grad=True: nullcontext()  # as Lightning's wrappers have it
        if not hasattr(optimizer, "optimizer"):
            optimizer.optimizer = optimizer
    loggers = [DummyLogger() for _ in trainer.loggers]
    return {
        "optimizers": optimizers,
        "lr_scheduler_configs": schedulers,
        "strategy": TrainerView(trainer.strategy, backward=backward, **told_optimizers(optimizers)),
        "loggers": loggers,
        "logger": loggers[0] if loggers else None,
        "save_checkpoint": lambda *_, **__: None,
    }


def _fill(probe: nn.Module) -> None:
    for parameter in probe.parameters():
        if parameter.is_floating_point() and parameter.numel() > 1 and not parameter.detach().any():
            inputs = parameter.numel() / len(parameter)  # of a row, as in an initialisation
            with torch.no_grad():
                parameter.copy_(torch.linspace(1, 2, parameter.numel()).view_as(parameter) / inputs**0.5)

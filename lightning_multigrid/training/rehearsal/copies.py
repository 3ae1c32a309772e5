"""Copies of a module, on which steps are tried before training, without a trace."""

import copy
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from lightning_multigrid.host import DummyLogger, LightningDataModule, LightningModule, Trainer
from lightning_multigrid.training.trainer.lightning_internals import copy_without_trainer, told_optimizers
from lightning_multigrid.training.trainer.torch_internals import forget_hooks
from lightning_multigrid.training.trainer.trainer_view import TrainerView, sees

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


def _data_of(held: list[Any]) -> dict[int, Tensor]:
    """The tensors of large datasets and loaders, by id."""
    data: dict[int, Tensor] = {}
    for value in held:
        if isinstance(value, (Dataset, DataLoader, LightningDataModule)):
            tensors = {id(part): part for part in held_by(value) if isinstance(part, Tensor)}
            if sum(tensor.nbytes for tensor in tensors.values()) > _LARGE:
                data |= tensors
    return data


def _copy(module: LightningModule, copied: Callable[[Tensor], Tensor], memo: dict[int, Any]) -> LightningModule:
    # Arrays are shared, and can't be written to. Elements of containers of over 1000 are shared, and no others.
    held = [*held_by(module)]
    shared = _data_of(held)
    for value in held:
        if id(value) in shared:
            memo[id(value)] = value
        elif isinstance(value, nn.Parameter):
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
    return _copy(module, lambda tensor: tensor.to("meta"), {}).train().to("meta")


@contextmanager
def working_copy(module: LightningModule, trainer: Trainer, losses: list[Any], meta: bool) -> Iterator[LightningModule]:
    """Gives a copy that can train for a step: nobody hears what it logs, and its optimizers don't move it.

    It has the module's values, but for parameters of zeros alone, which training has not filled yet. They become a
    ramp, so that what they multiply can be seen, and the places of a table be told apart. Or, on the meta device, it
    has shapes only. What `manual_backward` gets goes to `losses`.
    """
    memo: dict[int, Any] = {}
    view = memo[id(trainer)] = TrainerView(trainer, barebones=True, progress_bar_callback=None)  # so it logs nothing
    try:
        probe = _copy(module, (lambda tensor: tensor.to("meta")) if meta else Tensor.clone, memo)
        if meta:
            probe.to("meta")  # its own word for its device
        else:
            _fill(probe)

        def backward(loss: Tensor, optimizer: Any, *arguments: Any, **named: Any) -> None:
            losses.append(loss.detach())
            if not meta:
                # In a thread of its own, where nothing watches the operations: they are no part of the step forward.
                with ThreadPoolExecutor(1) as thread:
                    thread.submit(loss.backward, *arguments, **named).result()

        try:
            optimizers, schedulers = copy.deepcopy((trainer.optimizers, trainer.lr_scheduler_configs), memo)
        except Exception:  # they may hold anything, too; most steps need none
            optimizers, schedulers = [], []
        for optimizer in optimizers:
            _hold(optimizer)
        strategy = TrainerView(trainer.strategy, backward=backward, **told_optimizers(optimizers))
        loggers = [DummyLogger() for _ in trainer.loggers]
        vars(view).update(
            lightning_module=probe,
            lr_scheduler_configs=schedulers,
            loggers=loggers,
            logger=loggers[0] if loggers else None,
            optimizers=optimizers,
            save_checkpoint=lambda *_, **__: None,
            strategy=strategy,
        )
        with sees(probe, view):
            yield probe
    finally:
        vars(view).clear()  # what the copy and its view hold of each other
        memo.clear()


def _fill(probe: nn.Module) -> None:
    for parameter in probe.parameters():
        if parameter.is_floating_point() and parameter.numel() > 1 and not parameter.detach().any():
            inputs = parameter.numel() / len(parameter)  # of a row, as in an initialisation
            with torch.no_grad():
                parameter.copy_(torch.linspace(1, 2, parameter.numel()).view_as(parameter) / inputs**0.5)


def _hold(optimizer: Any) -> None:
    """Lets the step of an optimizer only evaluate its closure, and gives it what Lightning's wrappers have."""
    optimizer.step = lambda closure=None, **_: closure and closure()
    optimizer.toggle_model = lambda sync_grad=True: nullcontext()
    if not hasattr(optimizer, "optimizer"):
        optimizer.optimizer = optimizer

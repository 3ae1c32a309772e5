"""Clones of a module, and dry steps on them: for the rehearsal, and for BatchNorm's statistics of the population."""

import copy
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from io import StringIO
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from lightning_multigrid.host import DummyLogger, LightningDataModule, LightningModule, Trainer, is_a
from lightning_multigrid.loading import LONG, held_by
from lightning_multigrid.training.mini_batches import run_step
from lightning_multigrid.training.trainer.lightning_internals import copy_without_trainer, optimizer_overrides


class TrainerView:
    """Answers as a Trainer, or a part of one, but for its overrides. Nothing that is set on it reaches the Trainer."""

    def __init__(self, trainer: Any, **overrides: Any) -> None:
        vars(self).update(overrides, _trainer=trainer)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self).get("_trainer"), name)  # of a copy that is being made there is none


def _clone(module: LightningModule, memo: dict[int, Any]) -> LightningModule:
    """Copies a module, but shares the tensors and arrays of datasets, and the elements of containers of over 1000."""
    # `memo` has replacements for parts, by their `id`. A tensor that was computed is its value.
    held = [*held_by(module, Trainer, TrainerView)]
    own = {id(tensor) for tensor in (*module.parameters(), *module.buffers())}
    data = [value for value in held if isinstance(value, (Dataset, DataLoader, LightningDataModule))]
    shared = {id(part) for part in held_by(data, Trainer, TrainerView) if isinstance(part, (Tensor, np.ndarray))} - own
    for value in held:
        if id(value) in memo:
            continue
        if id(value) in shared:
            memo[id(value)] = value
        elif isinstance(value, nn.Parameter):
            memo[id(value)] = nn.Parameter(value.detach().clone(), value.requires_grad)
        elif isinstance(value, Tensor):
            memo[id(value)] = value.detach().clone()
        elif isinstance(value, torch.Generator):
            memo[id(value)] = value.clone_state()
        elif isinstance(value, (dict, list, tuple, set, deque)) and len(value) > LONG:
            memo[id(value)] = copy.copy(value)
    return copy_without_trainer(module, memo)


@contextmanager
def clone_of(
    module: LightningModule, trainer: Trainer, losses: list[Tensor] | None = None, **overrides: Any
) -> Iterator[LightningModule]:
    """Gives a copy with a view of the Trainer: nobody hears what it logs, and its optimizers don't move it."""
    view = TrainerView(trainer, barebones=True, progress_bar_callback=None)  # it logs nothing
    memo: dict[int, Any] = {id(trainer): view}
    try:
        copied = _clone(module, memo)
        stand_ins = _stand_ins(trainer, [] if losses is None else losses, memo)
        vars(view).update(stand_ins, lightning_module=copied, **overrides)
        for part in copied.modules():
            if is_a(part, "LightningModule"):
                part.trainer = view  # type: ignore[assignment]
        yield copied
    finally:
        vars(view).clear()  # what the copy and its view hold of each other
        memo.clear()


def dry_step(trainer: Trainer, clone: LightningModule, batch: Any, index: int = 1) -> Any:
    """Runs `training_step` of a clone in the precision of training, unheard; many scripts write pictures at index 0."""
    # To compile a graph for each grid would take minutes, and tell nothing.
    eager, precision = torch.compiler.set_stance("force_eager"), trainer.precision_plugin.train_step_context()
    with eager, precision, redirect_stdout(StringIO()):
        return run_step(clone, batch, index)


def fill(clone: nn.Module) -> None:
    """Gives parameters of one number alone many: what they multiply can be seen, and places in a table told apart."""
    for parameter in clone.parameters():
        if not parameter.is_floating_point() or parameter.numel() < 2:
            continue
        with torch.no_grad():
            first = parameter.reshape(-1)[0]
            if (parameter == first).all() and (parameter.ndim > 1 or first == 0):  # gains of a norm stay
                inputs = parameter.numel() / len(parameter)  # of a row, as in an initialisation
                ramp = torch.linspace(1, 2, parameter.numel()).square()  # uneven, so that it is not taken for places
                parameter.copy_(ramp.view_as(parameter) / inputs**0.5)


class _StillOptimizer(Optimizer):
    """Has the groups of an optimizer with the parameters of a copy, and doesn't move them."""

    def __init__(self, optimizer: Any, memo: dict[int, Any]) -> None:
        super().__init__([torch.zeros(())], {})  # there may be none, which torch refuses
        self.param_groups = []
        for group in optimizer.param_groups:
            own = {name: copy.deepcopy(value) for name, value in group.items() if name != "params"}
            parameters = [memo[id(parameter)] for parameter in group["params"] if id(parameter) in memo]
            self.param_groups.append({**own, "params": parameters})
        self.optimizer = self  # as Lightning's wrappers have it

    def step(self, closure: Any = None, **_: Any) -> Any:
        return closure and closure()

    def toggle_model(self, sync_grad: bool = True) -> AbstractContextManager[None]:
        return nullcontext()


def _stand_ins(trainer: Trainer, losses: list[Tensor], memo: dict[int, Any]) -> dict[str, Any]:
    """What a copy's view has instead: optimizers and schedulers that hold still, and loggers that nobody reads."""

    def backward(loss: Tensor, optimizer: Any, *arguments: Any, **named: Any) -> None:
        losses.append(loss.detach())  # what `manual_backward` gets
        # In a thread of its own, where nothing watches the operations: they are not part of the step forward.
        with ThreadPoolExecutor(1) as thread:
            thread.submit(loss.backward, *arguments, **named).result()

    optimizers = [_StillOptimizer(optimizer, memo) for optimizer in trainer.optimizers]
    memo |= {id(optimizer): still for optimizer, still in zip(trainer.optimizers, optimizers, strict=True)}
    schedulers = copy.deepcopy(trainer.lr_scheduler_configs, memo)
    for config in schedulers:
        config.scheduler.step = lambda *_, **__: None  # type: ignore[method-assign]
    loggers = [DummyLogger() for _ in trainer.loggers]
    return {
        "optimizers": optimizers,
        "lr_scheduler_configs": schedulers,
        "strategy": TrainerView(trainer.strategy, backward=backward, **optimizer_overrides(optimizers)),
        "loggers": loggers,
        "logger": loggers[0] if loggers else None,
        "save_checkpoint": lambda *_, **__: None,
    }

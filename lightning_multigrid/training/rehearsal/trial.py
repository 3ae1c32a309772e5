"""A step of a module on a small mini-batch, before training and without a trace, and what is seen of it."""

import contextlib
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from traceback import clear_frames
from typing import Any

import torch
from torch import Tensor, nn

from lightning_multigrid.host import LightningModule, Trainer
from lightning_multigrid.norm import BatchNorm
from lightning_multigrid.positions import Following
from lightning_multigrid.schedule import BatchShape
from lightning_multigrid.training.mini_batches import apart, run_step, sizes_of_clips, tensors_in
from lightning_multigrid.training.rehearsal.batches import Made, arrived, copied
from lightning_multigrid.training.rehearsal.copies import working_copy
from lightning_multigrid.training.rehearsal.counted import Met, TracedValues


@dataclass
class Trial:
    """What was seen of a step on a copy."""

    arrived: Sequence[int] | None = None  # numbers of elements of the clips; None if a hook of the mini-batch failed
    layer: str = ""  # the innermost one that did not return, if there was an error
    error: Exception | None = None
    met: Met = field(default_factory=dict)  # what met the clips without being made of them
    convolved: int = 0  # numbers that all convolutions got
    losses: list[float] = field(default_factory=list)


def try_step(
    step: Callable[[LightningModule, Any, int], Any] | None,
    module: LightningModule,
    trainer: Trainer,
    baseline: BatchShape,
    made: Made,
    grid: BatchShape,
    draw: int = 0,
) -> Trial:
    """Tries the hooks of a mini-batch, and a step, on a new copy of a module.

    So it is a first step, and there is only one copy at a time. `draw` numbers the trials that draw something else.
    Without a step, as of a module that can't be copied, its own hooks are tried.
    """
    trial = Trial()
    losses: list[Tensor] = []
    try:
        with contextlib.ExitStack() as stack:
            replica = module if step is None else stack.enter_context(working_copy(module, trainer, losses))
            with apart(trainer, module.device, seed=draw), torch.no_grad():
                batch = arrived(trainer, replica, made, grid)
            trial.arrived = sizes_of_clips(batch)
            if step is None:
                return trial
            Following(replica, baseline.frames, baseline.size).set_grid(grid.frames, grid.size)
            _note_layers(replica, trial)
            # What is random differs between grids, so that it is not taken for the same table.
            stack.enter_context(apart(trainer, replica.device, seed=grid.frames * grid.size + draw))
            # To compile a graph for each grid would take minutes, and tell nothing.
            stack.enter_context(torch.compiler.set_stance("force_eager"))
            stack.enter_context(trainer.precision_plugin.train_step_context())
            stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
            own = copied(batch)  # a step may write to it
            traced = stack.enter_context(TracedValues(tensors_in(own), lambda: trial.layer))
            returned = step(replica, own, 1)  # many scripts write pictures at mini-batch 0
        trial.met, trial.convolved = traced.met, traced.convolved
        loss = returned.get("loss") if isinstance(returned, Mapping) else returned
        if step is run_step and isinstance(loss, Tensor):
            losses.append(loss.detach())
        trial.losses = [float(loss) for loss in losses if loss.numel() == 1]
    except torch.OutOfMemoryError as error:  # says nothing about a grid
        clear_frames(error.__traceback__)
        raise
    except Exception as error:  # whatever a user's model may raise
        trial.error = error
        clear_frames(error.__traceback__)  # they hold what the step had made
    return trial


def _note_layers(module: nn.Module, trial: Trial) -> None:
    """Notes which layer runs; those that are random, or depend on other clips, get the mode of evaluation."""
    entered: list[str] = []

    def enter(name: str, *_: Any) -> None:
        entered.append(name)
        trial.layer = name

    def leave(*_: Any) -> None:  # a value would replace the output
        entered.pop()
        trial.layer = entered[-1] if entered else ""

    for name, layer in module.named_modules():
        layer.register_forward_pre_hook(partial(enter, name))
        layer.register_forward_hook(leave)
        # What is dropped would change the loss with the number of clips. Layers of all libraries are named so.
        if isinstance(layer, BatchNorm) or ("Drop" in type(layer).__name__ and not any(layer.children())):
            layer.eval()

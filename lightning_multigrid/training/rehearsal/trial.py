"""A step of a module on a small mini-batch, before training and without a trace, and what is seen of it."""

from collections.abc import Mapping, Sequence
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
from lightning_multigrid.training.mini_batches import Made, arrived, copied, tensors_in, without_trace
from lightning_multigrid.training.rehearsal.copies import clone_of, dry_step, fill
from lightning_multigrid.training.rehearsal.counted import Met, TracedValues
from lightning_multigrid.training.trainer.torch_internals import forget_hooks


@dataclass
class Trial:
    """What was seen of a step on a copy."""

    grid: BatchShape  # of the step
    arrived: Sequence[int] | None = None  # numbers of elements of clips and images; None if a hook failed
    layer: str = ""  # the innermost one that did not return, if there was an error
    error: Exception | None = None
    met: Met = field(default_factory=dict)  # what met the clips without being made of them
    convolved: int = 0  # numbers that all convolutions got
    losses: list[float] = field(default_factory=list)
    of_clips: dict[int, list[float]] = field(default_factory=dict)  # the losses of each step, by its clips


def try_step(module: LightningModule, trainer: Trainer, baseline: BatchShape, made: Made, *grids: BatchShape) -> Trial:
    """Tries hooks and steps on a new clone, on one grid after another; returns what was seen of the last one tried."""
    trial = Trial(grids[0])
    if any(made[grid] is None for grid in grids):  # of a `collate_fn` that drops samples: Lightning skips it
        return trial
    losses: list[Tensor] = []
    try:
        with clone_of(module, trainer, losses) as clone:
            forget_hooks(clone)  # they may write to what they have seen where they were made
            fill(clone)
            following = Following(clone, baseline.frames, baseline.size)
            _note_layers(clone, trial)
            for grid in grids:
                trial.grid = grid
                losses.clear()
                with without_trace(trainer, module.device), torch.no_grad():
                    batch = arrived(trainer, clone, made, grid)
                trial.arrived = [tensor.numel() for tensor in tensors_in(batch) if tensor.ndim in (4, 5)]
                following.set_grid(grid.frames, grid.size)
                own = copied(batch)  # a step may write to it
                traced = TracedValues(tensors_in(own), lambda: trial.layer)
                # What is random differs between grids, so that it is not taken for the same table.
                with without_trace(trainer, clone.device, seed=grid.frames * grid.size), traced:
                    returned = dry_step(trainer, clone, own)
                loss = returned.get("loss") if isinstance(returned, Mapping) else returned
                if isinstance(loss, Tensor):
                    losses.append(loss.detach())
                trial.losses = trial.of_clips[grid.clips] = [float(loss) for loss in losses if loss.numel() == 1]
                del returned, loss, batch, own  # and the graph, before the next step makes its own
        trial.met, trial.convolved = traced.met, traced.convolved
    except Exception as error:  # whatever a user's model may raise
        trial.error = error
        clear_frames(error.__traceback__)  # they hold what the step had made
        if isinstance(error, torch.OutOfMemoryError):  # says nothing about a grid
            raise
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

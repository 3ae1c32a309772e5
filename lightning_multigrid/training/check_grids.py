"""Tries a model on grids without computing anything: shapes only, on the meta device."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from lightning_multigrid.lightning import LightningModule
from lightning_multigrid.schedule import BatchShape
from lightning_multigrid.training.lightning_internals import copy_without_trainer
from lightning_multigrid.training.mini_batches import TRIED_CLIPS, first_clips

log = logging.getLogger(__name__)


def meta_copy(module: LightningModule) -> LightningModule:
    """Returns a copy whose parameters and buffers have shapes but no memory."""
    memo: dict[int, Any] = {
        id(parameter): nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)
        for parameter in module.parameters()
    }
    memo.update({id(buffer): buffer.detach().to("meta") for buffer in module.buffers()})
    return copy_without_trainer(module, memo).train()


def _to_meta(batch: Any) -> Any:
    return apply_to_collection(batch, Tensor, lambda tensor: tensor.to("meta"))


def _try(run: Callable[[BatchShape], None], grid: BatchShape, module: nn.Module) -> tuple[str, Exception] | None:
    """Runs a grid; if that fails, returns the name of the innermost layer that did not return, and the error."""
    entered: list[str] = []
    handles = []

    def left(*_: object) -> None:  # a value that a hook returns would replace the layer's output
        entered.pop()

    for name, layer in module.named_modules():
        handles.append(layer.register_forward_pre_hook(lambda *_, name=name: entered.append(name)))
        handles.append(layer.register_forward_hook(left))
    try:
        # To compile a graph for each grid would take minutes, and tell nothing.
        with warnings.catch_warnings(), torch.no_grad(), torch.compiler.set_stance("force_eager"):
            warnings.simplefilter("ignore")
            run(grid)
    except Exception as error:  # whatever a user's model may raise
        return (entered[-1] if entered else ""), error
    finally:
        for handle in handles:
            handle.remove()
    return None


def check_grids(
    module: LightningModule, grids: Sequence[BatchShape], make_batch: Callable[[BatchShape], Any]
) -> dict[BatchShape, float]:
    """Refuses grids that a model cannot take, before the training starts.

    `training_step` is tried first, on mini-batches of `TRIED_CLIPS` clips. Where it fails on the first grid, the
    baseline's (it reads a value, or needs its Trainer), `forward` is tried on the clips. A model that passes neither on
    the baseline's grid can't be tried, and is accepted.

    Returns:
        Multiply-adds of a forward for a clip of each grid (`BatchShape.clip`); empty where they can't be counted.
    """
    try:
        probe = meta_copy(module)
    except Exception as reason:  # modules may hold anything, also what cannot be copied
        log.debug("The grids can't be tried, because the module can't be copied: %s", reason)
        return {}

    def run_step(grid: BatchShape) -> None:
        probe.training_step(_to_meta(make_batch(grid)), 0)

    def run_forward(grid: BatchShape) -> None:
        probe(first_clips(_to_meta(make_batch(grid))))

    for run in (run_step, run_forward):
        failure = _try(run, grids[0], probe)
        if failure is None:
            break
        log.debug("The baseline's grid can't be tried: %s", failure[1])
    else:
        return {}
    flops: dict[BatchShape, float] = {}
    for grid in dict.fromkeys(grid.clip for grid in grids):
        with FlopCounterMode(display=False) as counter:
            failure = _try(run, grid, probe)
        flops[grid] = counter.get_total_flops() / 2 / TRIED_CLIPS  # it counts a multiplication and an addition as two
        if failure is not None:
            layer, error = failure
            where = f"`{layer}` ({type(probe.get_submodule(layer)).__name__})" if layer else "a step"
            raise ValueError(
                f"{type(module).__name__} cannot take clips of {grid.frames} x {grid.size} x {grid.size} (frames x "
                f"height x width): {where} fails with {type(error).__name__}: {str(error).splitlines()[0]}. Use a "
                "global pool, for instance `nn.AdaptiveAvgPool3d(1)`, before the last layer, or give MultigridCallback "
                "`long_cycle` and `short_cycle` factors that keep the clips larger."
            ) from error
    return flops if all(flops.values()) else {}

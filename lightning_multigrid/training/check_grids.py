"""Tries a model on grids without computing anything: shapes only, on the meta device."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from lightning_multigrid.loading import ClipRequest, MultigridLoader, seeded
from lightning_multigrid.schedule import BatchShape

__all__ = ["batch_hook", "batch_maker", "check_grids", "first_clips", "meta_copy"]

_CLIPS = 2  # BatchNorm needs more than one value per channel, which a single clip may not have

log = logging.getLogger(__name__)


def meta_copy(module: LightningModule) -> LightningModule:
    """A copy whose parameters and buffers have shapes but no memory."""
    memo: dict[int, Any] = {
        id(parameter): nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)
        for parameter in module.parameters()
    }
    memo.update({id(buffer): buffer.detach().to("meta") for buffer in module.buffers()})
    return copy.deepcopy(module, memo).train()


def _to_meta(batch: Any) -> Any:
    return apply_to_collection(batch, Tensor, lambda tensor: tensor.to("meta"))


def _try(run: Callable[[BatchShape], None], grid: BatchShape, module: nn.Module) -> tuple[str, Exception] | None:
    """Runs a grid; if it fails, the name of the innermost layer that did not return, and the error."""
    entered: list[str] = []
    handles = []
    for name, layer in module.named_modules():
        handles.append(layer.register_forward_pre_hook(lambda *_, name=name: entered.append(name)))
        handles.append(layer.register_forward_hook(lambda *_: _ignore(entered.pop())))
    try:
        # Compiling a graph for each grid would take minutes, and tell nothing.
        with warnings.catch_warnings(), torch.no_grad(), torch.compiler.set_stance("force_eager"):
            warnings.simplefilter("ignore")
            run(grid)
    except Exception as error:  # whatever a user's model may raise
        return (entered[-1] if entered else ""), error
    finally:
        for handle in handles:
            handle.remove()
    return None


def first_clips(batch: Any) -> Tensor | None:
    """The first tensor of a mini-batch that may be clips, else images."""
    found: list[Tensor] = []
    apply_to_collection(batch, Tensor, found.append)
    return max((tensor for tensor in found if tensor.ndim in (4, 5)), key=lambda tensor: tensor.ndim, default=None)


def _ignore(_: Any) -> None:
    """A forward hook that returns a value would replace the layer's output."""


def check_grids(
    module: LightningModule, grids: Sequence[BatchShape], make_batch: Callable[[BatchShape], Any]
) -> dict[BatchShape, float]:
    """Refuses grids that a model cannot take, before the training starts.

    `training_step` is tried, and where it does more than shapes can show (it reads a value, or needs its trainer),
    `forward` on the clips. A model of which not even the baseline's grid can be tried passes.

    Args:
        module: The module, on any device.
        grids: The baseline's grid, then those of the schedule; their clips are not looked at.
        make_batch: Makes a small mini-batch on a grid, as `training_step` takes it.

    Returns:
        Multiply-adds of a forward for a clip of each grid (`BatchShape.clip`); none where they cannot be counted.

    Raises:
        ValueError: If the baseline's grid works and another one does not.
    """
    try:
        probe = meta_copy(module)
    except Exception as reason:  # modules may hold anything, also what cannot be copied
        log.debug("The grids cannot be tried, because the module cannot be copied: %s", reason)
        return {}

    def run_step(grid: BatchShape) -> None:
        probe.training_step(_to_meta(make_batch(grid)), 0)

    def run_forward(grid: BatchShape) -> None:
        probe(first_clips(_to_meta(make_batch(grid))))

    for run in (run_step, run_forward):
        failure = _try(run, grids[0], probe)
        if failure is None:
            break
        log.debug("The baseline's grid cannot be tried: %s", failure[1])
    else:
        return {}
    flops: dict[BatchShape, float] = {}
    for grid in dict.fromkeys(grid.clip for grid in grids):
        with FlopCounterMode(display=False) as counter:
            failure = _try(run, grid, probe)
        flops[grid] = counter.get_total_flops() / 2 / _CLIPS  # it counts a multiplication and an addition as two
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


def batch_hook(name: str, trainer: Trainer, module: LightningModule) -> Callable[..., Any]:
    """One of the hooks that see a mini-batch: the data module's, if it has one of its own, as Lightning chooses."""
    data = trainer.datamodule  # type: ignore[attr-defined]
    return getattr(data if data is not None and is_overridden(name, data) else module, name)  # type: ignore[no-any-return]


def batch_maker(
    trainer: Trainer,
    module: LightningModule,
    loader: MultigridLoader,
    whole: bool = False,
    transfer: Callable[[Any], Any] = lambda batch: batch,
) -> Callable[[BatchShape], Any]:
    """Makes a mini-batch on a grid, as `training_step` would get it; a small one, unless it is to be whole."""

    def make(grid: BatchShape) -> Any:
        clips = grid.clips if whole else _CLIPS
        with seeded(0):
            batch = loader.dataset[[ClipRequest(0, grid.frames, grid.size, seed=0)] * clips]  # as a worker asks for it
            batch = transfer(batch_hook("on_before_batch_transfer", trainer, module)(batch, 0))
            return batch_hook("on_after_batch_transfer", trainer, module)(batch, 0)

    return make

"""Refuses (`refuse_`) what the multigrid method can't follow in a Lightning script, and says what to do instead."""

from collections.abc import Iterator
from inspect import signature
from typing import Any

import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin

from lightning_multigrid.host import LightningModule, MisconfigurationException, Trainer, callbacks_of, is_a
from lightning_multigrid.norm import BatchNorm, world_size
from lightning_multigrid.schedule import Plan
from lightning_multigrid.training.arguments import Arguments


def refuse_unsupported(trainer: Trainer, module: LightningModule) -> None:
    """Refuses modules and Trainers that multigrid training can't follow in Lightning's loop."""
    for reason in _unsupported(trainer, module):
        raise MisconfigurationException(f"MultigridCallback {reason}")


def _unsupported(trainer: Trainer, module: LightningModule) -> Iterator[str]:
    strategy: Any = trainer.strategy
    if "dataloader_iter" in signature(module.training_step).parameters:
        yield (
            f"needs one mini-batch per training step, but {type(module).__name__} has "
            "`training_step(dataloader_iter)`. Give it `training_step(batch, batch_idx)`."
        )
    if is_a(strategy, "strategies.DeepSpeedStrategy"):
        yield (
            "scales the LR within the `step` of an optimizer, but DeepSpeed steps in an engine of its own. Use "
            "`strategy='fsdp'`, or `strategy='ddp'` if the model fits on one GPU."
        )
    if is_a(strategy, "strategies.ModelParallelStrategy") and (n := strategy.device_mesh["tensor_parallel"].size()) > 1:
        yield (
            f"gives each rank other clips, but with `tensor_parallel_size={n}` several ranks work on the same ones. "
            "Use `ModelParallelStrategy(tensor_parallel_size=1, data_parallel_size=...)`."
        )
    ours = [type(callback).__name__ for callback in trainer.callbacks if isinstance(callback, Arguments)]  # type: ignore[attr-defined]
    if len(ours) > 1:  # of derived classes, as Lightning refuses two that save under one name
        yield (
            f"plans the training, but the Trainer has {' and '.join(f'`{name}`' for name in ours)}. Keep one of them. "
            "To compare two trainings, give each a Trainer of its own."
        )
    for name, instead in (
        ("GradientAccumulationScheduler", "`Trainer(accumulate_grad_batches=...)`"),
        ("StochasticWeightAveraging", "`WeightAveraging` or `EMAWeightAveraging`"),
    ):
        if callbacks_of(trainer, name):
            yield f"plans the optimizer steps, the epochs and the LR, which `{name}` also changes. Use {instead}."
    if every := trainer.reload_dataloaders_every_n_epochs:  # type: ignore[attr-defined]
        yield (
            f"requests the training loader itself. Remove `reload_dataloaders_every_n_epochs={every}` from the Trainer "
            "or remove the callback."
        )


def refuse_layers(module: nn.Module) -> None:
    """Refuses layers whose statistics the callback can't set, and those whose shapes aren't known yet."""
    for name, layer in module.named_modules():
        for reason in _unsupported_layer(name, layer):
            raise MisconfigurationException(f"MultigridCallback {reason}")


def _unsupported_layer(name: str, layer: nn.Module) -> Iterator[str]:
    if "SyncBatchNorm" in type(layer).__name__:  # of torch, Apex, pytorchvideo and detectron2
        yield (
            "sets the clips that share BatchNorm statistics itself, but the model has SyncBatchNorm layers, such as "
            f"`{name}`. Remove `sync_batchnorm=True` from the Trainer, or make them BatchNorm layers."
        )
    if isinstance(layer, BatchNorm) and layer.track_running_stats and layer.momentum is None:
        yield (
            f"moves running statistics by the momentum of a layer, but `{name}` has `momentum=None`, an average over "
            "all mini-batches, of which there are fewer. Give it a momentum, such as 0.1."
        )
    if isinstance(layer, torch.jit.ScriptModule) and layer.original_name.startswith("BatchNorm"):
        yield (
            f"can't set the clips that share statistics in `{name}`, a BatchNorm layer within TorchScript. Train the "
            "model without `torch.jit.script`; `torch.compile` may make it faster."
        )
    # Until its first forward a lazy layer is of another class than then; BatchNorm may have no parameter that waits.
    if isinstance(layer, LazyModuleMixin) and (layer.cls_to_become or layer.has_uninitialized_params()):
        yield (
            f"needs a model whose layers are known when `fit` begins, but `{name}` is a {type(layer).__name__}, which "
            "takes its shape from its first input. Run the model once before, for instance "
            "`model(torch.zeros(2, 3, 16, 112, 112))` with the shape of your clips in `__init__` of the module, or "
            "give the layer its sizes."
        )


def refuse_tables_in_shards(strategy: Any, tables: list[str]) -> None:
    """Refuses tables of positions that a strategy takes out of their modules, by the classes of these modules."""
    if tables and is_a(strategy, "strategies.FSDPStrategy"):
        raise MisconfigurationException(
            f"The positions of {', '.join(dict.fromkeys(tables))} follow the grid of each step, but `FSDPStrategy` "
            "takes these parameters out of their modules. Use `ModelParallelStrategy`, and call `fully_shard` in "
            "`configure_model`."
        )


def refuse_other_plans(plan: Plan) -> None:
    """Refuses ranks that plan other trainings: they would scale the LR differently, or wait for each other for ever."""
    if world_size(plan.world) == 1:  # also of a strategy whose ranks have no group of torch's
        return
    shape, batches = plan.schedule.baseline.shape, plan.baseline_length.batches
    own = f"{plan.clips} clips", f"mini-batches of {shape}", f"epochs of {batches} mini-batches", f"`seed={plan.seed}`"
    ranks: list[Any] = [None] * world_size()
    torch.distributed.all_gather_object(ranks, (*own, f"the schedule\n{plan.schedule}\n"))
    for rank, plans in enumerate(ranks):
        for first, other in zip(ranks[0], plans, strict=True):
            if first != other:
                raise MisconfigurationException(
                    f"MultigridCallback needs one plan on all devices, but rank 0 has {first}, and rank {rank} has "
                    f"{other}. Give all of them the whole dataset, of which each then reads its part, and the same "
                    "`batch_size` and arguments."
                )

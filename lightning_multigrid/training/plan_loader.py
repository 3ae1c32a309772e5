"""The loader of a plan, made of a script's own loader, and what makes it faster."""

import os
from functools import partial
from typing import Any

from torch.utils.data import DataLoader, Subset

from lightning_multigrid.host import Trainer
from lightning_multigrid.loading import (
    ClipDataset,
    FixedClips,
    MultigridLoader,
    MultigridSampler,
    StreamSamples,
    clip_dataset,
    first_indices,
    in_worker,
    order_of,
)
from lightning_multigrid.reports import Loading
from lightning_multigrid.schedule import Plan
from lightning_multigrid.training.arguments import Arguments


def check_parts(arguments: Arguments, dataset: str) -> None:
    """Refuses arguments that say how samples are brought to a grid, for a dataset that does it itself."""
    given = [name for name in ("layout", "clips", "follow", "whole_span") if getattr(arguments, name)]
    if given:
        raise ValueError(
            f"{dataset} brings its samples to a grid itself, in `read_clip`, so "
            f"{' and '.join(f'`{name}`' for name in given)} would have no effect. Leave it out."
        )


def clips_of(arguments: Arguments, script: DataLoader[Any]) -> ClipDataset:
    """The clips of a script's dataset, which can be brought to any grid."""
    dataset = script.dataset
    known = clip_dataset(dataset)
    if known is not None:
        check_parts(arguments, type(dataset).__name__)
    look = partial(in_worker, script, dataset)
    parts = arguments.layout, arguments.clips, arguments.follow, arguments.whole_span
    try:
        return FixedClips(dataset, *parts, look, first_indices(script)) if known is None else known
    except Exception:
        order_of(script, seed=0)(0)  # refuses keys that are not integers, for which the dataset may be made
        raise


def plan_loader(plan: Plan, dataset: ClipDataset, trainer: Trainer, script: DataLoader[Any]) -> MultigridLoader:
    """Returns the loader of a plan's mini-batches on this device, in the order of a script's own loader."""
    in_order = range(plan.clips)  # each pass has the same clips under `overfit_batches`
    order = (lambda number: in_order) if trainer.overfit_batches else order_of(script, plan.seed)  # type: ignore[attr-defined]
    sampler = MultigridSampler(plan, order, rank=trainer.global_rank, script=script.sampler)
    return MultigridLoader(dataset, sampler, script)


def loading_of(loader: MultigridLoader, devices: int) -> Loading:
    """Says what a report is to know of a loader; each device of this machine has such a loader."""
    dataset, plan = loader.clip_dataset, loader.sampler.plan
    ways = [str(getattr(dataset, "ways_out", ""))]
    whole: Any = dataset.dataset if isinstance(dataset, FixedClips) else None
    # On coarse grids, more is read than they need.
    if not (whole is None or isinstance(whole, StreamSamples) or plan.schedule.is_baseline):
        while isinstance(whole, Subset):
            whole = whole.dataset
        ways.append(
            f"`lightning_multigrid.VideoClips` instead of {type(whole).__name__}, or a `read_clip` of its own, so "
            "that only what a grid needs is read (docs/dataset.md)"
        )
    cores = (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1) // devices
    if loader.num_workers < cores:
        ways.append(f"`num_workers={cores}`")
    factor = plan.schedule.epoch_factor
    if factor > 1:
        ways.append(f"`epoch_factor=1`, by which {1 - 1 / factor:.0%} fewer samples are read")
    return Loading(plan, loader.num_workers, [*filter(None, ways)] or ["more cores"])

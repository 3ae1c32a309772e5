"""What the loader and the steps of a plan take, measured before any training; nothing is left changed."""

import time
from collections.abc import Mapping
from dataclasses import replace
from statistics import mean, median
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader

from lightning_multigrid.host import LightningModule, MisconfigurationException, Trainer
from lightning_multigrid.loading import ClipDataset, FixedClips, MultigridLoader, StreamSamples, seeded
from lightning_multigrid.reports import Clock, Verdict
from lightning_multigrid.schedule import LongCycle, Plan, ShortCycle
from lightning_multigrid.training.mini_batches import after_hooks, error_text, run_step, without_trace
from lightning_multigrid.training.plan_loader import loading_of, plan_loader
from lightning_multigrid.training.rehearsal.batches import copied
from lightning_multigrid.training.rehearsal.copies import clone_of
from lightning_multigrid.training.trainer.torch_internals import forget_hooks

_SECONDS = 5.0  # of reading, at least
_STEPS = 4  # the first one does not count
_OFF: dict[str, Any] = {"long_cycle": LongCycle(((1, 1),)), "short_cycle": ShortCycle((1,)), "fine_tuning": False}


def measure(
    plan: Plan,
    dataset: ClipDataset,
    trainer: Trainer,
    module: LightningModule,
    script: DataLoader[Any],
    step: float | None = None,
) -> Verdict:
    """Reads the first mini-batches of a plan, and the baseline's; estimates the training by them, and by its steps.

    `step` is what a step takes, in seconds, if that is known.
    """
    if isinstance(script.dataset, StreamSamples):
        raise ValueError(
            f"`measure` reads mini-batches twice, but {type(script.dataset.stream).__name__} is a stream, which gives "
            "each sample once. Leave it out: `fit` says in its first steps if the loader is the limit."
        )
    loader = plan_loader(plan, dataset, trainer, script)
    baseline = plan_loader(replace(plan, schedule=replace(plan.schedule, **_OFF)), dataset, trainer, script)
    with seeded(0):
        reads = _seconds_of_sample(loader), _seconds_of_sample(baseline)
        # A sample that is read whole takes as long on each grid.
        read, baseline_read = [mean(reads)] * 2 if isinstance(dataset, FixedClips) else reads
        if step is None:
            step = _seconds_of_step(trainer, module, next(iter(baseline)))
    return loading_of(loader, trainer.num_devices).judge(step, read, baseline_read)


def _seconds_of_sample(loader: MultigridLoader) -> float:
    """Returns what all workers together take for a sample, after the first mini-batch of each, if there are more."""
    first, seconds, samples, start = max(1, loader.num_workers), 0.0, 0, time.perf_counter()
    for number, (step, _) in enumerate(zip(loader.sampler.steps, loader, strict=False)):
        if number == first:
            seconds, samples = 0.0, 0
        seconds, samples = seconds + loader.reading, samples + step.shape.clips
        if number >= first and time.perf_counter() - start > _SECONDS:
            break
    return seconds / max(1, samples) / first


def _seconds_of_step(trainer: Trainer, module: LightningModule, read: Any) -> float:
    """Returns what `training_step` and backward take on a mini-batch, on a copy of the module."""
    device, seconds = trainer.strategy.root_device, []
    with clone_of(module, trainer) as replica, without_trace(trainer, device):
        forget_hooks(replica)  # they may write to what they have seen where they were made
        replica.to(device).train()
        clock = Clock(device)
        try:
            for _ in range(_STEPS):
                batch = after_hooks(trainer, replica, copied(read))
                start = clock.now()
                with trainer.precision_plugin.train_step_context():
                    returned = run_step(replica, batch, 1)
                loss = returned.get("loss") if isinstance(returned, Mapping) else returned
                if isinstance(loss, Tensor):  # else the script optimizes by hand
                    loss.backward()  # type: ignore[no-untyped-call]
                end = clock.now()
                clock.wait(end)
                seconds.append(clock.seconds(start, end))
        except Exception as error:  # whatever a user's module may raise
            raise MisconfigurationException(
                f"`measure` runs `training_step` on a copy of {type(module).__name__}, which fails with "
                f"{error_text(error)}. Leave it out: `fit` says in its first steps if the loader is the limit."
            ) from error
    return median(seconds[1:])

"""The plan of a script before its `fit`, made as `fit` makes it, and the time it takes; nothing is left changed."""

import time
import warnings
from collections.abc import Mapping
from dataclasses import replace
from statistics import mean, median
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader

from lightning_multigrid.host import LightningDataModule, LightningModule, MisconfigurationException, Trainer, tell
from lightning_multigrid.loading import ClipDataset, FixedClips, MultigridLoader, StreamSamples, seeded
from lightning_multigrid.reports import Clock, Verdict
from lightning_multigrid.schedule import LongCycle, Plan, ShortCycle
from lightning_multigrid.training.arguments import Arguments
from lightning_multigrid.training.mini_batches import after_hooks, copied, error_text, run_step, without_trace
from lightning_multigrid.training.plan_loader import loading_of, plan_loader
from lightning_multigrid.training.rehearsal.copies import clone_of
from lightning_multigrid.training.run import plan_of
from lightning_multigrid.training.script.recipe import user_loader
from lightning_multigrid.training.script.refusals import refuse_unsupported
from lightning_multigrid.training.told import tell_plan
from lightning_multigrid.training.trainer.changes import Changes
from lightning_multigrid.training.trainer.lightning_internals import attach, replace_loader
from lightning_multigrid.training.trainer.torch_internals import forget_hooks

_Data = DataLoader[Any] | LightningDataModule | None
_SECONDS = 5.0  # of reading, at least
_STEPS = 4  # the first one does not count
_OFF: dict[str, Any] = {"long_cycle": LongCycle(((1, 1),)), "short_cycle": ShortCycle((1,)), "fine_tuning": False}


def plan_ahead(arguments: Arguments, trainer: Trainer, module: LightningModule, data: _Data, measured: bool) -> Plan:
    """Returns the plan of `trainer.fit(module, data)`; says what it does, and if `measured`, what time it takes."""
    with Changes() as changes:
        attach(trainer, module, changes)
        trainer.datamodule = data if isinstance(data, LightningDataModule) else None  # type: ignore[attr-defined]
        refuse_unsupported(trainer, module)
        loader = _training_loader(trainer, module, data, changes)
        replace_loader(trainer, loader, changes)
        make_optimizers(trainer)
        script = user_loader(loader, trainer, arguments.clips_per_epoch)
        world = trainer.num_devices * trainer.num_nodes
        plan, dataset = plan_of(arguments, trainer, module, script, world, seed=arguments.seed or 0)
        tell_plan(arguments, trainer, plan)
        if measured:
            tell(str(measure(plan, dataset, trainer, module, script)))
        return plan


def make_optimizers(trainer: Trainer) -> None:
    """Makes the optimizers and schedulers of the module as `fit` does; it may ask for the length of an epoch."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*(does not have many workers|smaller than the logging interval)")
        trainer.strategy.setup_optimizers(trainer)


def _training_loader(trainer: Trainer, module: LightningModule, data: Any, changes: Changes) -> Any:
    if data is None:
        return module.train_dataloader()
    if not isinstance(data, LightningDataModule):
        return data
    changes.set_attribute(data, "trainer", trainer)
    data.prepare_data()
    data.setup("fit")
    return data.train_dataloader()


def measure(
    plan: Plan,
    dataset: ClipDataset,
    trainer: Trainer,
    module: LightningModule,
    script: DataLoader[Any],
    step: float | None = None,
) -> Verdict:
    """Estimates a training by its first mini-batches, the baseline's, and `step`: the seconds of one, if known."""
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

"""`MultigridCallback.baseline()`: the baseline of a multigrid training, with the same BatchNorm statistics."""

from contextlib import ExitStack
from typing import Any, cast

from torch.utils.data import BatchSampler
from typing_extensions import override

from lightning_multigrid.host import Callback, LightningModule, MisconfigurationException, Trainer
from lightning_multigrid.loading import Follow, length_of
from lightning_multigrid.norm import make_groups, one_at_a_time, sub_batches
from lightning_multigrid.reports import Account
from lightning_multigrid.schedule import Baseline, BatchShape, LongCycle, MultigridSchedule, Place, Plan, ShortCycle
from lightning_multigrid.training.arguments import Arguments, shared_clips
from lightning_multigrid.training.mini_batches import first_clips, tensors_in
from lightning_multigrid.training.parts.evaluation_statistics import EvaluationStatistics, PopulationEstimate
from lightning_multigrid.training.plan_loader import clips_of, plan_loader
from lightning_multigrid.training.script.recipe import plain_batches, read_recipe, user_loader
from lightning_multigrid.training.script.refusals import refuse_synced_batchnorm
from lightning_multigrid.training.trainer import lightning_internals as internals
from lightning_multigrid.training.trainer.changes import Changes


class BaselineCallback(Callback):
    """Gives a plain training the BatchNorm statistics of its multigrid training, and leaves all else alone.

    `sub_batch` clips share statistics, by default those of a mini-batch, but at least 8, if need be of several devices.
    `precise_bn_batches` re-estimates the running ones before validations and checkpoints, and at the end, on clips
    whose order has a `seed`. `layout`, `clips` and `follow` name the parts of a sample for that. See
    `MultigridCallback`, which makes one by `baseline`.
    """

    def __init__(
        self,
        sub_batch: int | None = None,
        precise_bn_batches: int | None = None,
        layout: str | None = None,
        clips: list[str | int] | dict[str | int, str] | None = None,
        follow: dict[str | int, Follow] | None = None,
        seed: int | None = None,
    ) -> None:
        self._arguments = Arguments(
            sub_batch=sub_batch,
            precise_bn_batches=precise_bn_batches,
            layout=layout,
            clips=clips,
            follow=follow,
            seed=seed,
        )
        self._fit: Changes | None = None  # what is undone when a `fit` ends
        self._statistics: EvaluationStatistics | None = None
        self._in_step = ExitStack()  # what is undone when a step ends

    def sub_batch_of(self, clips: int) -> int:
        """How many clips share statistics if a mini-batch has so many on a device."""
        return shared_clips(clips) if self._arguments.sub_batch is None else self._arguments.sub_batch

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":
            refuse_two(trainer)
            self._fit = Changes()
            self._fit.enter_context(one_at_a_time())

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._fit is None:
            return
        refuse_synced_batchnorm(pl_module)
        estimate = None
        if self._arguments.precise_bn_batches is not None:
            script = user_loader(internals.training_source(trainer).dataloader(), trainer)
            dataset = clips_of(self._arguments, script)
            shape = BatchShape(cast("int", script.batch_size), dataset.frames, dataset.size)
            recipe, seed = read_recipe(trainer, script, trainer.world_size), self._arguments.seed
            schedule = MultigridSchedule(
                Baseline(shape, recipe.epochs, stride=dataset.stride),
                LongCycle(((1, 1),)),
                ShortCycle((1,)),
                epoch_factor=1,
                sub_batch=self.sub_batch_of(shape.clips),
            )
            seed = internals.global_seed(trainer) if seed is None else seed
            loader = plan_loader(Plan(schedule, recipe.clips, seed, trainer.world_size), dataset, trainer, script)
            estimate = PopulationEstimate(loader, self._arguments.precise_bn_batches, trainer)
        self._statistics = EvaluationStatistics(trainer, estimate, Account())
        self._statistics.start(self._fit)

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        batches = plain_batches(trainer.train_dataloader)
        if batches is None:  # of several loaders, for instance: then the mini-batch says how many clips it has
            found = first_clips(batch)
            sized = [tensor for tensor in tensors_in(batch) if tensor.ndim] if found is None else [found]
            clips = max(map(len, sized), default=1)
            sub_batch = self.sub_batch_of(clips)
        else:
            clips, sub_batch = _clips(batches, batch_idx), self.sub_batch_of(batches.batch_size)
            if trainer.world_size > 1:
                make_groups([(clips, sub_batch)])
        self._in_step.close()
        self._in_step.enter_context(sub_batches(sub_batch, of=clips, world=trainer.world_size))

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._statistics is not None:  # not when an epoch starts, as a run that resumes within one is not told so
            self._statistics.begin()

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._in_step.close()
        if self._statistics is not None:
            self._statistics.ended(Place(trainer.current_epoch, batch_idx))

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._statistics is not None:
            self._statistics.end()

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._statistics is not None:
            self._statistics.finish()

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._in_step.close()
        if self._fit is not None:
            self._fit.close()
        self._fit = self._statistics = None

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.teardown(trainer, pl_module, "fit")  # which Lightning leaves out then


def refuse_two(trainer: Trainer) -> None:
    """Refuses a second callback of this package's that sets how many clips share BatchNorm statistics."""
    names = [
        "MultigridCallback.baseline()" if isinstance(callback, BaselineCallback) else "MultigridCallback()"
        for callback in trainer.callbacks  # type: ignore[attr-defined]
        if isinstance(callback, (Arguments, BaselineCallback))
    ]
    if len(names) > 1:
        raise MisconfigurationException(
            f"The Trainer has {' and '.join(f'`{name}`' for name in names)}, each of which would set how many clips "
            "share BatchNorm statistics. Keep one of them. To compare two trainings, give each a Trainer of its own."
        )


def _clips(batches: BatchSampler, number: int) -> int:
    """The clips of a device in a mini-batch of the script's loader: the last one may have fewer."""
    length = length_of(batches.sampler)
    return batches.batch_size if length is None else min(batches.batch_size, length - number * batches.batch_size)

"""What a script says: about the baseline (`Recipe`), and about the schedule that it wants (`Options`)."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal, cast

from lightning_utilities.core.rank_zero import rank_zero_warn
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from lightning_multigrid.lightning import LRSchedulerConfig, MisconfigurationException, Trainer
from lightning_multigrid.loading import ClipDataset, FixedClips, SampleParts, clip_dataset, same_loader, stream_loader
from lightning_multigrid.positions import patch_divisors
from lightning_multigrid.schedule import Baseline, BatchShape, LongCycle, LRScaling, MultigridSchedule, ShortCycle
from lightning_multigrid.training.baseline_lr import BaselineEpoch, lr_stages
from lightning_multigrid.training.lightning_internals import splits_data

# Their loaders add states for resuming; the mini-batches are those of a plain `DataLoader`.
_PLAIN_LOADERS = "torchdata.", "litdata."
# How names of classes begin whose LR grows linearly with the batch, such as timm's `SGDW`, bitsandbytes' `SGD8bit` and
# Apex's `FusedSGD`. LARS is among them by its authors (You et al. 2017).
_LINEAR = re.compile("(a|fused)?sgd|lar[sc]", re.IGNORECASE)
_GROWTH = {"linear": "grows with", "sqrt": "grows with the square root of", "none": "is not scaled with"}


@dataclass(frozen=True)
class Recipe:
    """The baseline on one device, as a Lightning script states it."""

    clips: Fraction  # of this rank in an epoch, with the limit of `limit_train_batches` or `overfit_batches`
    available: Fraction  # without that limit; a fraction where the ranks can't share them evenly
    of_rank: int  # of this rank in an epoch of the baseline, where Lightning repeats samples to make the ranks equal
    epoch: BaselineEpoch
    epochs: Fraction
    drop_last: bool

    def planned_clips(self, schedule: MultigridSchedule) -> Fraction:
        """Clips of this rank in an epoch of a schedule."""
        # Under a limit for a quick try, mini-batches are whole all the same.
        least, batch = max(shape.clips for shape in schedule.grids), schedule.baseline.shape.clips
        if not schedule.flat:
            return min(self.available, max(self.clips, Fraction(least)))
        clips = Fraction(min(self.of_rank, max(math.ceil(self.clips), least)))
        # So the clock is at whole mini-batches where the baseline's is.
        return clips // batch * Fraction(batch) if self.drop_last else clips


@dataclass(frozen=True)
class Options:
    """The arguments of `MultigridCallback`."""

    schedule: MultigridSchedule | None
    epoch_factor: float
    long_cycle: LongCycle
    short_cycle: ShortCycle
    sub_batch: int
    size_divisor: int | None
    lr_scaling: LRScaling | Literal["auto"]
    whole_epochs: bool
    milestones: list[float] | None
    warmup_epochs: float | None
    layout: str | None
    clips: Sequence[str | int] | Mapping[str | int, str] | None
    follow: Mapping[str | int, str] | None
    clips_per_epoch: int | None
    validations_per_phase: int | None
    precise_bn_batches: int | None
    seed: int | None
    frames_divisor: int | None
    weight_decay_scaling: Literal["none", "timescale"]
    fine_tuning: bool
    hold_early_stopping: bool

    def __post_init__(self) -> None:
        SampleParts(self.layout, self.clips, self.follow or {})  # refuses bad values where they are written
        for name in ("validations_per_phase", "clips_per_epoch", "precise_bn_batches"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"`{name}` must be at least 1, got {value}. Leave it out for the default.")
        if self.weight_decay_scaling not in ("none", "timescale"):
            raise ValueError(f"`weight_decay_scaling` must be none or timescale, got {self.weight_decay_scaling!r}.")
        # So does a plan for any baseline.
        baseline = Baseline(BatchShape(1, 4, 4), epochs=1)
        shaped = self._plan(baseline, stepwise=True, divisors=(1, 1)) != MultigridSchedule(baseline)
        if self.schedule is not None and (shaped or self.milestones is not None or self.warmup_epochs is not None):
            raise ValueError(
                "`schedule` says everything about the schedule, but arguments that shape an inferred one are given, "
                "too. Give either; `MultigridSchedule` takes the same arguments."
            )

    def _plan(self, baseline: Baseline, stepwise: bool, divisors: tuple[int, int]) -> MultigridSchedule:
        frames, size = divisors
        return MultigridSchedule(
            baseline,
            self.long_cycle,
            self.short_cycle,
            epoch_factor=self.epoch_factor,
            sub_batch=self.sub_batch,
            size_divisor=size if self.size_divisor is None else self.size_divisor,
            frames_divisor=frames if self.frames_divisor is None else self.frames_divisor,
            stepwise=stepwise,
            lr_scaling="linear" if self.lr_scaling == "auto" else self.lr_scaling,
            whole_epochs=self.whole_epochs,
            fine_tuning=self.fine_tuning,
        )

    def clips_of(self, dataset: Dataset[Any]) -> ClipDataset:
        known = clip_dataset(dataset)
        if known is not None and (self.clips or self.follow):
            raise ValueError(
                f"{type(dataset).__name__} brings its samples to a grid itself, in `read_clip`, so `clips` and "
                "`follow` would have no effect. Leave them out."
            )
        return known or FixedClips(dataset, self.layout, self.clips, self.follow)

    def infer_schedule(
        self,
        shape: BatchShape,
        stride: int,
        epoch: BaselineEpoch,
        epochs: Fraction,
        configs: Sequence[LRSchedulerConfig],
        optimizers: Iterable[Optimizer],
        module: nn.Module,
    ) -> MultigridSchedule:
        """Returns the schedule for a baseline: the given one, else one that these options and the model shape."""
        if self.schedule is not None:
            given = self.schedule.baseline
            if (given.shape, given.epochs) != (shape, epochs):
                raise ValueError(
                    f"The schedule is for a baseline of {given.shape} (clips x frames x size) and "
                    f"{float(given.epochs):g} epochs, but the script has one of {shape} and {float(epochs):g} epochs. "
                    "Make them equal, or leave the schedule to be inferred."
                )
            _warn_of_linear_lr(self.schedule, optimizers)
            return self.schedule
        stages = lr_stages(configs, epoch, epochs)
        own = None if self.milestones is None else tuple(self.milestones)
        warmup = stages.warmup_epochs if self.warmup_epochs is None else self.warmup_epochs
        baseline = Baseline(shape, epochs, stages.milestones if own is None else own, stride, warmup)
        schedule = self._plan(baseline, stages.stepwise, patch_divisors(module))
        if self.lr_scaling == "auto" and any(phase.lr_scale > 1 for phase in schedule.phases):
            schedule = replace(schedule, lr_scaling=auto_lr_scaling(optimizers))
        _warn_of_linear_lr(schedule, optimizers)
        return schedule

    def lr_rule(self, schedule: MultigridSchedule, optimizers: Iterable[Optimizer]) -> str:
        if all(phase.shape.clips == schedule.baseline.shape.clips for phase in schedule.phases):
            return "The LR is the baseline's: every base shape has its clips."
        auto = self.schedule is None and self.lr_scaling == "auto"
        names = " and ".join(dict.fromkeys(type(optimizer).__name__ for optimizer in _used(optimizers)))
        why = f"the rule for {names or 'SGD'}" if auto else f"as `lr_scaling={schedule.lr_scaling!r}` says"
        decay = "" if self.weight_decay_scaling == "none" else " The weight decay keeps its timescale in clips."
        return f"The LR {_GROWTH[schedule.lr_scaling]} the clips of the base shape, {why}.{decay}"

    @property
    def epochs_of_try(self) -> Fraction:
        """A length that fits the options, for `fast_dev_run`, where the Trainer's own length is 1."""
        if self.schedule is not None:
            return Fraction(self.schedule.baseline.epochs)
        return Fraction(math.floor(max(0, *(self.milestones or ()), self.warmup_epochs or 0)) + 1)


def auto_lr_scaling(optimizers: Iterable[Optimizer]) -> LRScaling:
    """Returns how the LR of optimizers grows with the clips of a mini-batch; refuses optimizers of both kinds.

    Steps of SGD are as long as the gradient, so the LR grows linearly (Sec. 3.2). Adam and its kin divide their steps
    by the size of past gradients, of which noise is a part that falls with the clips: the LR grows with the square root
    (Malladi et al. 2022, arXiv 2205.10287; LAMB by its authors).
    """
    rules: dict[LRScaling, str] = {}
    for optimizer in _used(optimizers):
        rule, name = _rule_of(optimizer), type(optimizer).__name__
        if rule is None:
            rank_zero_warn(
                f"MultigridCallback doesn't know how the LR of {name} grows with the clips of a mini-batch, and takes "
                "their square root. Give `MultigridCallback(lr_scaling=...)`: linear, sqrt or none."
            )
        rules.setdefault(rule or "sqrt", name)
    if len(rules) > 1:
        raise MisconfigurationException(
            f"The LR of {rules['linear']} grows linearly with the clips of a mini-batch, that of {rules['sqrt']} with "
            "their square root, and a plan has one scale. Give `MultigridCallback(lr_scaling=...)` for both: 'sqrt' is "
            "the careful choice."
        )
    return next(iter(rules), "linear")


def _rule_of(optimizer: Optimizer) -> LRScaling | None:
    if any(_LINEAR.match(kind.__name__) for kind in type(optimizer).__mro__):
        return "linear"
    # Adam, LAMB, Lion, Muon, Adafactor and all others that divide their steps have one of these settings.
    return "sqrt" if {"betas", "eps"} & optimizer.defaults.keys() else None


def _used(optimizers: Iterable[Optimizer]) -> list[Optimizer]:
    return [optimizer for optimizer in optimizers if optimizer.param_groups]  # Lightning's stand-in has no groups


def _warn_of_linear_lr(schedule: MultigridSchedule, optimizers: Iterable[Optimizer]) -> None:
    most = max(phase.lr_scale for phase in schedule.phases)
    others = [type(optimizer).__name__ for optimizer in _used(optimizers) if _rule_of(optimizer) == "sqrt"]
    if schedule.lr_scaling == "linear" and most > 1 and others:
        rank_zero_warn(
            f"The LR of {others[0]} will be multiplied by up to {most:g}, in proportion to the clips of a mini-batch. "
            "This is right for SGD; Adam and its kin lose accuracy or diverge. Leave `lr_scaling` out of "
            "`MultigridCallback`, or give `lr_scaling='sqrt'` to the schedule."
        )


def _clips_of_stream(loader: DataLoader[Any], trainer: Trainer, clips_per_epoch: int | None) -> int:
    """Returns the clips of an epoch on all devices: given, or as Lightning counts the batches of each of them."""
    if clips_per_epoch is not None:
        return clips_per_epoch
    stream, limit, size = loader.dataset, trainer.limit_train_batches, cast("int", loader.batch_size)
    try:
        return len(cast("Sized", stream)) * trainer.world_size
    except (TypeError, NotImplementedError):
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            return 1000 * size * trainer.world_size  # enough for a mini-batch of any shape
        if isinstance(limit, int):
            return limit * size * trainer.world_size
    raise ValueError(
        f"MultigridCallback plans whole epochs, but {type(stream).__name__} does not say how many samples it has. Give "
        "`MultigridCallback(clips_per_epoch=...)`, the clips of an epoch on all devices, or an integer "
        "`limit_train_batches`."
    )


def user_loader(loaders: Any, trainer: Trainer, clips_per_epoch: int | None = None) -> DataLoader[Any]:
    """Returns the user's training loader, over a map-style dataset; refuses one that can't be rebuilt."""
    if not isinstance(loaders, DataLoader):
        raise TypeError(
            f"MultigridCallback needs one `torch.utils.data.DataLoader` for training, got {type(loaders).__name__}. "
            "Combine several datasets with `torch.utils.data.ConcatDataset`."
        )
    if type(loaders).__iter__ is not DataLoader.__iter__ and not type(loaders).__module__.startswith(_PLAIN_LOADERS):
        raise TypeError(
            f"MultigridCallback makes a loader of its own from the training loader, but {type(loaders).__name__} "
            "iterates in its own way, which would be lost. Use a plain `torch.utils.data.DataLoader`, which is all "
            "that exact resuming needs."
        )
    batches = loaders.batch_sampler
    if batches is None:
        raise TypeError(
            "MultigridCallback makes mini-batches out of single clips, but the loader has `batch_size=None`: each "
            f"sample of {type(loaders.dataset).__name__} is a whole mini-batch. Let it return one clip, and give the "
            "`DataLoader` a `batch_size`."
        )
    known = type(batches).__module__.startswith(_PLAIN_LOADERS) or type(batches).__iter__ is BatchSampler.__iter__
    if not isinstance(batches, BatchSampler) or not known:
        raise TypeError(
            f"MultigridCallback plans the mini-batches itself, but {type(batches).__name__} has batches of its own. "
            "Let a `sampler` yield the same indices one by one, and give the `DataLoader` a `batch_size`: clips that "
            "follow each other come into one mini-batch. See `docs/script.md`, Samplers."
        )
    if isinstance(loaders.dataset, IterableDataset):
        return stream_loader(loaders, _clips_of_stream(loaders, trainer, clips_per_epoch))
    sampler = batches.sampler
    if trainer.world_size > 1 and not isinstance(sampler, DistributedSampler):
        if not splits_data(trainer):
            raise MisconfigurationException(
                "MultigridCallback cuts one order of all clips among the devices, but with "
                f"`use_distributed_sampler=False` each has its own, of its {type(sampler).__name__}. Leave that out of "
                "the Trainer, or give the `DataLoader` a `DistributedSampler`."
            )
        # As Lightning does on several devices, also without `shuffle`.
        if isinstance(sampler, (RandomSampler, SequentialSampler)):
            sampler = RandomSampler(cast("Sized", loaders.dataset))
    if loaders.batch_size is not None and sampler is batches.sampler:
        return loaders
    return same_loader(loaders, batch_size=batches.batch_size, sampler=sampler, drop_last=batches.drop_last)


def baseline_epochs(trainer: Trainer, epoch: BaselineEpoch) -> Fraction:
    """Returns the length of the baseline in epochs, by the Trainer's `max_epochs` and `max_steps`."""
    if trainer.fast_dev_run:  # type: ignore[attr-defined]
        return Fraction(1)
    lengths = [] if trainer.max_epochs in (None, -1) else [Fraction(trainer.max_epochs)]
    if trainer.max_steps != -1:
        lengths.append(epoch.after_ticks(trainer.max_steps, "step", frequency=1))
    if not lengths:
        raise MisconfigurationException(
            "MultigridCallback plans the whole training, but the Trainer has no end. Give `max_epochs` or `max_steps`."
        )
    epochs = min(lengths)
    if epochs < 1:
        raise MisconfigurationException(
            f"MultigridCallback needs a baseline of at least one epoch, but `max_steps={trainer.max_steps}` is "
            f"{float(epochs):.2f} epochs of {epoch.optimizer_steps} steps. Raise `max_steps`, or shorten the epoch "
            "with `limit_train_batches`."
        )
    return epochs


def read_recipe(trainer: Trainer, loader: DataLoader[Any], world: int) -> Recipe:
    """Reads the baseline off a Trainer, which has the settings of its script, and the user's training loader."""
    # As all numbers of the script, `limit_train_batches` and `overfit_batches` count mini-batches of the baseline.
    size = cast("int", loader.batch_size)
    if isinstance(loader.sampler, DistributedSampler):  # the user's own, which cuts the data among the ranks
        of_rank, available = len(loader.sampler), Fraction(len(cast("Sized", loader.dataset)), world)
    else:  # Lightning's distributed sampler repeats samples to make the ranks equal; a multigrid epoch leaves them out
        samples = len(cast("Sized", loader.sampler))
        of_rank, available = math.ceil(samples / world), Fraction(samples, world)
    batches = of_rank // size if loader.drop_last else math.ceil(of_rank / size)
    if batches == 0:
        raise ValueError(
            f"The training data has {of_rank} clips for each device, fewer than `batch_size={size}`. Use more data or "
            "a smaller batch."
        )
    clips = available
    if not trainer.fast_dev_run:  # type: ignore[attr-defined]
        limit = trainer.limit_train_batches  # read as Lightning does
        limited = max(1, limit if isinstance(limit, int) else int(batches * limit))
        if limited < batches:
            batches, clips = limited, Fraction(limited * size)
    epoch = BaselineEpoch(batches, trainer.accumulate_grad_batches)
    return Recipe(clips, available, of_rank, epoch, baseline_epochs(trainer, epoch), loader.drop_last)

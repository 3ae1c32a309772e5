"""`MultigridCallback`: multigrid training as one line on a baseline script.

Its hooks say when something is done, and `fit.py` does the work. Every step sets its own shape, LR and sub-mini-batch.
"""

from __future__ import annotations

from typing import Any, Literal

from typing_extensions import override

from lightning_multigrid.lightning import Callback, LightningModule, Trainer, TrainerFn
from lightning_multigrid.norm import set_sub_batch
from lightning_multigrid.reports import RunReport, step_values
from lightning_multigrid.schedule import LongCycle, LRScaling, MultigridSchedule, ShortCycle
from lightning_multigrid.training.fit import Fit, begin_fit, log_values
from lightning_multigrid.training.lightning_internals import reload_every
from lightning_multigrid.training.recipe import Options
from lightning_multigrid.training.refusals import refuse_other_seed, refuse_unsupported
from lightning_multigrid.training.takeover import Takeover


class MultigridCallback(Callback):
    """Trains by the multigrid method (Wu et al., CVPR 2020). The paper reports 3.3 to 6.5 times less wall-clock time.

    >>> import torch
    >>> from torch import nn
    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> class Classifier(LightningModule):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.net = nn.Sequential(nn.Conv3d(3, 4, 2), nn.BatchNorm3d(4), nn.AdaptiveAvgPool3d(1), nn.Flatten())
    ...
    ...     def training_step(self, batch, batch_idx):
    ...         return nn.functional.cross_entropy(self.net(batch[0]), batch[1])
    ...
    ...     def configure_optimizers(self):
    ...         return torch.optim.SGD(self.parameters(), lr=0.1)
    >>> clips = TensorDataset(torch.randn(64, 3, 8, 32, 32), torch.randint(4, (64,)))
    >>> quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    >>> trainer = Trainer(max_epochs=2, **quiet, callbacks=[MultigridCallback()])  # the only change to the script
    >>> trainer.fit(Classifier(), DataLoader(clips, batch_size=2, shuffle=True))
    >>> trainer.current_epoch  # more epochs than in the script, but most of their steps have many more clips
    3

    The script states the baseline: `batch_size`, the clips of its dataset, `max_epochs` or `max_steps`, and its LR
    schedulers. From these the callback plans the multigrid training. While training, it changes the shape of the
    mini-batches, the LR, and how many clips share BatchNorm statistics. Validation stays on the baseline's grid. When
    `fit` ends, the callback puts everything back.

    There are more epochs than in the script, and their numbers of steps differ. So `every_n_train_steps`, the patience
    of `EarlyStopping` and the decay of weight averages count multigrid steps and epochs, not the baseline's.

    Args:
        schedule: The whole schedule; by default it is inferred, and the arguments below shape it.
        epoch_factor: Epochs relative to the baseline's.
        long_cycle: Base shapes of an LR stage.
        short_cycle: Spatial sizes of successive iterations.
        sub_batch: Clips that share BatchNorm statistics on a base shape.
        size_divisor: Sizes other than the baseline's are rounded to a multiple of this many pixels. By default the size
            of the model's patches, if it has any.
        lr_scaling: How the LR grows with the clips of the base shape: linear, sqrt or none. By default linear for SGD,
            as in the paper, and sqrt for Adam and its kin.
        whole_epochs: Round the ends of the phases to whole epochs, as the published code does.
        milestones: Starts of the LR stages after the first, in epochs of the baseline. By default those of the LR
            scheduler if it has steps, else the proportions of the paper's Kinetics recipe.
        warmup_epochs: Length of the warm-up, in epochs of the baseline. By default that of the LR scheduler.
        layout: Axes of a clip of the dataset, for instance `THWC`. By default `CTHW`, and `TCHW` is recognised.
        clips: Names of the clips of a sample, if it holds several; or a dict of their axes by name, in which letters
            other than C, T, H and W stand for axes that stay. A name is a key of a dict, an index of a tuple, or an
            attribute of a namedtuple; `target.depth` leads into a part. It may also lead to a list or dict of clips.
            All of them keep the same moments, and the ratios of their frames and sizes.
        follow: Axes, by name, of what follows the clips: T, H and W are the clips', other capitals stay. Pixels are
            taken by nearest neighbour. Small letters at the end name the numbers of the last axis, as in `TNxyxy`: x
            and w are pixels of the width, y and h pixels of the height, from the frame's corner; others stay.
        clips_per_epoch: Clips of an epoch on all devices, for an iterable dataset. By default its `len` on each
            device, or the mini-batches of an integer `limit_train_batches`.
        validations_per_phase: Validate about this often in each phase, not by `check_val_every_n_epoch`.
        precise_bn_batches: Before validations and checkpoints, re-estimate BatchNorm's running statistics as those of
            the training data, on this many mini-batches of each device on the baseline's grid.
        seed: Seed of order and augmentation. By default that of `seed_everything`, else a random one.
        frames_divisor: Frames other than the baseline's are rounded to a multiple of this number. By default the frames
            of the model's patches.
        weight_decay_scaling: `timescale` multiplies the weight decay in each phase so that weights forget old updates
            over as many clips as in the baseline (Wang and Aitchison 2024, arXiv 2405.13698): by the clips of the base
            shape over the baseline's, divided by the LR's scale. `none` leaves it.
        fine_tuning: Whether the last LR stage becomes the fine-tuning phase (Sec. 3.2). If not, it goes through the
            long cycle as the others: the paper's ablation.
        hold_early_stopping: Whether the patience of `EarlyStopping` begins to count in the last phase, as metrics may
            stand still while the grids are coarse.

    Raises:
        ValueError: If `schedule` and arguments that shape it are both given, or an argument is out of range.
    """

    def __init__(
        self,
        schedule: MultigridSchedule | None = None,
        *,
        epoch_factor: float = 1.5,
        long_cycle: LongCycle = LongCycle(),
        short_cycle: ShortCycle = ShortCycle(),
        sub_batch: int = 8,
        size_divisor: int | None = None,
        lr_scaling: LRScaling | Literal["auto"] = "auto",
        whole_epochs: bool = False,
        milestones: list[float] | None = None,
        warmup_epochs: float | None = None,
        layout: str | None = None,
        clips: list[str | int] | dict[str | int, str] | None = None,
        follow: dict[str | int, str] | None = None,
        clips_per_epoch: int | None = None,
        validations_per_phase: int | None = None,
        precise_bn_batches: int | None = None,
        seed: int | None = None,
        frames_divisor: int | None = None,
        weight_decay_scaling: Literal["none", "timescale"] = "none",
        fine_tuning: bool = True,
        hold_early_stopping: bool = True,
    ) -> None:
        self.options = Options(
            schedule, epoch_factor, long_cycle, short_cycle, sub_batch, size_divisor, lr_scaling, whole_epochs,
            milestones, warmup_epochs, layout, clips, follow, clips_per_epoch, validations_per_phase,
            precise_bn_batches, seed, frames_divisor, weight_decay_scaling, fine_tuning, hold_early_stopping,
        )  # fmt: skip
        self._takeover = Takeover()
        self._checkpoint: dict[str, Any] | None = None  # the one that this `fit` resumes
        self._fit: Fit | None = None

    @classmethod
    def baseline(cls, **arguments: Any) -> MultigridCallback:
        """Trains the baseline itself, with the BatchNorm statistics of its multigrid training: to compare the two.

        Both cycles are off, and there are as many epochs as in the script: the mini-batches, steps and LRs of the
        script without a callback. But `sub_batch` clips share statistics, if need be those of several devices, and
        `precise_bn_batches` re-estimates them. `arguments` are other arguments of the class.
        """
        return MultigridCallback(
            epoch_factor=1, long_cycle=LongCycle(((1, 1),)), short_cycle=ShortCycle((1,)), **arguments
        )

    @property
    def fit(self) -> Fit:
        """The `fit` that is under way, or the last one."""
        assert self._fit is not None  # set at `on_fit_start`
        return self._fit

    @property
    def report(self) -> RunReport:
        """What is known of the times of that `fit`."""
        return self.fit.report

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":
            self._fit = None
            refuse_unsupported(trainer, pl_module)
            self._takeover.convert_batchnorm(pl_module, self.options.sub_batch)

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.limit_train_batches != 0:
            checkpoint, state = self._checkpoint, self._state_in(self._checkpoint)
            self._fit = begin_fit(self.options, trainer, self._takeover, checkpoint, state)
            self._checkpoint = None  # it holds a whole model

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.fit.start_lr()
        self.fit.make_rank_groups()

    @override
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.fit.sync_lr(trainer.current_epoch, 0)

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        step = self.fit.step(batch_idx)
        # With fewer clips than this a layer shares statistics with other ranks. All ranks have the same number of them.
        set_sub_batch(pl_module, step.sub_batch, of=step.shape.clips, baseline_batches=step.baseline_batches)
        self.fit.following.set_grid(step.shape.frames, step.shape.size)
        self.fit.points.check_real(step.shape, batch)
        self.report.announce(step)
        log_values(trainer, pl_module, step_values(step))

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.fit.following.restore()  # whatever runs between two steps has the baseline's grid
        times = self.report.ended(trainer.current_epoch, self.fit.step(batch_idx), self.fit.lr.now)
        log_values(trainer, pl_module, self.report.scalars(times, trainer.world_size))
        self.fit.statistics.saving = True
        self.fit.hold_early_stopping(batch_idx)
        # The last batch of an epoch ends an optimizer step, even if `accumulate_grad_batches` asks for more.
        following = (trainer.current_epoch + 1, 0) if trainer.is_last_batch else (trainer.current_epoch, batch_idx + 1)
        self.fit.sync_lr(*following)

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.fit.following.restore()  # a script may have skipped the rest of the epoch
        self.fit.statistics.saving = True
        # The next epoch has another number of batches, so Lightning must request the (same) loader again.
        reload_every(trainer, 1)

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.report.finish(trainer)
        if trainer.is_last_batch:
            self.fit.judge_calls()

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._takeover.close()
        self._checkpoint = None

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        # There is no `teardown` after an exception. `_fit` stays: `ModelCheckpoint` may still ask for our state.
        self.teardown(trainer, pl_module, "fit")

    @override
    def state_dict(self) -> dict[str, Any]:
        # Tuners save and load it before the training is planned.
        return {"schedule": None} if self._fit is None else self._fit.state_dict()

    @override
    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if self._fit is not None:
            self._fit.complete_checkpoint(checkpoint, checkpoint["callbacks"][self.state_key])

    @override
    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if trainer.state.fn != TrainerFn.FITTING or self._state_in(checkpoint) == {"schedule": None}:
            return  # only its weights are used, or a tuner takes its own checkpoint back
        if self._fit is None:
            self._checkpoint = checkpoint
            return
        # Strategies that shard the model load checkpoints only when the training is planned already.
        state = self._state_in(checkpoint)
        if self.options.seed is None:
            refuse_other_seed(state, self.fit.sampler.seed)
        self.fit.resume(checkpoint, state)

    def _state_in(self, checkpoint: dict[str, Any] | None) -> dict[str, Any] | None:
        # An empty state is none, as of a run without this callback.
        return ((checkpoint or {}).get("callbacks", {}).get(self.state_key)) or None

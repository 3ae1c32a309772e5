"""`MultigridCallback`: multigrid training as one line on a baseline script. Its hooks say when, and a `Run` does it."""

from typing import Any

from torch.utils.data import DataLoader
from typing_extensions import override

from lightning_multigrid.host import Callback, LightningDataModule, LightningModule, Trainer, TrainerFn
from lightning_multigrid.norm import one_at_a_time
from lightning_multigrid.reports import Account, RunReport
from lightning_multigrid.schedule import LongCycle, Plan, ShortCycle, Step
from lightning_multigrid.training.arguments import Arguments
from lightning_multigrid.training.checkpoints.continuation import state_to_continue
from lightning_multigrid.training.plan_ahead import plan_ahead
from lightning_multigrid.training.run import Run, begin_run
from lightning_multigrid.training.script.refusals import refuse_unsupported
from lightning_multigrid.training.trainer.changes import Changes
from lightning_multigrid.training.trainer.lightning_internals import request_once


class MultigridCallback(Arguments, Callback):
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
    >>> trainer.current_epoch, trainer.global_step  # the script has 64 steps in its epochs, most with fewer clips
    (2, 24)

    The script states the baseline: `batch_size`, the clips of its dataset, `max_epochs` or `max_steps`, and its LR
    schedulers. From these the callback plans the multigrid training. While training, the callback changes the shape of
    the mini-batches, the LR, and how many clips share BatchNorm statistics. Validation stays on the baseline's grid.
    When `fit` ends, the callback undoes its changes.

    The number of epochs is the script's. Each epoch has the same number of steps, fewer than the baseline's epoch. So
    whatever counts epochs, or shares of epochs, means what the script says. Whatever counts steps
    (`every_n_train_steps`, the decay of weight averages) counts the steps of the multigrid training. The patience of
    `EarlyStopping` begins to count in the last phase, because metrics may stand still while the grids are coarse.

    The arguments up to `precise_bn_batches` change the training most. Those from `layout` to `lr_by_hand` state what
    the callback can't read off the script. The others are for experiments.

    Args:
        schedule: The whole schedule. By default the callback infers it, and the arguments below shape it.
        epoch_factor: Passes over the data for each epoch.
        short_cycle: Spatial sizes of successive iterations. By default the paper's, but off for clips of less than 64
            pixels, which were as accurate as their baseline in less time without it. `ShortCycle()` has the paper's.
        long_cycle: Base shapes, from coarse to fine.
        lr_scaling: How the LR grows with the clips of the base shape: linear, sqrt or none. By default linear for SGD,
            as in the paper, and sqrt for Adam and similar optimizers. Where such an optimizer has decoupled weight
            decay, the decay grows as the LR does.
        precise_bn_batches: Mini-batches per device, on the baseline's grid, from which BatchNorm's running statistics
            are estimated anew: where a validation begins, and at the end of the training. These mini-batches run
            through `training_step` of a copy of the module. A checkpoint that is written after a validation has the
            new statistics, and others, as of `every_n_train_steps`, have the moving average.
        layout: Axes of the dataset's clips, for instance `THWC`. By default `CTHW`; `TCHW` is recognised.
        clips: Names of the clips of a sample that holds several clips, or a dict with the axes of each clip by name.
            In such axes, letters other than C, T, H and W stand for axes that stay as they are. A name is a key of a
            dict, an index of a tuple, or an attribute of a namedtuple. `target.depth` names a part of a part. A name
            may also lead to a list or a dict of clips. All clips of a sample keep the same moments, and the ratios of
            their frames and sizes.
        follow: Axes, by name, of the parts of a sample that have to follow its clips. T, H and W are axes of the clips;
            axes with other capitals stay as they are. Pixels are taken by nearest neighbour. Small letters at the end
            name the numbers along the last axis, as in `TNxyxy`: x and w are pixels of the width, y and h pixels of the
            height, both from the frame's corner, and t is a place among the frames. Numbers with other letters stay as
            they are. f alone is the number of real frames, without the padding. The length of an axis T may be a whole
            share or a multiple of the clip's frames. For anything else, such as a camera or a rate, give a function of
            the values and of the change of the clip. The change has `frames` (the indices of the frames that stay),
            `height` and `width`, and `frames_before`, `height_before` and `width_before`. The function isn't called
            for a clip that stays as it is.
        whole_span: Coarse clips span the whole clip and end with its last real frame: for labels that depend on the
            end of the clip, for counts, order and sound. By default the frames are about as far apart, and their
            start is drawn at random.
        clips_per_epoch: For an iterable dataset, the clips of a baseline epoch on all devices. By default they follow
            from the dataset's `len` on each device, or from an integer `limit_train_batches`.
        milestones: Epochs at which a new long cycle starts. `script` takes those of the LR scheduler, as the paper does
            (see `paper`). By default the training goes through the long cycle once, and then through the fine-tuning
            phase for the same number of steps, whatever the LR does.
        warmup_epochs: Length of the warm-up, in epochs of the baseline. By default that of the LR scheduler.
        lr_by_hand: The script or a callback may write the LR, or another number of a parameter group, between two
            epochs. By default, writing it within an epoch is refused, because the new value may depend on a count of
            the baseline's steps. `run` says that the value depends on the steps of the multigrid training.
        sub_batch: Clips that share BatchNorm statistics on a base shape. By default the clips of the script's
            mini-batch on a device, but at least 8.
        size_divisor: Sizes other than the baseline's are rounded to a multiple of this many pixels. By default the size
            of the model's patches, if it has patches.
        frames_divisor: Frames other than the baseline's are rounded to a multiple of this number. By default the frames
            of the model's patches, if it has patches.
        fine_tuning: Whether the training ends with the fine-tuning phase (Sec. 3.2). If not, the long cycle takes its
            steps, too: the paper's ablation.
        rehearse: Try each grid on a copy of the module before the first step. What a step writes by itself, to a file
            or to `wandb.log`, is also written then. Without a rehearsal, a module that can't take a grid fails in the
            middle of the training, when that grid comes. Some faults are then not noticed at all: places that are
            counted from the first, losses that are sums over clips, losses that are not finite on a grid, and clips
            that hooks bring back to another size.
        seed: Seed of the order and of the augmentation. By default that of `seed_everything`, else a random one.

    Raises:
        ValueError: If `schedule` and arguments that shape it are both given, or an argument is out of range.
        TypeError: If an argument is of another kind than its annotation.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._run: Run | None = None  # the `fit` that is under way, or the last one
        self._checkpoint: dict[str, Any] | None = None  # the one that this `fit` resumes
        self._account = Account()  # of this `fit`
        self._changes = Changes()  # while it is under way: no other thread begins one

    def __getstate__(self) -> dict[str, Any]:
        # Copies and pickles have the arguments, and no `fit`. Lightning sets `log` and `log_dict`: the module's.
        kept = {name: value for name, value in vars(self).items() if name not in ("log", "log_dict")}
        return {**kept, "_run": None, "_checkpoint": None, "_changes": Changes()}

    # These name the class, so that configs may give all its arguments, which jsonargparse (4.53) doesn't find by `cls`.
    @staticmethod
    def baseline(**arguments: Any) -> "MultigridCallback":
        """Trains the baseline: every mini-batch has the baseline's grid, and each epoch is one pass over the data.

        This callback is for comparisons: it has the loader, the seeds, the BatchNorm statistics and the reports of a
        multigrid training, and only the grids differ. Each epoch has as many steps as an epoch of the script, with the
        script's LR. But the clips come in another order, and clips of the next pass fill the last mini-batch of a pass,
        so the weights are not those of the script alone to the bit. The arguments are those of the class, without the
        arguments that shape the schedule.
        """
        return MultigridCallback(
            epoch_factor=1,
            long_cycle=LongCycle(((1, 1),)),
            short_cycle=ShortCycle((1,)),
            fine_tuning=False,  # the paper's fine-tuning phase holds the LR beyond the last milestone
            **arguments,
        )

    @staticmethod
    def paper(*, short_cycle: ShortCycle = ShortCycle(), **arguments: Any) -> "MultigridCallback":
        """Trains by the paper's plan (Sec. 3.2 to 3.4), for an LR that falls in steps.

        Each LR stage has a long cycle of its own, and the last stage is the fine-tuning phase. The short cycle begins
        at half of the size, however small that is. With an LR that does not fall in steps, the plan is the default one.
        In the long training that was measured, the paper's plan took less time than the default one, and was less
        accurate (docs/pays.md). The arguments are those of the class.
        """
        return MultigridCallback(milestones="script", short_cycle=short_cycle, **arguments)

    @staticmethod
    def progressive(
        *,
        epoch_factor: float = 1,
        long_cycle: LongCycle = LongCycle(((0.5, 0.5**0.5), (1, 0.5**0.5))),
        short_cycle: ShortCycle = ShortCycle((1,)),
        **arguments: Any,
    ) -> "MultigridCallback":
        """Trains once from coarse to fine, with one pass over the data for each epoch.

        The first quarter of the steps has half of the baseline's frames, at 0.71 of its size. The second quarter has
        all of the frames, at the same size. The second half of the steps has the baseline's grid. There is no short
        cycle. Such a training takes less time than the default one (docs/pays.md). The arguments are those of the
        class.
        """
        return MultigridCallback(epoch_factor=epoch_factor, long_cycle=long_cycle, short_cycle=short_cycle, **arguments)

    def plan(
        self,
        trainer: Trainer,
        module: LightningModule,
        data: DataLoader[Any] | LightningDataModule | None = None,
        *,
        measure: bool = False,
    ) -> Plan:
        """Returns the plan of `trainer.fit(module, data)`, to be printed. Nothing is trained, and nothing is changed.

        `print(MultigridCallback().plan(trainer, module, data))` shows the schedule. `plan` sets up a data module as
        `fit` does. The Trainer need not have the callback. If the callback has no `seed`, the plan has the seed 0. A
        seed orders the data; it changes no shape and no LR.

        Args:
            trainer: As for `fit`.
            module: As for `fit`.
            data: As for `fit`.
            measure: Let the loader's own workers read some mini-batches, and time steps on a copy of the module. Then
                `plan` says how long the training takes with the callback and without it, and whether the loader is
                the limit.

        Raises:
            MisconfigurationException, TypeError, ValueError: If `fit` would refuse the script for its settings, its
                loader or its optimizers. Only `fit` rehearses the grids, so only `fit` refuses what a rehearsal finds.
        """
        return plan_ahead(self, trainer, module, data, measure)

    @property
    def run(self) -> Run:
        """The `fit` that is under way, or the last one, whose `plan` and `report` remain."""
        if self._run is None:
            raise RuntimeError(
                "MultigridCallback plans the training when `fit` begins, and no `fit` has begun in this process. "
                "Strategies such as `ddp_spawn` train in other processes."
            )
        return self._run

    @property
    def step(self) -> Step:
        """The step that is under way, with its shape, phase and LR scale; between two, the next one."""
        return self.run.step

    @property
    def report(self) -> RunReport:
        """What is known of the times of this `fit`: the one that is under way, or the last one."""
        return self.run.report

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":
            self._run, self._account = None, Account()
            self._changes.enter_context(one_at_a_time())
            request_once(trainer, self._changes)
            refuse_unsupported(trainer, pl_module)

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if 0 in (trainer.limit_train_batches, trainer.max_epochs, trainer.max_steps):
            return  # nothing is trained
        # Lightning restores the checkpoint's loops and optimizers only after this hook, so its counters may change.
        checkpoint, self._checkpoint = self._checkpoint, None
        state = self._state_in(checkpoint) or {}
        self._run = begin_run(self, trainer, state, self._account)
        self._run.start()
        if checkpoint is not None:
            self._run.load(checkpoint, state)

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self.run.before(batch_idx)

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.run.after(batch_idx)

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.run.end()

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.run.finish()

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if self._run is not None:
            self._run.close()  # it stays, as `ModelCheckpoint` and the script may still ask for its state
        self._changes.close()
        self._checkpoint = None

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.teardown(trainer, pl_module, "fit")  # which Lightning leaves out then

    # --- Checkpoints ---

    @override
    def state_dict(self) -> dict[str, Any]:
        # Tuners save and load it before the training is planned.
        return {"schedule": None} if self._run is None else self._run.save()

    @override
    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if self._run is not None:
            state = checkpoint["callbacks"][self.state_key]
            self._run.complete(checkpoint, state, validating=trainer.validating, stopped=trainer.should_stop)

    @override
    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if trainer.state.fn != TrainerFn.FITTING or self._state_in(checkpoint) == {"schedule": None}:
            return  # only its weights are used, or a tuner takes its own checkpoint back
        state = state_to_continue(self._state_in(checkpoint))
        if self._run is None:
            self._checkpoint = checkpoint  # it holds a whole model, until the training is planned
            return
        # Strategies that shard the model load checkpoints only when the training is planned already.
        self._run.load(checkpoint, state)

    def _state_in(self, checkpoint: dict[str, Any] | None) -> dict[str, Any] | None:
        # An empty state is none, as of a run without this callback.
        return ((checkpoint or {}).get("callbacks", {}).get(self.state_key)) or None

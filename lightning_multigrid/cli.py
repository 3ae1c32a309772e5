"""The command line: Lightning's subcommands, and `plan`."""

from __future__ import annotations

import json as json_format
import math
import os
import sys
import traceback
from dataclasses import asdict
from fractions import Fraction
from itertools import pairwise
from typing import Any

from jsonargparse import ArgumentError
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import BasePredictionWriter
from lightning.pytorch.cli import ArgsType, LightningCLI
from lightning.pytorch.plugins.io import TorchCheckpointIO

from lightning_multigrid import __version__
from lightning_multigrid.baseline_lr import BaselineEpoch
from lightning_multigrid.callback import MultigridCallback
from lightning_multigrid.checkpoints import AtomicCheckpointIO
from lightning_multigrid.classifier import VideoClassifier
from lightning_multigrid.data_cli import DATA_COMMANDS, run_data_command
from lightning_multigrid.datamodule import VideoDataModule
from lightning_multigrid.grid import BatchShape
from lightning_multigrid.predictions import PredictionWriter
from lightning_multigrid.recipe import baseline_epochs, scheduler_configs
from lightning_multigrid.schedule import LongCycle, MultigridSchedule, ShortCycle
from lightning_multigrid.sources import VideoSource
from lightning_multigrid.textfile import ManifestError

__all__ = ["main"]


class _Trainer(Trainer):
    """Lightning's Trainer, whose methods are the subcommands."""

    def plan(
        self,
        clips: int | None = None,
        devices: int = 1,
        num_nodes: int = 1,
        json: bool = False,
        ckpt_path: str | None = None,
    ) -> None:
        """Prints the multigrid schedule of a config, without data or GPU.

        Args:
            clips: Training videos, over all devices; None counts them if they are on this machine.
            devices: GPUs per node.
            num_nodes: Nodes.
            json: Print JSON instead of a table.
            ckpt_path: Not used; configs of `fit` may have it.
        """


class _MultigridCLI(LightningCLI):
    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        return {**LightningCLI.subcommands(), "plan": set()}

    def before_instantiate_classes(self) -> None:
        if self.subcommand == "plan":  # it also runs where there is no GPU, and logs nothing
            here = {"accelerator": "cpu", "devices": 1, "num_nodes": 1, "strategy": "auto", "logger": False}
            for name, value in here.items():
                self.config.plan.trainer[name] = value

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Its checkpoints are whole or not there, unless the config has a `CheckpointIO` of its own."""
        trainer: Trainer = super().instantiate_trainer(**kwargs)
        if type(trainer.strategy.checkpoint_io) is TorchCheckpointIO:
            trainer.strategy.checkpoint_io = AtomicCheckpointIO()
        return trainer

    def before_predict(self) -> None:
        """`predict` leaves a table, unless the config has another writer or a part that doesn't know of it."""
        trainer = self.trainer
        writers = [c for c in trainer.callbacks if isinstance(c, BasePredictionWriter)]  # type: ignore[attr-defined]
        if not writers and isinstance(self.model, VideoClassifier) and isinstance(self.datamodule, VideoDataModule):
            trainer.callbacks.append(PredictionWriter())  # type: ignore[attr-defined]

    def plan(self, clips: int | None, devices: int, num_nodes: int, json: bool, **_: Any) -> None:
        """What `_Trainer.plan` says."""
        callbacks = [c for c in self.trainer.callbacks if isinstance(c, MultigridCallback)]  # type: ignore[attr-defined]
        if not callbacks:
            print("`trainer.callbacks` has no MultigridCallback, so this is the baseline as it is.", file=sys.stderr)
            callbacks = [
                MultigridCallback(epoch_factor=1, long_cycle=LongCycle(((1, 1),)), short_cycle=ShortCycle((1,)))
            ]
        if not isinstance(self.datamodule, VideoDataModule):
            raise MisconfigurationException(
                f"`plan` reads the baseline off a VideoDataModule, got {type(self.datamodule).__name__}. With other "
                "data the schedule is printed when `fit` starts."
            )
        clips = count_clips(self.datamodule) if clips is None else clips
        of_rank = None if clips is None else clips // (devices * num_nodes)
        schedule = plan_of(callbacks[0], self.trainer, self.model, self.datamodule, of_rank)
        arguments = of_rank, self.trainer.accumulate_grad_batches, self.datamodule.drop_last
        print(json_format.dumps(plan_as_json(schedule, *arguments), indent=2) if json else schedule.table(*arguments))


def count_clips(data: VideoDataModule) -> int | None:
    """Training videos of a data module, if their list, folder or annotation file is on this machine."""
    source = data.sources["train"]
    if source is None or (not isinstance(source, VideoSource) and not os.path.exists(source)):
        return None
    try:
        data.setup("fit")
    except ManifestError as error:
        # A source tells where its files are only by reading them.
        if not isinstance(source, VideoSource):
            raise
        print(f"The training videos are not counted: {error}", file=sys.stderr)
        return None
    return len(data.train_dataloader().dataset)  # type: ignore[arg-type]


def plan_of(
    callback: MultigridCallback, trainer: Trainer, module: LightningModule, data: VideoDataModule, clips: int | None
) -> MultigridSchedule:
    """The schedule that `fit` would infer, for this many clips on each device; None if they are not known."""
    # Without clips the number of batches is not known either; it only matters to schedulers that count steps.
    batches = Fraction(clips or data.batch_size, data.batch_size)
    whole = math.floor(batches) if data.drop_last else math.ceil(batches)
    epoch = BaselineEpoch(max(1, whole), trainer.accumulate_grad_batches)
    module.trainer = trainer
    configs = scheduler_configs(module)
    if clips is None and any(config.interval == "step" for config in configs):
        raise MisconfigurationException(
            "The LR scheduler counts steps, but the training videos are not on this machine. Say how many there are "
            "with `--clips`."
        )
    shape = BatchShape(data.batch_size, data.frames, data.size)
    return callback.infer_schedule(shape, data.stride, epoch, baseline_epochs(trainer, epoch), configs)


def plan_as_json(
    schedule: MultigridSchedule, clips: int | None, accumulate: int = 1, drop_last: bool = False
) -> dict[str, Any]:
    """A schedule as plain values; positions in epochs, sizes in pixels."""
    steps = [None] * len(schedule.phases) if clips is None else schedule.phase_steps(clips, accumulate, drop_last)
    return {
        "baseline": {**asdict(schedule.baseline.shape), "epochs": float(schedule.baseline.epochs)},
        "epochs": schedule.epochs,
        "iteration_reduction": schedule.iteration_reduction,
        "flop_reduction": schedule.flop_reduction,
        "phases": [
            {
                "stage": phase.stage,
                **asdict(phase.shape),
                "start_epoch": float(phase.start_epoch),
                "end_epoch": float(phase.end_epoch),
                "lr_scale": phase.lr_scale,
                "short_cycle": [asdict(shape) for shape in schedule.cycle(phase.shape)],
                "steps": total,
            }
            for phase, total in zip(schedule.phases, steps, strict=True)
        ],
    }


def _raised_here(error: BaseException | None) -> BaseException | None:
    """The error, or the one that led to it, that this package raised: one that a user can mend."""
    while error is not None:
        innermost = list(traceback.walk_tb(error.__traceback__))[-1][0]
        if str(innermost.f_globals.get("__name__")).startswith("lightning_multigrid."):
            return error
        error = error.__cause__ or error.__context__
    return None


def _json_with_value(args: list[str]) -> list[str]:
    bare = [arg == "--json" and not following.startswith(("t", "f")) for arg, following in pairwise([*args, ""])]
    return ["--json=true" if is_bare else arg for arg, is_bare in zip(args, bare, strict=True)]


def main(args: ArgsType = None) -> None:
    """Runs a command line; errors that a user can mend are said in one paragraph.

    Args:
        args: What to run instead of the process's arguments.
    """
    words = sys.argv[1:] if args is None else args
    # jsonargparse wants a value, `--json=true`; a bare `--json` is what people type.
    if args is None:
        sys.argv[1:] = _json_with_value(sys.argv[1:])
    elif isinstance(args, list):
        args = _json_with_value(args)
    # Else a mistake in one argument prints the names of all of them.
    one_line = {"exit_on_error": False}
    try:
        if isinstance(words, list) and words and words[0] in DATA_COMMANDS:
            run_data_command(words)
            return
        _MultigridCLI(
            LightningModule,
            LightningDataModule,
            trainer_class=_Trainer,
            subclass_mode_model=True,
            subclass_mode_data=True,
            auto_configure_optimizers=False,
            seed_everything_default=0,
            save_config_kwargs={"overwrite": True},
            parser_kwargs={
                "version": __version__,
                "description": "Multigrid training of video models. Two more commands, `prepare` and `check`, make a "
                "dataset ready for it; they have a --help of their own.",
                **one_line,
                **dict.fromkeys(_MultigridCLI.subcommands(), one_line),
            },
            args=args,
        )
    except ArgumentError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except (ValueError, OSError, MisconfigurationException) as error:
        ours = _raised_here(error)
        if ours is None:
            raise
        print(f"error: {ours}", file=sys.stderr)
        raise SystemExit(1) from None

"""What is said of a run while it lasts, and when it ends."""

from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import Any

import torch
from typing_extensions import override

from lightning_multigrid.host import Callback, LightningModule, Trainer, tell_above_bar
from lightning_multigrid.reports import CHECKPOINTS, REST, START, VALIDATION, RunReport
from lightning_multigrid.schedule import Step
from lightning_multigrid.training.trainer.changes import Changes
from lightning_multigrid.training.trainer.lightning_internals import step_is_logged


class Reporting(Callback):
    """Times of steps, and what is logged and shown of them.

    As a callback after those of the script, it tells the account what they and the validation take, and has the last
    word, when the progress bar is gone.
    """

    def __init__(self, trainer: Trainer, report: RunReport) -> None:
        self._trainer, self._report = trainer, report

    def start(self, changes: Changes) -> None:
        changes.add_callback(self._trainer, self)
        bar: Any = self._trainer.progress_bar_callback
        if bar is not None:
            if self._trainer.is_global_zero:
                changes.set_attribute(self._report, "tell", partial(tell_above_bar, self._trainer))
            # Items that are text can only come from this method; what is logged for the bar must be a number.
            changes.set_attribute(bar, "get_metrics", self._with_items(bar.get_metrics))

    def _with_items(self, own: Any) -> Any:
        @wraps(own)
        def get_metrics(trainer: Trainer, module: LightningModule) -> dict[str, Any]:
            # Metrics of the sanity check say nothing, and the logger's version would not leave room for the script's.
            of_script = {} if trainer.sanity_checking else own(trainer, module)
            return {**self._report.bar, **{name: value for name, value in of_script.items() if name != "v_num"}}

        return get_metrics

    def announce(self, step: Step, baseline_lr: Any) -> None:
        self._report.announce(step, baseline_lr)
        shape = step.shape
        values: dict[str, float] = {"clips": shape.clips, "frames": shape.frames, "size": shape.size}
        values |= {"lr_scale": step.lr_scale, "phase": step.phase + 1}
        self._log(lambda: {f"multigrid/{name}": value for name, value in values.items()})

    def ended(self, step: Step, following: Step, lr: Callable[[], float]) -> None:
        times, world = self._report.ended(step, following), self._trainer.world_size
        # To read an LR on a GPU, Python would wait for it: that is done only where it is logged.
        self._log(lambda: {**self._report.scalars(times, world), "multigrid/lr": lr()})

    def _log(self, values: Callable[[], Mapping[str, float]]) -> None:
        """Logs values in steps that loggers get, and at the end of an epoch, where callbacks may monitor them."""
        trainer = self._trainer
        # In other steps, logging would cost more than all the rest of the callback.
        seen = step_is_logged(trainer) or trainer.is_last_batch or trainer.should_stop
        if (seen or trainer.fast_dev_run) and not trainer.barebones:  # type: ignore[attr-defined]
            # As tensors of the CPU: Lightning would send numbers to the device, and wait for it.
            tensors = {name: torch.tensor(float(value)) for name, value in values().items()}
            trainer.lightning_module.log_dict(tensors, batch_size=1)

    @override
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.sanity_checking:
            self._report.account.belonged(VALIDATION)  # its loader has started
        self._report.account.turn(VALIDATION)

    @override
    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self._report.account.turn(CHECKPOINTS)  # until this callback has its turn again, after the one that writes

    def _others_are_done(self, trainer: Trainer, *_: Any, **__: Any) -> None:
        self._report.account.turn(START if trainer.sanity_checking else REST)

    on_train_batch_end = on_validation_end = on_train_epoch_end = _others_are_done

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._report.close()

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if isinstance(exception, (KeyboardInterrupt, SystemExit)):  # of Ctrl-C and SIGTERM
            self._report.stopped()
        self._report.close()

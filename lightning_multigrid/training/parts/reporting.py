"""What is told of a run while it lasts, and when it ends."""

from functools import wraps
from typing import Any

from typing_extensions import override

from lightning_multigrid.host import Callback, LightningModule, Trainer
from lightning_multigrid.reports import CHECKPOINTS, REST, START, VALIDATION, RunReport
from lightning_multigrid.schedule import Plan, Step
from lightning_multigrid.training.parts.part import Part, log_values


class Reporting(Part, Callback):
    """Times of steps, and what is logged and shown of them.

    As a callback after those of the script, it tells the account what they and the validation take, and has the last
    word, when the progress bar is gone.
    """

    def __init__(self, plan: Plan, trainer: Trainer, report: RunReport) -> None:
        super().__init__(plan, trainer)
        self._report = report

    def start(self) -> None:
        """Shows items of the report on the progress bar, and what it tells on the way above the bar."""
        trainer, report = self.trainer, self._report
        add_callback(self, self)
        bar: Any = trainer.progress_bar_callback
        if bar is None:
            return
        if trainer.is_global_zero:
            self.changes.set_attribute(report, "tell", bar.print)
        own = bar.get_metrics

        @wraps(own)
        def get_metrics(trainer: Trainer, module: LightningModule) -> dict[str, Any]:
            # Metrics of the sanity check say nothing, and the logger's version would not leave room for the script's.
            of_script = {} if trainer.sanity_checking else own(trainer, module)
            return {**report.bar, **{name: value for name, value in of_script.items() if name != "v_num"}}

        # Items that are text can only come from this method; what is logged for the bar must be a number.
        self.changes.set_attribute(bar, "get_metrics", get_metrics)

    def begin(self, first: Step) -> None:
        self._report.begin(first)

    def before(self, step: Step, mini_batch: Any) -> None:
        self._report.announce(step)
        shape = step.shape
        values: dict[str, float] = {"clips": shape.clips, "frames": shape.frames, "size": shape.size}
        values |= {"lr_scale": step.lr_scale, "phase": step.phase}
        log_values(self.trainer, lambda: {f"multigrid/{name}": value for name, value in values.items()})

    def after(self, step: Step, following: Step) -> None:
        times = self._report.ended(step, following)
        log_values(self.trainer, lambda: self._report.scalars(times, self.trainer.world_size))

    def finish(self) -> None:
        self._report.finish(self.trainer)

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


def add_callback(part: Part, callback: Callback) -> None:
    """Adds a callback to the Trainer until the part closes; it comes last until another one is added."""
    trainer: Any = part.trainer
    trainer.callbacks.append(callback)

    def remove() -> None:
        # Lightning may be iterating over the list: if it became shorter, Lightning would skip a callback.
        trainer.callbacks = [other for other in trainer.callbacks if other is not callback]

    part.changes.callback(remove)

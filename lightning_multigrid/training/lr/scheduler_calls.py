"""Schedulers at the baseline's epochs, and what a script with manual optimization does with them."""

from typing import Any, NoReturn

from lightning_multigrid.host import LRSchedulerConfig, MisconfigurationException, Trainer
from lightning_multigrid.schedule import counted
from lightning_multigrid.training.script.lr_stages import has_stages
from lightning_multigrid.training.trainer import lightning_internals as internals
from lightning_multigrid.training.trainer.changes import Changes


class ClockedScheduler:
    """A scheduler, after what it is ticked in the script, and how often it has been ticked.

    The calls by which a script with manual optimization steps it only say when it means to: the scheduler is ticked at
    the baseline's epochs instead. So the calls must come as regularly as `interval` and `frequency` say, and those of
    an epoch are counted.
    """

    def __init__(self, config: LRSchedulerConfig) -> None:
        self.config, self.scheduler = config, config.scheduler
        self.interval: str = config.interval
        self.frequency = config.frequency
        self.ticks = 0
        self.calls = 0  # of the script in this epoch, with manual optimization
        self.epoch_ended = False  # or its last step has; also where the run is stopped within it

    def count_calls(self, trainer: Trainer, changes: Changes, short: bool) -> None:
        """Counts the script's calls instead of ticking, until `changes` are undone.

        In epochs that are `short`, of one mini-batch where the script has several, a call in the mini-batch may mean
        that or the epoch.
        """
        names = [name for name in ("step", "step_update") if hasattr(self.scheduler, name)]  # timm has both

        def call(_: Any, *arguments: Any, **named: Any) -> None:
            batch, last = internals.batch_index(trainer), trainer.is_last_batch or self.epoch_ended
            epoch, given = trainer.current_epoch, bool(arguments or named)
            first = (epoch, batch, last, self.ticks, self.frequency) == (0, 0, False, 0, 1)
            if first and not has_stages(self.scheduler):
                self.interval = "step"  # scripts need not say so to Lightning, but this call does
            if short and self.interval == "epoch" and not self.epoch_ended:
                raise MisconfigurationException(
                    f"The script called `step` of {type(self.scheduler).__name__} in the only mini-batch of epoch "
                    f"{epoch}, so nothing says whether it does after each mini-batch or after each epoch. If after "
                    'each mini-batch, let `configure_optimizers` return `{"scheduler": ..., "interval": "step"}`; if '
                    "after each epoch, call `step()` in `on_train_epoch_end`."
                )
            due = (batch + 1) % self.frequency == 0 if self.interval == "step" else last
            if given or batch < 0 or not due:
                often = batch + 1 if (epoch, self.calls, self.interval) == (0, 0, "epoch") and not given else None
                self._refuse(f"after mini-batch {batch} of epoch {epoch}" + " with arguments" * given, often)
            self.calls += 1

        changes.subclass(self.scheduler, dict.fromkeys(names, call))

    def step(self) -> None:
        """Ticks a scheduler whose calls are counted."""
        super(type(self.scheduler), self.scheduler).step()  # type: ignore[misc]  # the script's own

    def check_calls(self, epoch: int, batches: int) -> None:
        """Refuses a scheduler that the script did not step as often in an epoch as its interval says."""
        by_step = self.interval == "step"
        if self.calls != (batches // self.frequency if by_step else (epoch + 1) % self.frequency == 0):
            self._refuse(f"{self.calls} time(s) in epoch {epoch}")

    def _refuse(self, when: str, often: int | None = None) -> NoReturn:
        unit = "mini-batch" if self.interval == "step" else "epoch"
        each = f"each {unit}" if self.frequency == 1 else f"every {counted(self.frequency, unit)}"
        given = f'"step", "frequency": {often}' if often else '"step" or "epoch", "frequency": ...'
        raise MisconfigurationException(
            f"The script called `step` of {type(self.scheduler).__name__} {when}. MultigridCallback steps schedulers "
            f"at the baseline's epochs, so it must know how often the script does, and expected a call after {each}. "
            f'Let `configure_optimizers` return `{{"scheduler": ..., "interval": {given}}}`, and call `step()` at the '
            "end of each such mini-batch or epoch, without arguments."
        )

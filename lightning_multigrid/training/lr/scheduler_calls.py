"""Schedulers on the baseline's clock, and what a script with manual optimization does with them."""

from collections.abc import Callable, Sequence
from typing import Any

from lightning_multigrid.host import LRSchedulerConfig, MisconfigurationException, Trainer
from lightning_multigrid.schedule import Plan, Step
from lightning_multigrid.training.script.lr_stages import has_stages
from lightning_multigrid.training.trainer import lightning_internals as internals
from lightning_multigrid.training.trainer.changes import Changes


class ClockedScheduler:
    """A scheduler, after what it is ticked in the script, and how often it has been ticked."""

    def __init__(self, config: LRSchedulerConfig) -> None:
        self.config, self.scheduler = config, config.scheduler
        self.interval: str = config.interval
        self.frequency = config.frequency
        self.ticks = 0
        self.calls = 0  # of the script in this epoch, with manual optimization


class SchedulerCalls:
    """The calls by which a script with manual optimization steps its schedulers: they only say when it means to.

    A scheduler is ticked on the baseline's clock instead. So the calls must come as regularly as `interval` and
    `frequency` say, and those of an epoch are counted.
    """

    def __init__(self, plan: Plan, trainer: Trainer, schedulers: Sequence[ClockedScheduler]) -> None:
        self._plan, self._trainer, self._schedulers = plan, trainer, schedulers
        self._epoch: int | None = None  # that is counted from its first mini-batch on

    def start(self, changes: Changes) -> None:
        for clocked in self._schedulers:
            names = [name for name in ("step", "step_update") if hasattr(clocked.scheduler, name)]  # timm has both
            changes.subclass(clocked.scheduler, dict.fromkeys(names, self._method(clocked)))

    def step(self, scheduler: Any) -> None:
        super(type(scheduler), scheduler).step()  # type: ignore[misc]  # the script's own

    def _method(self, clocked: ClockedScheduler) -> Callable[..., None]:
        def call(_: Any, *arguments: Any, **named: Any) -> None:
            batch, last = internals.batch_index(self._trainer), self._trainer.is_last_batch
            epoch, given = self._trainer.current_epoch, bool(arguments or named)
            first = (epoch, batch, last, clocked.ticks, clocked.frequency) == (0, 0, False, 0, 1)
            if first and not has_stages(clocked.scheduler):
                clocked.interval = "step"  # scripts need not say so to Lightning, but this call does
            due = (batch + 1) % clocked.frequency == 0 if clocked.interval == "step" else last
            if given or batch < 0 or not due:
                raise _misplaced(clocked, f"after mini-batch {batch} of epoch {epoch}" + " with arguments" * given)
            clocked.calls += 1

        return call

    def begin(self, first: Step) -> None:
        """An epoch begins, or the rest of one."""
        self.check()
        self._epoch = first.place.epoch if first.place.batch == 0 else None
        for clocked in self._schedulers:
            clocked.calls = 0

    def check(self) -> None:
        """Refuses schedulers that the script did not step as often in the last epoch as their interval says."""
        if self._epoch is None:
            return
        epoch, batches = self._epoch, self._plan.batches_of(self._epoch)
        for clocked in self._schedulers:
            by_step = clocked.interval == "step"
            if clocked.calls != (batches // clocked.frequency if by_step else (epoch + 1) % clocked.frequency == 0):
                raise _misplaced(clocked, f"{clocked.calls} time(s) in epoch {epoch}")


def _misplaced(clocked: ClockedScheduler, when: str) -> MisconfigurationException:
    return MisconfigurationException(
        f"The script called `step` of {type(clocked.scheduler).__name__} {when}. MultigridCallback steps schedulers "
        f"on the baseline's clock, so it must know how often the script does, and expected a call after every "
        f"{clocked.interval} whose number {clocked.frequency} divides. Let `configure_optimizers` return "
        '`{"scheduler": ..., "interval": "step" or "epoch", "frequency": ...}`, and call `step()` at '
        "the end of each such mini-batch or epoch, without arguments."
    )

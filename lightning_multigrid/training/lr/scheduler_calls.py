"""Schedulers at the baseline's epochs, and what a call of one by a script with manual optimization stands for."""

from fractions import Fraction

from lightning_multigrid.host import LRSchedulerConfig, MisconfigurationException
from lightning_multigrid.training.script.lr_stages import has_stages


class ClockedScheduler:
    """A scheduler, after what it is ticked in the script, and how often it has been ticked.

    With manual optimization, the script ticks it by calls of `step`. A call within a training step stands for as many
    calls as the step stands for mini-batches of the baseline, any other for itself. What is less than a tick is kept.
    """

    def __init__(self, config: LRSchedulerConfig) -> None:
        self.config, self.scheduler = config, config.scheduler
        self.interval: str = config.interval
        self.frequency = config.frequency
        self.ticks = Fraction(0)

    def ticks_within(self, last: bool, share: Fraction, batches: int, given: bool) -> Fraction:
        """Returns the ticks of a call within a training step, which may be the `last` of its epoch.

        There a script may step a scheduler of epochs. A step stands for a `share` of mini-batches, and an epoch has
        this many `batches`. `given` says that the call has arguments.
        """
        of_epochs, name = self.interval == "epoch", type(self.scheduler).__name__
        if given:
            raise MisconfigurationException(
                f"The script called `step` of {name} with arguments in a mini-batch, so nothing says whether they "
                "count the mini-batches of this run. Call it without arguments, or in `on_train_epoch_end`. A "
                "scheduler that needs a count, as timm's `step_update` does, needs automatic optimization: call it in "
                "`lr_scheduler_step`, where `self.global_step` counts the baseline's steps."
            )
        if of_epochs and (batches == 1 < share or (not last and has_stages(self.scheduler))):
            raise MisconfigurationException(
                f"The script called `step` of {name} in a mini-batch, but did not say so when the training was "
                'planned. If it does after each mini-batch, let `configure_optimizers` return `{"scheduler": ..., '
                '"interval": "step"}`; if after each epoch, call `step()` in `on_train_epoch_end`.'
            )
        if not last:
            self.interval = "step"  # scripts need not say so to Lightning, but this call does
        return share if self.interval == "step" else Fraction(1)

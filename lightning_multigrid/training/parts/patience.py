"""`EarlyStopping` waits for the last phase."""

from lightning_multigrid.host import Trainer, callbacks_of
from lightning_multigrid.schedule import Plan, Step


class Patience:
    """Lets the patience of `EarlyStopping` count from the last phase on, as metrics may stand still on coarse grids."""

    def __init__(self, plan: Plan, trainer: Trainer) -> None:
        self._stopping = [] if plan.schedule.is_baseline else callbacks_of(trainer, "EarlyStopping")
        self._last_phase = len(plan.schedule.phases) - 1

    def before(self, step: Step) -> None:
        """Before a step, validations without a better metric are counted from 0, and in earlier phases from -2.

        With -2, one validation stops no run, even if the patience is 0. A checkpoint then means up to two validations
        more in a training without the callback.
        """
        for stopping in self._stopping:
            stopping.wait_count = max(0, stopping.wait_count) if step.phase == self._last_phase else -2

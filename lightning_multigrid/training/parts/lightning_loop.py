"""Lightning's training loop: made to follow the plan, and watched for doing otherwise."""

import math
import sys
from typing import Any, NoReturn

from lightning_multigrid.host import MisconfigurationException, Trainer
from lightning_multigrid.loading import MultigridLoader, ScriptLoader
from lightning_multigrid.schedule import Plan, Step
from lightning_multigrid.training.parts.part import Part
from lightning_multigrid.training.trainer import lightning_internals as internals


class LightningLoop(Part):
    """Gives Lightning the loader and the length of the plan, and notices when it does something else.

    That may be a new version of Lightning, or another callback. `source` is what the script gave as its loader, and
    `seen` what it sees while Lightning iterates `loader`.
    """

    def __init__(self, plan: Plan, trainer: Trainer, source: Any, loader: MultigridLoader, seen: ScriptLoader) -> None:
        super().__init__(plan, trainer)
        self._source, self._loader, self._seen = source, loader, seen
        self._optimizers = list(trainer.optimizers)
        self._first: Step | None = None  # of the epoch, or of the rest of it

    def start(self) -> None:
        trainer, plan = self.trainer, self.plan
        loaders = internals.loader_seen_as(trainer, self._loader, self._seen)
        self.changes.callback(setattr, loaders, "seen", self._source)
        internals.replace_loader(trainer, loaders, self.changes)
        if not trainer.fast_dev_run:  # type: ignore[attr-defined]
            # The plan already has `limit_train_batches`; Lightning would apply it to our batches once more.
            for owner, name, value in internals.loop_limits(trainer, plan.schedule):
                self.changes.set_attribute(owner, name, value)
        if trainer.log_every_n_steps > 0:  # type: ignore[attr-defined]  # 0: the script logs no steps
            # As often in all (in optimizer steps) as the script asks for, and at least once in the shortest epoch.
            batches = min(plan.batches_of(number) for number in range(plan.epochs))
            every = round(trainer.log_every_n_steps / plan.schedule.iteration_reduction)  # type: ignore[attr-defined]
            every = max(1, min(every, math.ceil(batches / plan.accumulate)))
            self.changes.set_attribute(trainer, "log_every_n_steps", every)

    def begin(self, first: Step) -> None:
        # Lightning has just requested the training loader. It must not request those for validation again.
        internals.reload_every(self.trainer, 0)
        self._first = first

    def before(self, step: Step, mini_batch: Any) -> None:
        trainer = self.trainer
        internals.set_batch_size(trainer, step.shape.clips)
        if trainer.optimizers != self._optimizers:
            raise MisconfigurationException(
                "MultigridCallback scales the LR of the optimizers that `configure_optimizers` returned, but the "
                "Trainer has other ones now. Keep those."
            )
        now = trainer.accumulate_grad_batches
        self._check("accumulates the gradients of so many mini-batches:", self.plan.accumulate, now)
        if step is self._first:
            batches = len(self.plan.epoch(step.place.epoch))
            if trainer.fast_dev_run:  # type: ignore[attr-defined]
                batches = min(batches, int(trainer.num_training_batches))
            self._check("plans an epoch of so many mini-batches:", batches, trainer.num_training_batches)
            self._check("iterates", self._seen, trainer.train_dataloader)

    def end(self) -> None:
        # The next epoch has another number of batches, so Lightning must request the (same) loader again.
        internals.reload_every(self.trainer, 1)

    def _check(self, does: str, planned: Any, found: Any) -> None:
        if planned is not found and planned != found:
            refuse_other(self.trainer, does, planned, found)


def refuse_other(trainer: Trainer, does: str, planned: Any, found: Any) -> NoReturn:
    """Refuses what Lightning does, as the plan has something else."""
    version = sys.modules[type(trainer.fit_loop).__module__.partition(".")[0]].__version__
    raise MisconfigurationException(
        f"Lightning {version} {does} {found}, but MultigridCallback has planned {planned}, so the training would be "
        "another one. Does another callback change the loaders or the counters of the Trainer? If not, install a "
        "version of Lightning that the package's requirements name, and report this one."
    )

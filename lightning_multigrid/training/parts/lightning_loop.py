"""Lightning's training loop: it follows the plan, and a run stops if it does anything else."""

import sys
from typing import Any, NoReturn

from lightning_multigrid.host import MisconfigurationException, Trainer, callbacks_of, tell
from lightning_multigrid.loading import MultigridLoader, ScriptLoader, StreamSamples
from lightning_multigrid.schedule import Plan, Step
from lightning_multigrid.training.checkpoints.continuation import Continuation, State
from lightning_multigrid.training.trainer import lightning_internals as internals
from lightning_multigrid.training.trainer.changes import Changes


class LightningLoop:
    """Gives Lightning the loader and the length of the plan, and notices when it does something else."""

    def __init__(self, plan: Plan, trainer: Trainer, source: Any, loader: MultigridLoader, seen: ScriptLoader) -> None:
        self._plan, self._trainer, self._changes = plan, trainer, Changes()
        # What the script gave, what Lightning iterates, and what the script sees meanwhile.
        self._source, self._loader, self._seen = source, loader, seen
        self._optimizers = list(trainer.optimizers)
        self._first: Step | None = None  # of the epoch, or of the rest of it
        self._stopping = [] if plan.schedule.is_baseline else callbacks_of(trainer, "EarlyStopping")
        self._last_phase = len(plan.schedule.phases) - 1

    def start(self, changes: Changes) -> None:
        trainer, self._changes = self._trainer, changes
        loaders = internals.loader_seen_as(trainer, self._loader, self._seen)
        changes.callback(setattr, loaders, "seen", self._source)
        internals.replace_loader(trainer, loaders, changes)
        changes.callback(self._loader.close)
        if not trainer.fast_dev_run:  # type: ignore[attr-defined]
            internals.limit_loop(trainer, self._plan, changes)
            if trainer.log_every_n_steps > 0:  # type: ignore[attr-defined]  # 0: the script logs no steps
                every = self._of_run(trainer.log_every_n_steps)  # type: ignore[attr-defined]
                changes.set_attribute(trainer, "log_every_n_steps", min(every, self._plan.steps_per_epoch))
            interval = getattr(trainer, "val_check_interval", None)
            if isinstance(interval, int):  # not a share of an epoch and, since Lightning 2.6, not a time
                changes.set_attribute(trainer, "val_check_interval", self._of_run(interval))

    def _of_run(self, number: int) -> int:
        """The mini-batches of this run for a number of them that the script counts."""
        return max(1, round(number * self._plan.batches_per_baseline_batch))

    def save(self) -> State:
        return {"shift": self._loader.sampler.shift}

    def load(self, found: Continuation) -> None:
        self._loader.sampler.shift = found.shift
        internals.add_steps_elsewhere(self._trainer, found.steps_elsewhere, self._changes)
        if isinstance(self._loader.template.dataset, StreamSamples):
            stream = type(self._loader.template.dataset.stream).__name__
            tell(
                f"{stream} begins with pass {self._loader.sampler.number_of(found.first)[0]} over the data (the first "
                "is 0): an iterable dataset can't go on within one."
            )

    def begin(self, first: Step) -> None:
        # Lightning has just requested the training loader. It must not request those for validation again.
        internals.reload_every(self._trainer, 0)
        self._first = first

    def check(self, step: Step) -> None:
        trainer = self._trainer
        if trainer.optimizers != self._optimizers:
            refuse_other(trainer, "has", "those that `configure_optimizers` returned", "other optimizers now")
        self._check("has `accumulate_grad_batches` =", self._plan.accumulate, trainer.accumulate_grad_batches)
        if step is self._first:
            batches = self._plan.batches_per_epoch
            if trainer.fast_dev_run:  # type: ignore[attr-defined]
                batches = min(batches, int(trainer.num_training_batches))
            self._check("plans an epoch of this many mini-batches:", batches, trainer.num_training_batches)
            self._check("iterates", self._seen, trainer.train_dataloader)

    def hold_patience(self, step: Step) -> None:
        """Lets the patience of `EarlyStopping` count from the last phase on, as coarse grids may hold metrics still."""
        # Validations without a better metric are counted from 0, in earlier phases from -2. So one validation stops no
        # run, even if the patience is 0. A checkpoint means up to two validations more in a training without us.
        for stopping in self._stopping:
            stopping.wait_count = max(0, stopping.wait_count) if step.phase == self._last_phase else -2

    def _check(self, does: str, planned: Any, found: Any) -> None:
        if planned is not found and planned != found:
            refuse_other(self._trainer, does, planned, found)


def refuse_other(trainer: Trainer, does: str, planned: Any, found: Any) -> NoReturn:
    """Refuses what Lightning does, as the plan has something else."""
    version = sys.modules[type(trainer.fit_loop).__module__.partition(".")[0]].__version__
    raise MisconfigurationException(
        f"Lightning {version} {does} {found}, but MultigridCallback has planned {planned}, so the training would be "
        "another one. Does a hook, or another callback, change the loaders, the optimizers, the counters or the "
        "settings of the Trainer? Then leave that out, and give the Trainer the setting from the start. If not, "
        "install a version of Lightning that the package's requirements name, and report this one."
    )

"""Everything of Lightning that this package uses and that is not public: the file to read when Lightning releases.

Each entry names the place in Lightning 2.5.3 to 2.6.6 that it relies on, and why there is no public way. The test of
an entry is `test_<name>` in `tests/training/test_lightning_internals.py`; it fails when Lightning changes. Documented
hooks and properties count as public, and so do attributes of a Trainer that are named like one of its arguments, such
as `limit_train_batches`.
"""

import copy
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch

from lightning_multigrid.host import LightningModule, Trainer, TrainerFn, callbacks_of, is_a
from lightning_multigrid.schedule import Place, Plan
from lightning_multigrid.training.trainer.changes import Changes


def training_source(trainer: Trainer) -> Any:
    """What Lightning asks for the training loader; its attribute `instance` may be replaced by a loader."""
    # `loops/fit_loop.py`, `_FitLoop._data_source`: a loader passed to `fit` is nowhere public.
    return trainer.fit_loop._data_source


def request_once(trainer: Trainer, changes: Changes) -> None:
    """Makes a script's `train_dataloader()` be called once for each loader of a `fit`, until `changes` are undone."""
    # `loops/fit_loop.py`, `_FitLoop.setup_data`: it asks `training_source`, and does so before the callback if
    # `configure_optimizers` wants the length. It keeps the answer only as it iterates it. A tuner drops that for
    # another batch size, so Lightning has no loader when it asks for the next one.
    source = training_source(trainer)
    given, ask = source.instance, source.dataloader
    last: list[Any] = []

    def answer() -> Any:
        if source.instance is not given:
            return ask()
        if trainer.train_dataloader is None or not last:
            last[:] = [ask()]
        return last[0]

    changes.set_attribute(source, "dataloader", answer)


def splits_data(trainer: Trainer) -> bool:
    """Whether Lightning cuts the data among the devices itself: the argument `use_distributed_sampler`."""
    # `trainer/connectors/accelerator_connector.py`: the Trainer has no attribute of that name.
    return bool(trainer._accelerator_connector.use_distributed_sampler)


def loader_seen_as(trainer: Trainer, loader: Any, seen: Any) -> Any:
    """Returns a loader that Lightning iterates as it would `loader`, while `trainer.train_dataloader` is `seen`."""
    # `loops/fit_loop.py`, `_FitLoop.setup_data`; `trainer/trainer.py`, `Trainer.train_dataloader`: of a
    # `CombinedLoader` the loop iterates `flattened`, and scripts see `iterables`. That they may differ is not public,
    # but nothing else tells a script's `iter` from Lightning's.
    # Of `lightning.pytorch` or `pytorch_lightning`, as the Trainer.
    combined = sys.modules[type(trainer.fit_loop).__module__].CombinedLoader
    made = type("LoaderSeenAs", (combined,), {"iterables": property(lambda both: both.seen)})(loader, "max_size_cycle")
    made.seen = seen  # of the object: a class would keep it, and the workers of `loader`, until Python collects garbage
    return made


def reload_every(trainer: Trainer, epochs: int) -> None:
    """Makes Lightning request its loaders anew every `epochs` epochs: 0 is never, -1 at the next opportunity."""
    # `loops/fit_loop.py`, `_should_reload_train_dl`: the Trainer's argument refuses -1.
    trainer.reload_dataloaders_every_n_epochs = epochs  # type: ignore[attr-defined]


def limit_loop(trainer: Trainer, plan: Plan, changes: Changes) -> None:
    """Gives Lightning the plan's numbers of steps instead of the script's, until `changes` are undone."""
    # `loops/training_epoch_loop.py`, `max_steps`, `min_steps`: the Trainer's are read-only.
    steps = trainer.fit_loop.epoch_loop
    changes.set_attribute(trainer, "limit_train_batches", 1.0)
    if steps.max_steps != -1:
        changes.set_attribute(steps, "max_steps", plan.optimizer_steps)
    if steps.min_steps:
        changes.set_attribute(steps, "min_steps", max(1, round(steps.min_steps * plan.batches_per_baseline_batch)))


def add_steps_elsewhere(trainer: Trainer, number: int, changes: Changes) -> None:
    """Lets a limit of steps be this many higher, as Lightning counts steps that other devices have taken."""
    # `loops/training_epoch_loop.py`: see `limit_loop`.
    if trainer.max_steps != -1:
        changes.set_attribute(trainer.fit_loop.epoch_loop, "max_steps", trainer.max_steps + number)


def batch_index(trainer: Trainer) -> int:
    """Returns the number in its epoch of the last mini-batch that has started; -1 before the first one."""
    # `loops/fit_loop.py`, `_FitLoop.batch_idx`: a loader and some hooks are not given it.
    return trainer.fit_loop.batch_idx


def step_is_logged(trainer: Trainer) -> bool:
    """Whether Lightning hands what this step logs on to the loggers."""
    # `loops/training_epoch_loop.py`, `_batches_that_stepped`: the public `global_step` is of all optimizers.
    step, every = trainer.fit_loop.epoch_loop._batches_that_stepped + 1, trainer.log_every_n_steps  # type: ignore[attr-defined]
    return bool(every > 0 and step % every == 0)


def global_seed(trainer: Trainer) -> int:
    """Returns the seed that was given to `seed_everything`, else one that rank 0 draws."""
    # `fabric/utilities/seed.py`: no function returns it.
    given = os.environ.get("PL_GLOBAL_SEED")
    drawn = torch.randint(2**31, ()).item() if given is None else int(given)
    return cast("int", trainer.strategy.broadcast(drawn))


def counted_checkpoints(trainer: Trainer) -> list[tuple[str, int]]:
    """The `ModelCheckpoint`s that write by a count of steps, by name, each with its steps."""
    # `callbacks/model_checkpoint.py`, `_every_n_train_steps`: the argument has no public attribute. It can't be
    # converted, as it is a part of the name under which a checkpoint has the callback's state.
    steps = (callback._every_n_train_steps for callback in callbacks_of(trainer, "ModelCheckpoint"))
    return [(f"`every_n_train_steps={number}` of ModelCheckpoint", number) for number in steps if number > 1]


def slurms_checkpoint(trainer: Trainer) -> set[str]:
    """Returns the newest checkpoint that Lightning has written when SLURM requeued a job, if there is one."""
    # `trainer/connectors/checkpoint_connector.py`, `_hpc_resume_path` and `_parse_ckpt_path`: `ckpt_path="last"` takes
    # the newest file of `ModelCheckpoint._find_last_checkpoints`, and not these.
    path = trainer._checkpoint_connector._hpc_resume_path
    return {path} if path else set()


def requeue_signals(trainer: Trainer) -> set[int]:
    """Returns the signal at which Lightning requeues a job of SLURM, if it may come."""
    # `trainer/connectors/signal_connector.py`: only strategies of several devices publish their environment.
    number = getattr(trainer._accelerator_connector.cluster_environment, "requeue_signal", None)
    return set() if number is None else {number}


def handle_from_now_on(trainer: Trainer, number: int, handler: Callable[[int, Any], Any]) -> None:
    """Sets the handler of a signal, also for the time after `fit`."""
    # `trainer/connectors/signal_connector.py`: when `fit` ends, it restores all handlers that it found.
    signal.signal(number, handler)
    trainer._signal_connector._original_handlers[number] = handler


def attach(trainer: Trainer, module: LightningModule, changes: Changes) -> None:
    """Makes a Trainer answer `configure_optimizers` as in `fit`, without one, until `changes` are undone."""
    # `trainer/trainer.py`, `Trainer.fit`, `_fit_impl` and `_run`: the Trainer knows its module through the strategy,
    # and answers `estimated_stepping_batches` only in this state. Where nothing says how long it trains, it sets 1000
    # epochs (`loops/utilities.py`, `_parse_loop_limits`).
    modules = [part for part in module.modules() if is_a(part, "LightningModule")]
    for owner in (trainer, trainer.state, trainer.strategy, trainer.fit_loop, *modules):
        changes.callback(vars(owner).update, dict(vars(owner)))
        changes.callback(vars(owner).clear)  # comes before `update`
    trainer.state.fn = TrainerFn.FITTING
    if trainer.max_epochs is None:
        ends = trainer.max_steps != -1 or callbacks_of(trainer, "Timer")
        trainer.fit_loop.max_epochs = -1 if ends else 1000
    trainer.strategy.connect(module)
    module.trainer = trainer


def replace_loader(trainer: Trainer, loader: Any, changes: Changes) -> None:
    """Gives Lightning another training loader, which it requests at once, until `changes` are undone."""
    # `loops/fit_loop.py`, `_FitLoop.setup_data`: it fixes the number of batches when it requests the loader, and
    # `configure_optimizers` may have made it do that already.
    changes.set_attribute(training_source(trainer), "instance", loader)
    changes.callback(reload_every, trainer, 0)
    reload_every(trainer, -1)


@contextmanager
def stage_of_training(trainer: Trainer) -> Iterator[None]:
    """Within it, `trainer.training` is true, as some hooks of the data ask; callbacks may be in another stage."""
    # `trainer/trainer.py`, setter of `Trainer.training`: only the loops are meant to set it.
    stage = trainer.state.stage
    trainer.training = True
    try:
        yield
    finally:
        trainer.state.stage = stage


def copy_without_trainer(module: LightningModule, memo: dict[int, Any]) -> LightningModule:
    """Returns a deep copy of a module, which has no Trainer; `memo` has replacements for parts, by their `id`."""
    # `core/module.py`, `LightningModule.__getstate__`: it leaves the Trainer out. A module that `torch.compile` has
    # wrapped (`utilities/compile.py`, `from_compiled`) has steps that would run the original.
    copied = copy.deepcopy(module, memo)
    own = vars(copied)
    if own.get("_compiler_ctx") is not None:
        for name in ("forward", "training_step", "validation_step", "test_step", "predict_step"):
            own.pop(name, None)
    own.pop("_compiled_call_impl", None)
    return copied


def optimizer_overrides(optimizers: list[Any]) -> dict[str, Any]:
    """Overrides for a view of a strategy, so that `LightningModule.optimizers()` returns these optimizers."""
    # `core/module.py`, `LightningModule.optimizers`: it reads an attribute of the strategy that is not public.
    return {"_lightning_optimizers": optimizers}


class LoopCounters:
    """Lightning's own counters in a checkpoint; methods change them there."""

    # `loops/fit_loop.py` and `loops/training_epoch_loop.py`, their `state_dict`; `loops/progress.py`: the layout is not
    # documented, and there is no other way to say where Lightning continues.

    def __init__(self, checkpoint: dict[str, Any]) -> None:
        self._loop = checkpoint["loops"]["fit_loop"]
        self._epochs = self._loop["epoch_progress"]
        self._batches = self._loop["epoch_loop.batch_progress"]

    def settle(self, batches: int, validating: bool) -> None:
        """Takes back what Lightning has counted too early, where it was stopped. An epoch has `batches` mini-batches.

        It names the last mini-batch, and an epoch, before it has counted them (`loops/training_epoch_loop.py`,
        `advance`; `loops/fit_loop.py`, `on_advance_start`), and after a resume keeps a mini-batch that was under way in
        the totals (`loops/progress.py`, `reset_on_restart`). A validation that was stopped begins anew, as its metrics
        are not in the checkpoint (`loops/evaluation_loop.py`, `update_restart_stage`).
        """
        current = self._batches["current"]
        self._batches["is_last_batch"] &= current["processed"] >= batches
        ending = current["processed"] - current["completed"]  # 1 within `on_train_batch_end`
        for progress in (self._batches["total"], current):
            processed = progress["processed"]
            progress.update(ready=processed, started=processed, completed=processed - ending)
        for epochs in (self._epochs["total"], self._epochs["current"]):
            epochs["ready"] = epochs["started"]
        validation = self._loop["epoch_loop.val_loop.batch_progress"]
        current = validation["current"]
        if validating and not (validation["is_last_batch"] and current["completed"] == current["ready"] > 0):
            validation["is_last_batch"] = False
            for progress in (validation["total"], current):
                progress.update(ready=1, started=1, processed=0, completed=0)

    @property
    def place(self) -> Place:
        epochs, batches = self._epochs["current"], self._batches["current"]
        if epochs["started"] == epochs["processed"]:
            return Place(epochs["processed"], 0)
        if self._batches["is_last_batch"] and batches["processed"] == batches["ready"]:
            return Place(epochs["processed"] + 1, 0)
        return Place(epochs["processed"], batches["processed"])

    @property
    def optimizer_steps(self) -> int:
        """Optimizer steps since the start of the training; of manual optimization, mini-batches."""
        if self._loop["epoch_loop.manual_optimization.optim_step_progress"]["total"]["completed"]:
            return int(self._batches["total"]["processed"])  # it counts the steps of all optimizers
        progress = self._loop["epoch_loop.automatic_optimization.optim_progress"]
        return int(progress["optimizer"]["step"]["total"]["completed"])

    def forget_loader(self) -> None:
        """Drops the (empty) state of our loader, so that a training without the callback can also continue."""
        self._loop["state_dict"].pop("combined_loader", None)

    def reopen_epoch(self, place: Place) -> None:
        """Makes Lightning continue at a place within an epoch that it has counted as whole, as it was stopped there.

        `should_stop` ends the epoch with the step (`loops/training_epoch_loop.py`, `done`). At a restart after a step,
        Lightning counts that step for loggers, which it has done here already (`reset` there).
        """
        self.move(place)
        self._loop["epoch_loop.state_dict"]["_batches_that_stepped"] -= 1

    def move(self, place: Place) -> None:
        """Makes Lightning continue at another place, as if a step or an epoch had just ended there."""
        begun = place.epoch + (place.batch > 0)
        for progress in (self._epochs["total"], self._epochs["current"]):
            progress.update(ready=begun, started=begun, processed=place.epoch, completed=place.epoch)
        self._batches["is_last_batch"] = False
        if place.batch:
            total = self._batches["total"]["processed"] + place.batch - self._batches["current"]["processed"]
            for progress, batches in ((self._batches["total"], total), (self._batches["current"], place.batch)):
                progress.update(ready=batches, started=batches, processed=batches, completed=batches - 1)
        else:
            self._batches["current"].update(dict.fromkeys(self._batches["current"], 0))
        validation = self._loop["epoch_loop.val_loop.batch_progress"]  # no validation is under way there
        for progress in (validation["total"], validation["current"]):
            progress.update(dict.fromkeys(progress, 0))

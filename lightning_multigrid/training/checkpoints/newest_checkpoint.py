"""The newest state of a training, for `ckpt_path="last"`."""

import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from lightning_utilities.core.rank_zero import rank_zero_warn
from typing_extensions import override

from lightning_multigrid.host import (
    LightningModule,
    MisconfigurationException,
    ModelCheckpoint,
    SIGTERMException,
    Trainer,
    callbacks_of,
    is_a,
    tell,
    tell_above_bar,
)
from lightning_multigrid.schedule import duration
from lightning_multigrid.training.trainer import lightning_internals as internals
from lightning_multigrid.training.trainer.torch_internals import asks_for_mini_batch, awaits_mini_batch


class NewestCheckpoint(ModelCheckpoint):
    """Keeps the newest state of a training as `last.ckpt`: every few minutes, at the end, and where a signal stops it.

    `fit(..., ckpt_path="last")` continues from `last.ckpt`, or from the checkpoint that Lightning writes when SLURM
    requeues the job, if that checkpoint is newer. If the folder has other checkpoints but no `last.ckpt`, `fit` refuses
    to begin. In an empty folder a new training begins. `ModelCheckpoint(monitor=..., save_last=True)` writes
    `last.ckpt` only together with a better checkpoint (Lightning 2.6.6), so there a training goes back to its best
    epoch.

    Ctrl-C, SIGTERM and SLURM's signal take effect after the step that is under way. On several devices, a signal to any
    of them takes effect on all of them after the same step. On one device, a signal also takes effect after a
    mini-batch of a validation, and where the loop asks or waits for a mini-batch, because the same signal may have
    ended the workers. The second Ctrl-C takes effect at once. After an error no checkpoint is written, because a step
    may be half done; the training continues from the checkpoint that was written before the error.

    Args:
        dirpath: Folder of this training's checkpoints. A new training renames a `last.ckpt` that it finds there to
            `earlier-1.ckpt`, `earlier-2.ckpt` and so on. It touches no other file.
        minutes: Minutes of training from one write to the next, at least 0 (a write after each step). A kill or an
            error loses at most this much work.

    Raises:
        ValueError: If `minutes` is negative.
    """

    def __init__(self, dirpath: str | os.PathLike[str], minutes: float = 5.0) -> None:
        if minutes < 0:
            raise ValueError(f"`minutes` must be at least 0, got {minutes:g}.")
        super().__init__(
            os.fspath(dirpath),
            filename=self.CHECKPOINT_NAME_LAST,
            train_time_interval=timedelta(minutes=minutes),
            enable_version_counter=False,
        )
        self._given, self._seconds, self._written = os.fspath(dirpath), 60 * minutes, 0.0
        self.command = ""  # that continues the training, if one has started it
        self._trained = self._in_step = self._has_written = False
        self._stopping = False  # whether a signal has taken effect since the last step began
        self._mark = 0  # of what was written last
        self._anew = False  # whether it must keep the `last.ckpt` of another training
        self._handlers: dict[int, Callable[[int, Any], Any]] = {}
        self._signals: set[int] = set()  # that have come, and have not taken effect
        self._watch = ExitStack()  # looks at each call, until they take effect

    @property
    @override
    def state_key(self) -> str:
        return f"NewestCheckpoint({self._given!r})"  # a config may have one, and the script that starts it another

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        # Lightning asks the first `ModelCheckpoint` for `ckpt_path="best"`, and this one knows of no best.
        host: Any = trainer
        host.callbacks = [*(callback for callback in host.callbacks if callback is not self), self]
        self._trained = self._in_step = self._has_written = self._stopping = False
        self._mark = 0
        self._signals.clear()

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        self._written = time.monotonic()
        tries: bool = trainer.fast_dev_run  # type: ignore[attr-defined]
        self._anew = not (trainer.ckpt_path or internals.slurms_checkpoint(trainer) or trainer.global_step or tries)
        if threading.current_thread() is threading.main_thread():
            self._note_signals(trainer)

    # --- Signals ---

    def _note_signals(self, trainer: Trainer) -> None:
        """Lets the handlers of signals run after a step, on all ranks; Lightning restores them at the end of `fit`."""
        # On one device, Lightning's (2.6.6) may find the optimizer in the middle of its step. On several, they wait for
        # the other ranks wherever a signal finds them: for ever, if that is another place.
        self._handlers.clear()
        for number in sorted({signal.SIGINT, signal.SIGTERM, *internals.requeue_signals(trainer)}):
            handler = signal.getsignal(number)
            if callable(handler):
                self._handlers[number] = handler
                signal.signal(number, partial(self._on_signal, trainer, os.getpid()))

    def _on_signal(self, trainer: Trainer, process: int, number: int, frame: Any) -> None:
        if os.getpid() != process:  # a worker, which is a fork: it ends with its loader
            return
        if number == signal.SIGINT and number in self._signals:
            self._handlers.get(number, _ignore)(number, frame)  # the second Ctrl-C waits for nothing
        self._signals.add(number)
        # The workers of loaders may also have got it. torch's handler raises wherever it finds that one has ended, even
        # at the end of the process.
        internals.handle_from_now_on(trainer, signal.SIGCHLD, _ignore)
        if awaits_mini_batch(frame):
            self._obey_alone(trainer)
        elif sys.getprofile() is None:  # a profiler of the script stays
            self._watch.callback(sys.setprofile, None)
            sys.setprofile(partial(self._on_call, trainer, process))

    def _on_call(self, trainer: Trainer, process: int, frame: Any, *_: Any) -> None:
        """Obeys before the loop asks for a mini-batch: its workers may have ended, so that none comes."""
        if asks_for_mini_batch(frame) and os.getpid() == process:
            self._obey_alone(trainer)

    def _obey(self, trainer: Trainer) -> None:
        """Runs the handlers of the signals that have come, to any rank."""
        self._watch.close()
        for number, handler in self._handlers.items():
            if trainer.strategy.reduce_boolean_decision(number in self._signals, all=False):
                self._signals.discard(number)
                self._stopping = True
                handler(number, None)

    def _obey_alone(self, trainer: Trainer) -> None:
        """Obeys where ranks may not be at the same place, and Lightning doesn't look whether SIGTERM has come."""
        if self._signals and not self._in_step and trainer.world_size == 1:
            self._obey(trainer)
            if trainer.received_sigterm:
                raise SIGTERMException

    @override
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._obey_alone(trainer)

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        self._in_step, self._stopping = True, False

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._in_step, self._trained = False, True
        self._keep_earlier(trainer)
        if (batch_idx + 1) % trainer.accumulate_grad_batches and not trainer.is_last_batch:
            return  # within an optimizer step
        # A clock of its own: Lightning's (2.6.6) stands still with manual optimization. One rank decides for all.
        due = time.monotonic() - self._written >= self._seconds
        if trainer.strategy.reduce_boolean_decision(due or bool(self._signals), all=False):
            if due or trainer.world_size > 1:
                self._write(trainer)
            self._obey(trainer)

    @override
    def on_validation_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if trainer.world_size == 1:
            self._obey(trainer)

    # --- The end ---

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._in_step = False  # the script may have left out the rest of the epoch
        if trainer.should_stop and _averages(trainer):
            self._write(trainer)

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not (trainer.should_stop and _averages(trainer)):
            self._write(trainer)
        self._obey(trainer)

    @override
    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._has_written and trainer.should_stop:
            tell(f"{self._last} continues from {self._path}{self._way_on}")
        elif self._has_written:
            tell(f"The training ends in {self._path}: `validate`, `test` and `predict` take it as `ckpt_path`.")

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._end_signals()
        if not self._trained:
            return
        # On several devices it was written after the step. After an error, this rank alone may have failed.
        stopped = (self._signals or self._stopping) and not self._in_step and trainer.world_size == 1
        if stopped and not (trainer.validating and _averages(trainer)):
            self._write(trainer)
        if self._has_written or _mark(self._path):
            age = time.monotonic() - self._written if self._has_written else time.time() - _mark(self._path) / 1e9
            before = f", written {duration(age)} before" if age > 1 else ""
            tell(f"{self._last} continues from {self._path}{before}{self._way_on}")
        else:
            tell(f"No checkpoint was written yet: NewestCheckpoint writes one every {self._seconds / 60:g} minutes.")

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        super().teardown(trainer, pl_module, stage)
        self._end_signals()

    def _end_signals(self) -> None:
        self._watch.close()
        self._handlers.clear()  # Lightning's, which hold the Trainer

    @property
    def _last(self) -> str:
        return "`--ckpt_path last`" if self.command else "`ckpt_path='last'`"

    @property
    def _way_on(self) -> str:
        return f":\n    {self.command}" if self.command else "."

    # --- Files ---

    @property
    def _path(self) -> str:
        return os.path.join(str(self.dirpath), self.CHECKPOINT_NAME_LAST + self.FILE_EXTENSION)

    def _keep_earlier(self, trainer: Trainer) -> None:
        """Renames the `last.ckpt` of another training, so that this training doesn't overwrite it, and says so."""
        path = Path(self._path)
        if self._anew and trainer.is_global_zero and path.exists():
            numbered = (path.with_name(f"earlier-{number}{path.suffix}") for number in itertools.count(1))
            kept = path.rename(next(free for free in numbered if not free.exists()))
            argument = "--ckpt_path" if self.command else "ckpt_path"
            tell_above_bar(
                trainer,
                f"{path} was of an earlier training, and is {kept} now. To continue that training, give this file as "
                f"`{argument}`; another time, give {self._last}.",
            )
        self._anew = False

    def _write(self, trainer: Trainer) -> None:
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        if self._mark and _mark(self._path) != self._mark:
            rank_zero_warn(
                f"{self._path} is not what this NewestCheckpoint has written there: another training, or a "
                f"`ModelCheckpoint(save_last=True)`, also writes to its folder, or has moved it. {self._last} goes on "
                "from what was written last. Give each a `dirpath` of its own."
            )
        self._has_written = True
        trainer.save_checkpoint(self._path, weights_only=False)
        self._written = time.monotonic()
        later = is_a(trainer.strategy.checkpoint_io, "plugins.io.AsyncCheckpointIO")
        self._mark = _mark(self._path) if trainer.is_global_zero and not later else 0

    def _find_last_checkpoints(self, trainer: Trainer) -> set[str]:  # see `slurms_checkpoint`
        found = super()._find_last_checkpoints(trainer) | internals.slurms_checkpoint(trainer)
        others = [] if found else sorted(Path(str(self.dirpath)).glob(f"*{self.FILE_EXTENSION}"), key=_mark)
        if others:
            raise MisconfigurationException(
                f"{self._last} finds no {self._path}. The newest checkpoint in that folder is {others[-1]}: give that, "
                "or begin a training in a `dirpath` of its own."
            )
        return found


def _ignore(*_: object) -> None:
    """Does nothing. Python reports a signal that has come already if it is ignored by `SIG_DFL`."""


def _averages(trainer: Trainer) -> bool:
    """Whether Lightning's (2.6.6) `WeightAveraging` gives the module the average: in a validation, and at the end."""
    # It would write them as if it had not, and what continues a run needs the module's own weights.
    return bool(callbacks_of(trainer, "WeightAveraging"))


def _mark(path: str | os.PathLike[str]) -> int:
    """When a checkpoint was written, in ns; 0 if it is not there."""
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0

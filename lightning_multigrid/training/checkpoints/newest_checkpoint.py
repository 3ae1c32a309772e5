"""The newest state of a training, for `ckpt_path="last"`."""

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from lightning_utilities.core.rank_zero import rank_zero_warn
from typing_extensions import override

from lightning_multigrid.host import LightningModule, ModelCheckpoint, Trainer, callbacks_of, is_a, tell, tell_above_bar
from lightning_multigrid.training.trainer.lightning_internals import slurms_checkpoint


class NewestCheckpoint(ModelCheckpoint):
    """Keeps the newest state of a training as `last.ckpt`: every few minutes, at the end, and where it is stopped.

    `fit(..., ckpt_path="last")` continues from it, or from the checkpoint that Lightning writes when SLURM requeues the
    job, if that is newer. `ModelCheckpoint(monitor=..., save_last=True)` writes `last.ckpt` only together with a better
    one (Lightning 2.6.6), so with it a training goes back to its best epoch.

    On several devices, Ctrl-C, SIGTERM or SLURM's signal to one of them takes effect on all, after the same step. After
    an error on one of them the others may be at another step, so nothing is written. Nor is it where a validation with
    `WeightAveraging` is stopped: the weights are swapped then.

    Args:
        dirpath: Folder of this training's checkpoints. A training that begins anew in it moves the checkpoints that it
            finds to `earlier-1`, `earlier-2` and so on: whatever other callbacks write, too, is kept.
        minutes: Minutes of training from one write to the next, at least 0 (after each step). A kill loses no more.

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
        self._trained, self._mark = False, 0
        self._earlier: dict[Path, float] = {}  # checkpoints of another training, and when each was written
        self._handlers: dict[int, Callable[[int, Any], Any]] = {}
        self._signals: set[int] = set()

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
        self._trained = self._has_written = False
        self._mark = 0
        self._signals.clear()

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        self._written = time.monotonic()
        anew = not (trainer.ckpt_path or slurms_checkpoint(trainer) or trainer.global_step or trainer.fast_dev_run)  # type: ignore[attr-defined]
        self._earlier = _checkpoints(Path(str(self.dirpath))) if anew and trainer.is_global_zero else {}
        if trainer.world_size > 1 and threading.current_thread() is threading.main_thread():
            self._wait_for_steps(trainer.strategy)

    def _wait_for_steps(self, strategy: Any) -> None:
        """Lets the handlers of signals run after a step, on all ranks; Lightning restores them at the end of `fit`.

        Lightning's (2.6.6) wait for the other ranks wherever a signal finds them: for ever, if that is another place.
        """
        self._handlers.clear()
        requeue = getattr(strategy.cluster_environment, "requeue_signal", signal.SIGTERM)  # of SLURM
        for number in sorted({signal.SIGINT, signal.SIGTERM, requeue}):
            handler = signal.getsignal(number)
            if callable(handler):
                self._handlers[number] = handler
                signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: Any) -> None:
        if number == signal.SIGTERM:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's raises if a worker of the loader got it, too
        if number == signal.SIGINT and number in self._signals:
            self._handlers[number](number, frame)  # the second Ctrl-C waits for nothing
        self._signals.add(number)

    @override
    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any) -> None:
        self._trained = True
        if self._earlier:
            if kept := _keep(self._earlier, Path(str(self.dirpath))):
                argument = "--ckpt_path" if self.command else "ckpt_path"
                ways_on = f"Give `{argument}` a file of it to continue that; another time, give {self._last}."
                tell_above_bar(trainer, f"{kept} {ways_on}")
            self._earlier = {}
        # A clock of its own: Lightning's (2.6.6) stands still with manual optimization. One rank decides for all.
        due = time.monotonic() - self._written >= self._seconds
        if trainer.strategy.reduce_boolean_decision(due or bool(self._signals), all=False):
            self._write(trainer)
            self._written = time.monotonic()
            for number, handler in self._handlers.items():
                if trainer.strategy.reduce_boolean_decision(number in self._signals, all=False):
                    self._signals.discard(number)
                    handler(number, None)

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if _stops_averaging(trainer):
            self._write(trainer)

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not _stops_averaging(trainer):
            self._write(trainer)

    @override
    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._has_written and trainer.should_stop:
            tell(f"{self._last} continues from {self._path}{self._way_on}")
        elif self._has_written:
            tell(f"The training ends in {self._path}: `validate`, `test` and `predict` take it as `ckpt_path`.")

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        # Without a step, a run that can't continue would write over what it should continue from. And ranks may have
        # failed at different steps: they would wait for each other.
        if self._trained and trainer.world_size == 1 and not _may_be_swapped(trainer):
            self._write(trainer)
        if self._trained and self._has_written:
            tell(f"{self._last} continues from {self._path}{self._way_on}")

    @property
    def _last(self) -> str:
        return "`--ckpt_path last`" if self.command else "`ckpt_path='last'`"

    @property
    def _way_on(self) -> str:
        return f":\n    {self.command}" if self.command else "."

    @property
    def _path(self) -> str:
        return os.path.join(str(self.dirpath), self.CHECKPOINT_NAME_LAST + self.FILE_EXTENSION)

    def _write(self, trainer: Trainer) -> None:
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        if self._mark and _mark(self._path) != self._mark:
            rank_zero_warn(
                f"{self._path} is not what this NewestCheckpoint has written there: another training, or a "
                f"`ModelCheckpoint(save_last=True)`, writes to its folder, too, or has moved it. {self._last} goes on "
                "from what was written last. Give each a `dirpath` of its own."
            )
        self._has_written = True
        trainer.save_checkpoint(self._path, weights_only=False)
        later = is_a(trainer.strategy.checkpoint_io, "plugins.io.AsyncCheckpointIO")
        self._mark = _mark(self._path) if trainer.is_global_zero and not later else 0

    def _find_last_checkpoints(self, trainer: Trainer) -> set[str]:  # see `slurms_checkpoint`
        found: set[str] = super()._find_last_checkpoints(trainer)
        return found | slurms_checkpoint(trainer)


def _may_be_swapped(trainer: Trainer) -> bool:
    """Whether the module may hold averaged weights, and the average the module's own.

    Lightning's (2.6.6) `WeightAveraging` swaps them for each validation, and would write them as if it had not.
    """
    return trainer.validating and bool(callbacks_of(trainer, "WeightAveraging"))


def _stops_averaging(trainer: Trainer) -> bool:
    """Whether a run stops, and `on_train_end` of `WeightAveraging` gives the module the average (Lightning 2.6.6).

    What continues the run needs the module's own weights.
    """
    return trainer.should_stop and bool(callbacks_of(trainer, "WeightAveraging"))


def _mark(path: str) -> int:
    """When a checkpoint was written, in ns; 0 if it is not there."""
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


def _checkpoints(folder: Path) -> dict[Path, float]:
    return {path: path.stat().st_mtime for path in folder.glob("*.ckpt")} if folder.is_dir() else {}


def _keep(earlier: Mapping[Path, float], folder: Path) -> str:
    """Moves checkpoints that another training has left to the first free folder `earlier-N`, and says so."""
    left = [path for path, written in _checkpoints(folder).items() if earlier.get(path) == written]
    if not left:
        return ""
    kept = next(path for number in itertools.count(1) if not (path := folder / f"earlier-{number}").exists())
    kept.mkdir()
    for path in left:
        path.replace(kept / path.name)
    return f"{folder} had {len(left)} checkpoint{'s' * (len(left) > 1)} of an earlier training, now in {kept}."

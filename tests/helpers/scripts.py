"""Runs a Lightning script without the callback and with it, and states what must hold.

A script is a module, its data and the arguments of a Trainer, made anew for each run.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn

from lightning_multigrid import BatchShape, MultigridCallback
from tests.helpers.small_scripts import BATCH, CLIPS, EPOCHS, FRAMES, SIZE, Script, loader

QUIET = {"accelerator": "cpu", "num_sanity_val_steps": 0, "max_epochs": EPOCHS}
QUIET |= dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
SHAPE = BatchShape(BATCH, FRAMES, SIZE)
RESTORED = ("max_epochs", "max_steps", "limit_train_batches", "log_every_n_steps", "val_check_interval")
RESTORED += ("check_val_every_n_epoch", "reload_dataloaders_every_n_epochs")


def tensors(batch: Any) -> Iterator[Tensor]:
    """All tensors of a mini-batch, in order."""
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, dict):
        for value in batch.values():
            yield from tensors(value)
    elif isinstance(batch, (tuple, list)):
        for value in batch:
            yield from tensors(value)


@dataclass(frozen=True)
class Style:
    """A way to write a script, and what must come of it.

    Args:
        group: Heading of its table.
        name: What the script does.
        module: Makes the module.
        data: Makes what is given to `fit`: a loader or a data module; None if the module has its own.
        trainer: Arguments of the Trainer.
        callbacks: Makes the script's own callbacks.
        multigrid: Arguments that the callback needs for it.
        refused: What the error says, if the script is refused.
        outcome: What the documentation adds.
        axes: Axes of the clips in a mini-batch.
        shape: The baseline's mini-batch.
        clips: Clips of an epoch.
        epochs: The baseline's epochs.
        resumes: Whether a resumed run equals the whole one to the bit; else it has the same steps and LR, but for None.
        lr: Whether the LR is that of the baseline run at the baseline's epochs.
        late: Whether it is refused while it trains.
        plain: Whether the script ends without the callback.
        warns: What the callback warns of.
        needs: A package without which the row is skipped.
    """

    group: str
    name: str
    module: Callable[[], L.LightningModule] = Script
    data: Callable[[], Any] | None = loader
    trainer: dict[str, Any] = field(default_factory=dict)
    callbacks: Callable[[], list[L.Callback]] = list
    multigrid: dict[str, Any] = field(default_factory=dict)
    refused: str | None = None
    outcome: str = ""
    axes: str = "NCTHW"
    shape: BatchShape = SHAPE
    clips: int = CLIPS
    epochs: float | None = EPOCHS
    resumes: bool | None = True
    lr: bool = True
    late: bool = False
    plain: bool = True
    warns: str | None = None
    needs: str | None = None

    @property
    def id(self) -> str:
        return f"{self.group}: {self.name}"


class Rows(list[Style]):
    """Rows of the table; a call adds one."""

    def __call__(self, group: str, name: str, **how: Any) -> None:
        self.append(Style(group, name, **how))


class Watch(L.Callback):
    """Notes the clips and the loss of each mini-batch, and the LRs in use of each optimizer step."""

    def __init__(self, axes: str) -> None:
        self.axes = axes
        self.shapes: list[tuple[int, ...]] = []
        self.lrs: dict[tuple[int, int], list[float]] = {}  # (epoch, batch) -> of all groups of the optimizers that step
        self.losses: list[float] = []
        self._batch = 0

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._batch = batch_idx
        found = [one for one in tensors(batch) if one.ndim == len(self.axes)]
        if found:  # in some that are refused, not
            sizes = dict(zip(self.axes, max(found, key=Tensor.numel).shape, strict=True))
            self.shapes.append((sizes["N"], sizes.get("T", 1), min(sizes["H"], sizes["W"])))

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.losses.append(float(outputs["loss"]) if outputs else 0.0)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        for optimizer in trainer.optimizers:
            optimizer.register_step_pre_hook(lambda one, *_: self._note(trainer, one))

    def _note(self, trainer: Any, optimizer: Any) -> None:
        lrs = [float(group["lr"]) for group in optimizer.param_groups if "lr" in group]
        self.lrs.setdefault((trainer.current_epoch, self._batch), []).extend(lrs)


class Keep(ModelCheckpoint):
    """Not to be taken for one of the script's."""


@dataclass
class Run:
    trainer: L.Trainer
    module: L.LightningModule
    watch: Watch
    settings: dict[str, Any]  # of the Trainer, before `fit`


def run(style: Style, folder: Path, *callbacks: L.Callback, **arguments: Any) -> Run:
    L.seed_everything(3, verbose=False)
    watch = Watch(style.axes)
    ckpt_path = arguments.pop("ckpt_path", None)
    own = style.callbacks()
    given = QUIET | {"default_root_dir": folder, "enable_checkpointing": bool(callbacks)} | style.trainer | arguments
    if any(isinstance(callback, ModelCheckpoint) for callback in (*own, *callbacks)):
        given["enable_checkpointing"] = True
    if given["logger"] is True:
        given["logger"] = CSVLogger(folder)
    trainer = L.Trainer(**given, callbacks=[*own, *callbacks, watch])
    settings = {name: getattr(trainer, name) for name in RESTORED}
    module = style.module()
    data = None if style.data is None else style.data()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Found 1 module.* in eval mode")
        warnings.filterwarnings("ignore", "Be aware that when using `ckpt_path`")
        warnings.filterwarnings("ignore", "Checkpoint directory")
        warnings.filterwarnings("ignore", "Using ModelCheckpoint with manual optimization")
        warnings.filterwarnings("ignore", "The dirpath has changed")
        warnings.filterwarnings("ignore", "Your `IterableDataset` has `__len__` defined")
        warnings.filterwarnings("ignore", "`training_step` returned `None`")
        warnings.filterwarnings("ignore", "You requested to overfit but enabled train dataloader shuffling")
        trainer.fit(module, data, ckpt_path=ckpt_path)
    return Run(trainer, module, watch, settings)


def weights(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items() if isinstance(value, Tensor)}


def plan_of(style: Style, callback: MultigridCallback) -> list[tuple[int, int, int]]:
    """Clips x frames x size of every step."""
    schedule, sampler = callback.run.plan.schedule, callback.run.plan
    assert schedule.baseline.shape == style.shape
    assert style.epochs in (None, schedule.baseline.epochs)
    assert sampler.clips == style.clips
    steps = [step for epoch in range(schedule.epochs) for step in sampler.epoch(epoch)]
    steps = steps[: sum(sampler.phase_steps)]  # `max_steps` may end within an epoch
    return [(step.shape.clips, step.shape.frames, step.shape.size) for step in steps]


def check_lr(style: Style, plain: Run, ours: Run, callback: MultigridCallback) -> None:
    """Each LR is the baseline's at the clock of the step, times the scale."""
    sampler = callback.run.plan
    accumulate = sampler.accumulate
    batches = 1 + max(batch for _, batch in plain.watch.lrs)
    assert len(ours.watch.lrs) > 4
    for (epoch, batch), lrs in ours.watch.lrs.items():
        step = sampler.epoch(epoch)[batch - batch % accumulate]
        position = epoch + Fraction(step.place.batch, sampler.batches_per_epoch)
        clock = sampler.schedule.baseline_epoch(position)
        assert clock == position or sampler.schedule.stepwise  # else it is Lightning's own
        whole = math.floor(clock)
        at = math.floor((clock - whole) * batches)
        # The baseline's optimizer step that takes in this batch.
        taken = min(b for e, b in plain.watch.lrs if e == whole and b >= at)
        expected = [lr * step.lr_scale for lr in plain.watch.lrs[whole, taken]]
        assert len(lrs) == len(expected)
        for lr, wanted in zip(lrs, expected, strict=True):
            assert math.isclose(lr, wanted, rel_tol=1e-6), (epoch, batch, lrs, expected)


def check_restored(plain: Run, ours: Run, callback: MultigridCallback) -> None:
    """All that the callback changed is as the script had it."""
    assert {name: getattr(ours.trainer, name) for name in RESTORED} == ours.settings
    assert [type(layer) for layer in ours.module.modules()] == [type(layer) for layer in plain.module.modules()]
    assert vars(ours.module).keys() == vars(plain.module).keys()
    assert ours.module.state_dict().keys() == plain.module.state_dict().keys()
    for mine, theirs in zip(ours.trainer.optimizers, plain.trainer.optimizers, strict=True):
        kinds, its = ([{k: type(v) for k, v in group.items()} for group in one.param_groups] for one in (mine, theirs))
        assert kinds == its
    for mine, theirs in zip(ours.trainer.lr_scheduler_configs, plain.trainer.lr_scheduler_configs, strict=True):
        assert type(mine.scheduler) is type(theirs.scheduler)
        assert vars(mine.scheduler).keys() == vars(theirs.scheduler).keys()
    known = [type(one) for one in plain.trainer.callbacks]
    assert [type(one) for one in ours.trainer.callbacks if one is not callback and type(one) in known] == known


def check_style(style: Style, folder: Path) -> None:
    """Runs a style that works: shapes on the plan, LR, state afterwards, and resume in mid-epoch."""
    plain = run(style, folder / "plain")
    callback = MultigridCallback(**style.multigrid)
    # Not after the last step of an epoch: when it resumes there, Lightning leaves out what a script does at its end.
    keep = Keep(folder / "kept", every_n_train_steps=5, save_top_k=-1, save_last=False)
    with warns(style):
        ours = run(style, folder / "ours", callback, keep)
    planned = plan_of(style, callback)
    assert ours.watch.shapes == planned
    assert len(set(planned)) > 2  # images have three sizes, and no tail has another number of clips
    if style.lr:
        check_lr(style, plain, ours, callback)
    check_restored(plain, ours, callback)
    if style.resumes is not None:
        check_resumed(style, folder, ours, planned)


def check_resumed(style: Style, folder: Path, ours: Run, planned: list[tuple[int, int, int]]) -> None:
    """A run that goes on from the middle has the same steps, and the same weights at the end."""
    kept = sorted((folder / "kept").glob("*.ckpt"), key=lambda path: path.stat().st_mtime)
    middle = kept[(len(kept) - 1) // 2]
    with warns(style):
        rest = run(style, folder / "rest", MultigridCallback(**style.multigrid), ckpt_path=middle)
    assert rest.watch.shapes == planned[-len(rest.watch.shapes) :]
    assert 0 < len(rest.watch.shapes) < len(planned)
    for place, lrs in rest.watch.lrs.items():
        assert lrs == ours.watch.lrs[place], place
    whole, resumed = weights(ours.module), weights(rest.module)
    differing = [name for name, value in whole.items() if not torch.equal(value, resumed[name])]
    assert bool(differing) != style.resumes, differing


def check_refused(style: Style, folder: Path) -> None:
    """Runs a style that is refused: without the callback it works; with it the error says why."""
    if style.plain:
        run(style, folder / "plain", fast_dev_run=4)
    steps = Watch(style.axes)
    with pytest.raises(Exception, match=style.refused):
        run(style, folder / "ours", MultigridCallback(**style.multigrid), steps)
    assert bool(steps.shapes) == style.late


def warns(style: Style) -> AbstractContextManager[Any]:
    """The callback says what it has to say of a style."""
    return nullcontext() if style.warns is None else pytest.warns(UserWarning, match=style.warns)

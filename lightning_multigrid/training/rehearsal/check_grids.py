"""Tries each grid on a script before the first step, and refuses those that fail or would mean something else."""

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import yaml
from lightning_utilities.core.apply_func import apply_to_collection
from lightning_utilities.core.rank_zero import rank_zero_warn
from rich.progress import track
from torch import Tensor

from lightning_multigrid.host import LightningModule, Trainer
from lightning_multigrid.loading import seeded
from lightning_multigrid.positions import knows_grids
from lightning_multigrid.schedule import BatchShape
from lightning_multigrid.training.mini_batches import Handler, shapes_of_clips
from lightning_multigrid.training.rehearsal import rules
from lightning_multigrid.training.rehearsal.batches import (
    ALIKE,
    NOISE,
    READING,
    REAL,
    TRIED_CLIPS,
    Clips,
    ScriptBatches,
    enlarged,
)
from lightning_multigrid.training.rehearsal.counted import counted_from_first
from lightning_multigrid.training.rehearsal.rules import PointsOnPlan, named
from lightning_multigrid.training.rehearsal.trial import Rehearsal, Trial, error_text
from lightning_multigrid.training.trainer.lightning_internals import stage_of_training

# What the layer's type and the error say, and the way out: the first that fits.
_WAYS_OUT = yaml.safe_load((Path(__file__).parent / "ways_out.yaml").read_text(encoding="utf-8"))
_OTHERS = (NOISE, REAL), (REAL, NOISE)  # either clip of `ALIKE` is another one


def check_grids(
    module: LightningModule,
    grids: Sequence[BatchShape],
    batches: ScriptBatches,
    plan: PointsOnPlan,
    boxes_follow: bool = False,
    trainer: Trainer | None = None,
) -> None:
    """Refuses grids that a script cannot take, or on which it would compute something else than on the baseline's.

    The first grid is the baseline's; all are in the order in which the plan uses them. Small mini-batches go through
    the script's hooks and a `Rehearsal`: without a Trainer, of shapes only. What cannot be rehearsed on the baseline's
    grid is accepted, and said. Where boxes follow the clips, pixels may be counted from the first: so places are judged
    on grids of the full size.
    """
    shapes = [*dict.fromkeys(grid.clip for grid in grids)]
    check = _Check(module, shapes, batches, plan, boxes_follow, trainer)
    quiet = trainer is None or trainer.progress_bar_callback is None or not trainer.is_global_zero
    if all(map(check.try_grid, track(shapes, "Rehearsing the grids", disable=quiet, transient=True))):
        plan.tried = True
        if trainer is not None and len({grid.clips for grid in grids}) > 1:
            check.try_numbers_of_clips(grids)


class _Check:
    """What is tried of a script, one grid after the other."""

    def __init__(
        self,
        module: LightningModule,
        shapes: Sequence[BatchShape],
        batches: ScriptBatches,
        plan: PointsOnPlan,
        boxes_follow: bool,
        trainer: Trainer | None,
    ) -> None:
        self._module, self._trainer, self._plan, self._boxes_follow = module, trainer, plan, boxes_follow
        self._baseline, self._coarsest = shapes[0], min(shapes, key=lambda grid: grid.points)
        self._rehearsal = Rehearsal(module, trainer, self._baseline)
        self._first: Trial | None = None  # on the baseline's grid
        self._kept_apart: set[str] | None = None  # layers that keep clips apart there
        self._shapes: dict[BatchShape, Any] = {}  # of a small mini-batch, as a step gets it
        self._small: Any = None  # that mini-batch on the coarsest grid,
        self._losses: Sequence[float] = ()  # and its losses
        wanted: dict[BatchShape, list[Clips]] = {grid: [ALIKE] for grid in shapes}
        if trainer is not None:
            wanted = {grid: [ALIKE, *_OTHERS] for grid in shapes}
            wanted[self._coarsest] += [ALIKE * 2, ALIKE * 4]
        self._hooks = batches.hooks
        with self._apart():
            self._read = batches.read(wanted)

    def _handlers(self, grid: BatchShape, clips: Clips) -> list[Handler]:
        """What makes a mini-batch, in its order: the first one is given None."""

        def read(_: None) -> Any:
            batch = self._read.pop((grid, clips))
            if isinstance(batch, Exception):
                raise batch
            return batch

        return [Handler(READING, read), *self._hooks]

    def _arrived(self, grid: BatchShape, clips: Clips) -> Any:
        batch: Any = None
        with self._apart():
            for _, handle in self._handlers(grid, clips):
                batch = handle(batch)
        return batch

    def try_grid(self, grid: BatchShape) -> bool:
        """Refuses a grid, or returns whether there is anything to try on the next one."""
        batch: Any = None
        for where, handle in self._handlers(grid, ALIKE):
            try:
                with self._apart():
                    batch = handle(batch)
            except Exception as error:
                if grid != self._baseline:
                    raise self._refusal(grid, where, error) from error
                self._warn_of_failures({where: error_text(error)})
                return False
            self._plan.check(where, grid, shapes_of_clips(batch), TRIED_CLIPS)
        self._shapes[grid] = apply_to_collection(batch, Tensor, lambda tensor: tensor.to("meta"))
        if grid == self._coarsest:
            self._small = batch
        if grid == self._baseline:
            self._first = self._rehearsal.begin(batch)
            self._warn_of_failures(self._rehearsal.failures)
        if self._first is None:
            return True  # hooks may still refuse other grids
        trial = self._first if grid == self._baseline else self._rehearsal.watch(grid, batch)
        if isinstance(trial.error, torch.OutOfMemoryError):  # a rehearsal keeps more than a step does
            self._warn_of_failures({f"a step on {grid}": error_text(trial.error)})
            return False
        if trial.error is not None:
            raise self._refusal(grid, self._layer_name(trial.layer), trial.error) from trial.error
        if grid == self._coarsest:
            self._losses = trial.losses
        costs = trial.flops / self._first.flops / (grid.points / self._baseline.points) if self._first.flops else 1.0
        self._plan.check_model(grid, trial.convolved, TRIED_CLIPS, costs)
        if grid != self._baseline:
            self._refuse_counted(grid, self._first, trial)
            self._refuse_mixing(grid, self._first, trial)
            rules.check_finite(type(self._module).__name__, grid, self._first.losses, trial.losses)
        return True

    def _refuse_counted(self, grid: BatchShape, first: Trial, trial: Trial) -> None:
        """Refuses layers that give the points of a grid the places of the beginning of the baseline's."""
        if self._boxes_follow and grid.size != self._baseline.size:
            return
        ratios = grid.frames / self._baseline.frames, grid.size / self._baseline.size
        layer = counted_from_first(first.encounters, trial.encounters, ratios)
        if layer is not None and not knows_grids(self._module, layer):
            raise ValueError(
                f"{type(self._module).__name__} counts places from the first: on {named(grid)}, "
                f"{self._layer_name(layer)} gives its points the places of the beginning of the baseline's grid, but "
                "the clips are spread over all of it. Give that layer, or the module, a method `set_grid(self, frames, "
                "size)`, which is called before each mini-batch, and let it spread the places. If they shall be "
                "counted, let the method do nothing."
            )

    def _mixing(self, grid: BatchShape, trial: Trial) -> dict[str, bool]:
        try:
            others = [self._rehearsal.try_steps([(grid, self._arrived(grid, clips))]) for clips in _OTHERS]
        except Exception:  # hooks may refuse noise
            return {}
        return {} if any(other.error for other in others) else rules.mixing(trial.outputs, *(o.outputs for o in others))

    def _refuse_mixing(self, grid: BatchShape, first: Trial, trial: Trial) -> None:
        """Refuses layers that mix clips on a grid, and keep them apart on the baseline's."""
        if self._trainer is None:
            return
        mixing = [layer for layer, mixes in self._mixing(grid, trial).items() if mixes]
        if mixing and self._kept_apart is None:
            self._kept_apart = {layer for layer, mixes in self._mixing(self._baseline, first).items() if not mixes}
        layer = next((layer for layer in mixing if layer in (self._kept_apart or ())), None)
        if layer is not None:
            raise ValueError(
                f"{type(self._module).__name__} mixes clips on {named(grid)}: there, what {self._layer_name(layer)} "
                "makes of one clip changes with another one, as it doesn't on the baseline's grid. Where the model "
                "parts the clips from their frames or pixels, take their numbers from the shape of the clips, not from "
                "a constant."
            )

    def try_numbers_of_clips(self, grids: Sequence[BatchShape]) -> None:
        """Refuses a loss that is a sum over clips, or state that has a size for each."""
        name, coarsest = type(self._module).__name__, self._coarsest
        try:
            more = [(coarsest, self._arrived(coarsest, ALIKE * times)) for times in (2, 4)]
        except Exception:  # hooks may refuse such clips
            return
        if self._losses:
            rules.check_sum_over_clips(name, self._losses, *(self._rehearsal.try_steps([step]).losses for step in more))
        small, large = (coarsest, self._small), more[0]
        steps = [grids[0], *dict.fromkeys(grids)]  # the first one twice: what fails there says nothing of clips
        on_shapes = [(grid.clip, self._enlarged(grid, small[1], large[1])) for grid in steps]
        trial = self._rehearsal.try_steps(on_shapes, shapes_only=True)
        if trial.error is not None and trial.steps < 2:  # values decide: a few clips with values
            steps = [replace(coarsest, clips=clips) for clips in (2, 2, 4)]
            trial = self._rehearsal.try_steps([small, small, large])
        if trial.error is not None and trial.steps >= 2 and not isinstance(trial.error, NotImplementedError):
            now, last = steps[trial.steps], steps[trial.steps - 1]
            raise ValueError(
                f"{name} cannot take another number of clips in each step: {self._layer_name(trial.layer)} fails with "
                f"{error_text(trial.error)}. The mini-batch of this step has {now.clips} clips of {now.frames} x "
                f"{now.size} x {now.size} (frames x height x width), and the one before had {last.clips} of "
                f"{last.frames} x {last.size} x {last.size}. If something that the module keeps from step to step (a "
                "queue, a mask, a hidden state) has a size for each clip, frame or pixel, make it for the mini-batch "
                "at hand, or let it not depend on their number."
            ) from trial.error

    def _enlarged(self, grid: BatchShape, small: Any, large: Any) -> Any:
        with suppress(Exception):  # else a mini-batch of a kind of its own
            return enlarged(self._shapes[grid.clip], small, large, grid.clips / TRIED_CLIPS)

    @contextmanager
    def _apart(self) -> Iterator[None]:
        """Within it, the script's own hooks find the stage of training, and leave no trace in the random state."""
        devices = [self._module.device] if self._module.device.type == "cuda" else []
        with ExitStack() as stack:
            stack.enter_context(seeded(0))
            stack.enter_context(torch.random.fork_rng(devices))
            stack.enter_context(torch.no_grad())
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            if self._trainer is not None:
                stack.enter_context(stage_of_training(self._trainer))
            yield

    def _warn_of_failures(self, failures: Mapping[str, str]) -> None:
        """Says what could not be rehearsed, and what is therefore not known."""
        if not failures or self._trainer is None:
            return
        name = type(self._module).__name__
        failing = "; ".join(f"{place} fails ({error})" for place, error in failures.items())
        if [*failures] == ["`training_step`"]:
            rank_zero_warn(
                f"`training_step` of {name} could not be rehearsed, so only its `forward` was: {failing}. What the "
                "step does beside it, on clips of other grids, will be seen only in training."
            )
        else:
            rank_zero_warn(
                f"The grids could not be rehearsed with {name}: outside of a training, {failing}. So a grid that the "
                "model can't take will be seen only in training, and clips that mix, or places that are counted from "
                "the first, not at all. Let `training_step` run on a copy of the module, or give the module a "
                "`forward(clips)`."
            )

    def _layer_name(self, layer: str) -> str:
        return f"`{layer}` ({type(self._module.get_submodule(layer)).__name__})" if layer else "a step"

    def _refusal(self, grid: BatchShape, where: str, error: Exception) -> ValueError:
        # Begins with the layer's type, or with a place.
        failing = f"{where.rpartition('(')[2].replace(')', ':')} {where} {error_text(error)}"
        way_out = next((advice for pattern, advice in _WAYS_OUT.items() if re.search(pattern, failing)))
        return ValueError(
            f"{type(self._module).__name__} cannot take clips of {grid.frames} x {grid.size} x {grid.size} (frames x "
            f"height x width): {where} fails with {error_text(error)}. {way_out}"
        )

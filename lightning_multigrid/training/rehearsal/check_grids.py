"""Tries each grid on a script before the first step, and refuses those that fail or would mean something else."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import yaml
from lightning_utilities.core.rank_zero import rank_zero_warn
from rich.progress import track

from lightning_multigrid.host import LightningModule, Trainer
from lightning_multigrid.positions import knows_grids
from lightning_multigrid.schedule import BatchShape
from lightning_multigrid.training.mini_batches import apart, error_text, shapes_of_clips
from lightning_multigrid.training.rehearsal import rules
from lightning_multigrid.training.rehearsal.batches import ALIKE, NOISE, REAL, TRIED_CLIPS, Clips, ScriptBatches
from lightning_multigrid.training.rehearsal.counted import counted_from_first
from lightning_multigrid.training.rehearsal.rules import PointsOnPlan, named
from lightning_multigrid.training.rehearsal.trial import Rehearsal, Trial

# What the layer's type and the error say, and the way out: the first that fits.
_WAYS_OUT = yaml.safe_load((Path(__file__).parent / "ways_out.yaml").read_text(encoding="utf-8"))
_OTHERS = (NOISE, REAL), (REAL, NOISE)  # either clip of `ALIKE` is another one


def check_grids(
    module: LightningModule,
    grids: Sequence[BatchShape],
    batches: ScriptBatches,
    boxes_follow: bool = False,
    trainer: Trainer | None = None,
) -> PointsOnPlan | None:
    """Refuses grids that a script cannot take, or on which it would compute something else than on the baseline's.

    Returns what is left to check while it trains: the clips, if not all that handles them could be tried on each grid.

    The first grid is the baseline's; all are in the order in which the plan uses them. Small mini-batches go through
    the script's hooks and a `Rehearsal`: without a Trainer, of shapes only. What cannot be rehearsed on the baseline's
    grid is accepted, and said. Where boxes follow the clips, pixels may be counted from the first: so places are judged
    on grids of the full size.
    """
    shapes = [*dict.fromkeys(grid.clip for grid in grids)]
    numbers = [*dict.fromkeys(grid.clips for grid in grids)]
    check = _Check(module, shapes, numbers, batches, boxes_follow, trainer)
    quiet = trainer is None or trainer.progress_bar_callback is None or not trainer.is_global_zero
    if not all(map(check.try_grid, track(shapes, "Rehearsing the grids", disable=quiet, transient=True))):
        return check.points
    if trainer is not None and len(numbers) > 1:
        check.try_numbers_of_clips()
    return None


class _Check:
    """What is tried of a script, one grid after the other."""

    def __init__(
        self,
        module: LightningModule,
        shapes: Sequence[BatchShape],
        numbers: Sequence[int],
        batches: ScriptBatches,
        boxes_follow: bool,
        trainer: Trainer | None,
    ) -> None:
        self._module, self._trainer, self._boxes_follow = module, trainer, boxes_follow
        self._batches, self.points = batches, PointsOnPlan()
        self._baseline, self._coarsest = shapes[0], min(shapes, key=lambda grid: grid.points)
        self._rehearsal = Rehearsal(module, trainer, self._baseline)
        self._first: Trial | None = None  # on the baseline's grid
        self._kept_apart: set[str] | None = None  # layers that keep clips apart there
        self._numbers = numbers  # of clips of a mini-batch, in the order of the plan; the first is the baseline's
        self._multiples = [numbers[0] * times for times in (1, 2, 4)]
        self._tried = dict.fromkeys([*numbers, *self._multiples])
        wanted = {grid: [ALIKE, *(_OTHERS if trainer is not None else ())] for grid in shapes}
        if trainer is not None:
            wanted[self._coarsest] += [(REAL,) * number for number in self._tried]
        with apart(trainer, module.device), torch.no_grad():
            batches.make(wanted)

    def _arrived(self, grid: BatchShape, clips: Clips) -> Any:
        with apart(self._trainer, self._module.device), torch.no_grad():
            return self._batches.arrived(grid, clips)

    def try_grid(self, grid: BatchShape) -> bool:
        """Refuses a grid, or returns whether there is anything to try on the next one."""
        batch: Any = None
        for where, handle in self._batches.handlers(grid, ALIKE):
            try:
                with apart(self._trainer, self._module.device), torch.no_grad():
                    batch = handle(batch)
            except Exception as error:
                if grid != self._baseline:
                    raise self._refusal(grid, where, error) from error
                self._warn_of_failures({where: error_text(error)})
                return False
            self.points.check(where, grid, shapes_of_clips(batch), TRIED_CLIPS)
        if grid == self._baseline:
            self._first = self._rehearsal.begin(batch)
            self._warn_of_failures(self._rehearsal.failures)
        if self._first is None:
            return True  # hooks may still refuse other grids
        trial = self._first if grid == self._baseline else self._rehearsal.run([(grid, batch)], watched=True)
        if isinstance(trial.error, torch.OutOfMemoryError):  # a rehearsal keeps more than a step does
            self._warn_of_failures({f"a step on {grid}": error_text(trial.error)})
            return False
        if trial.error is not None:
            raise self._refusal(grid, self._layer_name(trial.layer), trial.error) from trial.error
        costs = trial.flops / self._first.flops / (grid.points / self._baseline.points) if self._first.flops else 1.0
        self.points.check_model(grid, trial.convolved, TRIED_CLIPS, costs)
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
            others = [self._rehearsal.run([(grid, self._arrived(grid, clips))]) for clips in _OTHERS]
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

    def try_numbers_of_clips(self) -> None:
        """Refuses a loss that is a sum over clips, or state that has a size for each."""
        name = type(self._module).__name__
        try:
            # The coarsest clips are the cheapest.
            step_of = {number: self._step_with(self._coarsest, number) for number in self._tried}
            full = self._step_with(self._baseline, TRIED_CLIPS)
        except Exception:  # hooks may refuse such clips
            return
        losses = (self._rehearsal.run([step_of[number]]).losses for number in self._multiples)
        rules.check_sum_over_clips(name, self._numbers[0], *losses)
        # The first one twice: what fails at the first step says nothing of numbers.
        steps = [step_of[number] for number in (self._numbers[0], *self._numbers)] + [full]
        trial = self._rehearsal.run(steps)
        if isinstance(trial.error, torch.OutOfMemoryError):
            return
        if trial.error is not None and trial.steps >= 2:
            (now, _), (last, _) = steps[trial.steps], steps[trial.steps - 1]
            raise ValueError(
                f"{name} cannot take another number of clips in each step: {self._layer_name(trial.layer)} fails with "
                f"{error_text(trial.error)}. The mini-batch of this step has {now.clips} clips of {now.frames} x "
                f"{now.size} x {now.size} (frames x height x width), and the one before had {last.clips} of "
                f"{last.frames} x {last.size} x {last.size}. If something that the module keeps from step to step (a "
                "queue, a mask, a hidden state) has a size for each clip, frame or pixel, make it for the mini-batch "
                "at hand, or let it not depend on their number."
            ) from trial.error

    def _step_with(self, grid: BatchShape, clips: int) -> tuple[BatchShape, Any]:
        return replace(grid, clips=clips), self._arrived(grid, (REAL,) * clips)

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

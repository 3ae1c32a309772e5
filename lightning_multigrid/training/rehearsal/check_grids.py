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
from torch import Tensor, nn

from lightning_multigrid.host import LightningModule, Trainer
from lightning_multigrid.loading import seeded
from lightning_multigrid.positions import knows_grids
from lightning_multigrid.schedule import BatchShape
from lightning_multigrid.training.mini_batches import shapes_of_clips
from lightning_multigrid.training.rehearsal import rules
from lightning_multigrid.training.rehearsal.batches import (
    ALIKE,
    EVEN,
    NOISE,
    REAL,
    TRIED_CLIPS,
    Clips,
    ScriptBatches,
    enlarged,
)
from lightning_multigrid.training.rehearsal.counted import counted_from_first
from lightning_multigrid.training.rehearsal.rules import PointsOnPlan, named
from lightning_multigrid.training.rehearsal.trial import NothingDropped, Rehearsal, Trial, said
from lightning_multigrid.training.trainer.lightning_internals import stage_of_training

# What the layer's type and the error say, and the way out: the first that fits.
_WAYS_OUT = yaml.safe_load((Path(__file__).parent / "ways_out.yaml").read_text(encoding="utf-8"))
_OTHERS = (NOISE, REAL), (REAL, NOISE)  # either clip of `ALIKE` is another one
_ONCE = REAL, EVEN  # two clips of which the same ones twice and four times are made, too


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
    baseline, coarsest = shapes[0], min(shapes, key=lambda grid: grid.points)
    wanted: dict[BatchShape, list[Clips]] = {grid: [ALIKE] for grid in shapes}
    if trainer is not None and len(shapes) > 1:
        for grid in shapes[1:]:
            wanted[grid] += _OTHERS
        wanted[coarsest] += [_ONCE, _ONCE * 2, _ONCE * 4]
    batches.expect(wanted)
    tried = _Tried(module, batches, trainer, Rehearsal(module, trainer, baseline))
    first: Trial | None = None
    quiet = trainer is None or trainer.progress_bar_callback is None or not trainer.is_global_zero
    for grid in track(shapes, "Rehearsing the grids", disable=quiet, transient=True):
        batch: Any = None
        for where, handle in batches.handlers(grid):
            try:
                with _apart(module, trainer):
                    batch = handle(batch)
            except Exception as error:
                if grid == baseline:
                    _tell(module, {where: said(error)}, trainer)
                    return
                raise _refusal(module, grid, where, error) from error
            plan.check(where, grid, shapes_of_clips(batch), TRIED_CLIPS)
        tried.shapes[grid] = apply_to_collection(batch, Tensor, lambda tensor: tensor.to("meta"))
        if grid == baseline:
            first = tried.rehearsal.begin(batch)
            _tell(module, tried.rehearsal.failures, trainer)
        if first is None:
            continue
        trial = first if grid == baseline else tried.rehearsal.watch(grid, batch)
        if isinstance(trial.error, torch.OutOfMemoryError):  # a rehearsal keeps more than a step does
            _tell(module, {f"a step on {grid}": said(trial.error)}, trainer)
            return
        if trial.error is not None:
            raise _refusal(module, grid, _name(module, trial.layer), trial.error) from trial.error
        costs = trial.flops / first.flops / (grid.points / baseline.points) if first.flops else 1.0
        plan.check_model(grid, trial.convolved, TRIED_CLIPS, costs)
        if grid != baseline:
            if not boxes_follow or grid.size == baseline.size:
                _refuse_counted(module, baseline, grid, first, trial)
            tried.refuse_mixing(baseline, grid, first, trial)
            rules.check_values(type(module).__name__, grid, first.losses, trial.losses)
        tried.losses[grid] = trial.losses
    plan.tried = True
    if trainer is not None and len({grid.clips for grid in grids}) > 1:
        tried.check_clips(grids, coarsest)


class _Tried:
    """What of a script can be tried again, with other clips."""

    def __init__(
        self, module: LightningModule, batches: ScriptBatches, trainer: Trainer | None, rehearsal: Rehearsal
    ) -> None:
        self.rehearsal = rehearsal
        self.shapes: dict[BatchShape, Any] = {}  # of a small mini-batch, as a step gets it
        self.losses: dict[BatchShape, Sequence[float]] = {}
        self._module, self._batches, self._trainer = module, batches, trainer
        self._kept_apart: set[str] | None = None  # layers that do so on the baseline's grid

    def _arrived(self, grid: BatchShape, clips: Clips) -> Any:
        batch: Any = None
        with _apart(self._module, self._trainer):
            for _, handle in self._batches.handlers(grid, clips):
                batch = handle(batch)
        return batch

    def step(self, grid: BatchShape, clips: Clips, *modes: Any) -> Trial:
        try:
            return self.rehearsal.try_steps([(grid, self._arrived(grid, clips))], *modes)
        except Exception as error:  # hooks may refuse noise
            return Trial(error=error)

    def _mixing(self, grid: BatchShape, trial: Trial) -> dict[str, bool]:
        others = [self.step(grid, clips) for clips in _OTHERS]
        return {} if any(other.error for other in others) else rules.mixing(trial.outputs, *(o.outputs for o in others))

    def refuse_mixing(self, baseline: BatchShape, grid: BatchShape, first: Trial, trial: Trial) -> None:
        """Refuses layers that mix clips on a grid, and keep them apart on the baseline's."""
        if self._trainer is None:
            return
        mixing = [layer for layer, mixes in self._mixing(grid, trial).items() if mixes]
        if mixing and self._kept_apart is None:
            self._kept_apart = {layer for layer, mixes in self._mixing(baseline, first).items() if not mixes}
        layer = next((layer for layer in mixing if layer in (self._kept_apart or ())), None)
        if layer is not None:
            raise ValueError(
                f"{type(self._module).__name__} mixes clips on {named(grid)}: there, what {_name(self._module, layer)} "
                "makes of one clip changes with another one, as it doesn't on the baseline's grid. Where the model "
                "parts the clips from their frames or pixels, take their numbers from the shape of the clips, not from "
                "a constant."
            )

    def check_clips(self, grids: Sequence[BatchShape], coarsest: BatchShape) -> None:
        """Refuses a loss that is a sum over clips, or state that has a size for each."""
        name = type(self._module).__name__
        try:
            small, large, most = ((coarsest, self._arrived(coarsest, _ONCE * times)) for times in (1, 2, 4))
        except Exception:  # hooks may refuse such clips
            return
        if self.losses:
            trials = [self.rehearsal.try_steps([step], NothingDropped()) for step in (small, large, most)]
            rules.check_sum_over_clips(name, *(trial.losses for trial in trials))
        steps = [grids[0], *dict.fromkeys(grids)]  # the first one twice: what fails there says nothing of clips
        on_shapes = [(grid.clip, self._enlarged(grid, small[1], large[1])) for grid in steps]
        trial = self.rehearsal.try_steps(on_shapes, shapes_only=True)
        if trial.error is not None and trial.steps < 2:  # values decide: a few clips with values
            steps = [replace(coarsest, clips=clips) for clips in (2, 2, 4)]
            trial = self.rehearsal.try_steps([small, small, large])
        if trial.error is not None and trial.steps >= 2 and not isinstance(trial.error, NotImplementedError):
            raise ValueError(
                f"{name} cannot take another number of clips in each step: {_name(self._module, trial.layer)} fails "
                f"with {said(trial.error)}. {rules.clips_changed(steps[trial.steps], steps[trial.steps - 1])}"
            ) from trial.error

    def _enlarged(self, grid: BatchShape, small: Any, large: Any) -> Any:
        with suppress(Exception):  # else a mini-batch of a kind of its own
            return enlarged(self.shapes[grid.clip], small, large, grid.clips / TRIED_CLIPS)


@contextmanager
def _apart(module: LightningModule, trainer: Trainer | None) -> Iterator[None]:
    """Within it, the script's own hooks find the stage of training, and leave no trace in the random state."""
    devices = [module.device] if module.device.type == "cuda" else []
    with ExitStack() as stack:
        stack.enter_context(seeded(0))
        stack.enter_context(torch.random.fork_rng(devices))
        stack.enter_context(torch.no_grad())
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        if trainer is not None:
            stack.enter_context(stage_of_training(trainer))
        yield


def _refuse_counted(module: nn.Module, baseline: BatchShape, grid: BatchShape, first: Trial, trial: Trial) -> None:
    ratios = grid.frames / baseline.frames, grid.size / baseline.size
    layer = counted_from_first(first.encounters, trial.encounters, ratios)
    if layer is not None and not knows_grids(module, layer):
        raise ValueError(
            f"{type(module).__name__} counts places from the first: on {named(grid)}, {_name(module, layer)} gives its "
            "points the places of the beginning of the baseline's grid, but the clips are spread over all of it. Give "
            "that layer, or the module, a method `set_grid(self, frames, size)`, which is called before each "
            "mini-batch, and let it spread the places. If they shall be counted, let the method do nothing."
        )


def _tell(module: nn.Module, failures: Mapping[str, str], trainer: Trainer | None) -> None:
    """Says what could not be rehearsed, and what is therefore not known."""
    if not failures or trainer is None:
        return
    name = type(module).__name__
    told = "; ".join(f"{place} fails ({error})" for place, error in failures.items())
    if [*failures] == ["`training_step`"]:
        rank_zero_warn(
            f"`training_step` of {name} could not be rehearsed, so only its `forward` was: {told}. What the step does "
            "beside it, on clips of other grids, will be seen only in training."
        )
    else:
        rank_zero_warn(
            f"The grids could not be rehearsed with {name}: outside of a training, {told}. So a grid that the model "
            "can't take will be seen only in training, and clips that mix, or places that are counted from the first, "
            "not at all. Let `training_step` run on a copy of the module, or give the module a `forward(clips)`."
        )


def _name(module: nn.Module, layer: str) -> str:
    return f"`{layer}` ({type(module.get_submodule(layer)).__name__})" if layer else "a step"


def _refusal(module: nn.Module, grid: BatchShape, where: str, error: Exception) -> ValueError:
    # Begins with the layer's type, or with a place.
    told = f"{where.rpartition('(')[2].replace(')', ':')} {where} {said(error)}"
    found = next((advice for pattern, advice in _WAYS_OUT.items() if re.search(pattern, told)))
    return ValueError(
        f"{type(module).__name__} cannot take clips of {grid.frames} x {grid.size} x {grid.size} (frames x height x "
        f"width): {where} fails with {said(error)}. {found}"
    )

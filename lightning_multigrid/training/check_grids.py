"""Tries each grid on a script before the first step, and refuses those that fail or would mean something else."""

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from math import prod
from pathlib import Path
from typing import Any

import torch
import yaml
from lightning_utilities.core.rank_zero import rank_zero_warn
from rich.progress import track
from torch import nn

from lightning_multigrid.host import LightningModule, Trainer
from lightning_multigrid.loading import seeded
from lightning_multigrid.positions import counted_from_first, knows_grids
from lightning_multigrid.schedule import BatchShape
from lightning_multigrid.training.mini_batches import TRIED_CLIPS, Handler, shapes_of_clips
from lightning_multigrid.training.rehearsal import Rehearsal, Trial, said
from lightning_multigrid.training.trainer.lightning_internals import stage_of_training

_MOST = 1.75  # frames or sizes that grow back make twice the points or more; padding to 32 pixels, less than 1.5 times
_MODEL = "`training_step` or `forward`"
# What the layer's type and the error say, and the way out: the first that fits.
_WAYS_OUT = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))


class PointsOnPlan:
    """Refuses clips that something after the dataset makes larger than their grid.

    The rule: on no grid may a clip have over 1.75 times the points that the plan gives it, compared with the clips of
    the baseline as they arrive there. So clips may be padded, cropped or scaled, but not to one size.
    """

    def __init__(self) -> None:
        self._first: dict[str, tuple[BatchShape, list[float]]] = {}
        self._full: list[Sequence[int]] = []  # shapes of the baseline's clips as the loader makes them
        self.tried = False  # whether all that handles mini-batches before a step was tried on every grid
        self._real: set[BatchShape] = set()

    def check(self, where: str, grid: BatchShape, shapes: Sequence[Sequence[int]], clips: int) -> None:
        """Compares clips with the first ones there; refuses them if no tensor that may be clips is on the plan."""
        excess = self.excess(where, grid, shapes, clips)
        other = self._first[where][0]
        if excess > _MOST or (excess < 1 / _MOST and other in self._real):
            shape = " x ".join(map(str, shapes[0][1:]))
            raise ValueError(
                f"{where[0].upper()}{where[1:]} gets or makes clips of {shape} on the grid of {grid.frames} x "
                f"{grid.size} x {grid.size} (frames x height x width), {excess:.2g} times the points of the plan "
                f"relative to {other.frames} x {other.size} x {other.size}. A mini-batch has many of them, and would "
                "take as many times the memory and time of the baseline's. Resize and sample frames in the "
                "dataset's `__getitem__`, after which the callback reduces the clips, or scale them with the shape in "
                "which they arrive."
            )

    def excess(self, where: str, grid: BatchShape, shapes: Sequence[Sequence[int]], clips: int) -> float:
        """Returns how many times the points of the plan clips have there; 1 where nothing can be said."""
        points = [prod(shape) / clips / grid.clip.points for shape in shapes]
        if not self._first:
            self._full = [shape[1:] for shape in shapes]
        first = self._first.setdefault(where, (grid.clip, points))[1]
        if not points or len(points) != len(first) or not all(first):
            return 1.0
        return min((now / before for now, before in zip(points, first, strict=True)), key=lambda ratio: abs(ratio - 1))

    def check_real(self, grid: BatchShape, batch: Any) -> None:
        """Checks the first real mini-batch of each grid where the trial failed: the first of all stands for it."""
        if self.tried or grid.clip in self._real:
            return
        self._real.add(grid.clip)
        where, shapes = "a hook of the module or of the data", shapes_of_clips(batch)
        if shapes and [shape[1:] for shape in shapes] == self._full:
            self._first.setdefault(where, next(iter(self._first.values())))
        self.check(where, grid, shapes, grid.clips)


def check_grids(
    module: LightningModule,
    grids: Sequence[BatchShape],
    handlers: Sequence[Handler],
    plan: PointsOnPlan,
    boxes_follow: bool = False,
    trainer: Trainer | None = None,
) -> None:
    """Refuses grids that a script cannot take, or on which it would compute something else than on the baseline's.

    A mini-batch of `TRIED_CLIPS` clips goes through the handlers and a `Rehearsal`: without a Trainer, of shapes only.
    What cannot be rehearsed on the baseline's grid is accepted, and said. Where boxes follow the clips, pixels may be
    counted from the first: so places are judged on grids of the full size.
    """
    baseline = grids[0].clip
    rehearsal = Rehearsal(module, trainer, baseline)
    first: Trial | None = None
    quiet = trainer is None or trainer.progress_bar_callback is None or not trainer.is_global_zero
    shapes = [*dict.fromkeys(grid.clip for grid in grids)]
    for grid in track(shapes, "Rehearsing the grids", disable=quiet, transient=True):
        batch: Any = grid
        for name, handle in handlers:
            try:
                with _apart(module, trainer):
                    batch = handle(batch)
            except Exception as error:
                if grid == baseline:
                    _tell(module, {name: said(error)}, trainer)
                    return
                raise _refusal(module, grid, name, error) from error
            plan.check(name, grid, shapes_of_clips(batch), TRIED_CLIPS)
        if grid == baseline:
            first = rehearsal.begin(batch)
            _tell(module, rehearsal.failures, trainer)
        if first is None:
            continue
        trial = first if grid == baseline else rehearsal.run(grid, batch)
        if isinstance(trial.error, torch.OutOfMemoryError):  # a rehearsal keeps more than a step does
            _tell(module, {f"a step on {grid}": said(trial.error)}, trainer)
            return
        if trial.error is not None:
            raise _refusal(module, grid, _name(module, trial.layer), trial.error) from trial.error
        judged = not boxes_follow or grid.size == baseline.size
        _refuse_counted(module, baseline, grid, first, trial if judged else first)
        _refuse_mixing(module, grid, first, trial)
        # Both, as a first convolution may take one frame at a time, and a model may cost the same on all grids.
        convolved = [trial.convolved] * bool(trial.convolved)
        costs = trial.flops / first.flops / (grid.points / baseline.points) if first.flops else 1.0
        if plan.excess(_MODEL, grid, convolved, TRIED_CLIPS) > _MOST and costs > _MOST:
            plan.check(_MODEL, grid, convolved, TRIED_CLIPS)
    plan.tried = True


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
            f"{type(module).__name__} counts places from the first: on the grid of {grid.frames} x "
            f"{grid.size} x {grid.size} (frames x height x width), {_name(module, layer)} gives its points the "
            "places of the beginning of the baseline's grid, but the clips are spread over all of it. Give "
            "that layer, or the module, a method `set_grid(self, frames, size)`, which is called before each "
            "mini-batch, and let it spread the places. If they shall be counted, let the method do nothing."
        )


def _refuse_mixing(module: nn.Module, grid: BatchShape, first: Trial, trial: Trial) -> None:
    kept_apart = set(first.compared) - set(first.mixing)
    layer = next((layer for layer in trial.mixing if layer in kept_apart), None)
    if layer is not None:
        raise ValueError(
            f"{type(module).__name__} mixes clips on the grid of {grid.frames} x {grid.size} x {grid.size} (frames x "
            f"height x width): there, what {_name(module, layer)} makes of one clip changes with another one, as it "
            "doesn't on the baseline's grid. Where the model parts the clips from their frames or pixels, take their "
            "numbers from the shape of the clips, not from a constant."
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

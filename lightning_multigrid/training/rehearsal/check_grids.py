"""Tries each grid on a script before the first step, and refuses those that fail or would mean something else."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import product
from math import isfinite
from typing import Any

import torch
from lightning_utilities.core.rank_zero import rank_zero_warn

from lightning_multigrid.host import LightningModule, Trainer, tell
from lightning_multigrid.positions import knows_grids
from lightning_multigrid.schedule import BatchShape, counted
from lightning_multigrid.training.mini_batches import Made, error_text, without_trace
from lightning_multigrid.training.rehearsal.counted import counted_from_first
from lightning_multigrid.training.rehearsal.trial import Trial, try_step

_MOST = 1.75  # frames or sizes that grow back make twice the points or more; padding to 32 pixels, less than 1.5 times
_EXACT = 0.05  # relative: how near two numbers are that are equal, in 16 bits and with noise

UNNOTICED = (
    "So a grid that a step can't take fails only in training. Places that are counted from the first, a loss that is "
    "a sum over the clips, and clips that hooks bring back to another size are not noticed."
)
_HOOKS = "The dataset, its `collate_fn` or a hook of the mini-batch"


def check_grids(
    module: LightningModule,
    grids: Sequence[BatchShape],
    read: Callable[[Sequence[BatchShape]], Made],
    trainer: Trainer,
    boxes_follow: bool = False,
    clips: int | None = None,
) -> None:
    """Refuses grids that a script cannot take, or on which it would compute something else than on the baseline's.

    The first grid is the baseline's. Small mini-batches, which `read` makes, go through the script's hooks and a step
    on a clone of the module: once on each grid, and in a row, on the baseline's and on the coarsest with the clips of
    each mini-batch of the plan. What cannot be rehearsed on the baseline's grid is accepted, and said.
    Where boxes follow the clips, pixels may be counted from the first: so places are judged on grids of the full size.
    `clips` are those of each small mini-batch; by default two or three, or as many as the script's if these fail.
    """
    if trainer.strategy.restore_checkpoint_after_setup:
        tell(f"{type(trainer.strategy).__name__} shards the module, whose steps are not rehearsed. {UNNOTICED}")
        return
    name, clips, most = type(module).__name__, clips or _number_of_clips(grids), max(grid.clips for grid in grids)
    shapes = [*dict.fromkeys(replace(grid, clips=clips) for grid in grids)]
    baseline, coarsest = shapes[0], min(shapes, key=lambda grid: grid.points)
    numbers = {4 * clips, *(grid.clips for grid in grids if grid.clips > clips)}
    numbers |= {2 * clips} if len(numbers) == 1 else set()
    more = [replace(coarsest, clips=number) for number in sorted(numbers)]
    with without_trace(trainer, module.device), torch.no_grad():
        made = read((*shapes, *more))
    rehearse = partial(try_step, module, trainer, baseline, made)
    first = rehearse(baseline)
    if first.error is not None:
        if clips != grids[0].clips:
            check_grids(module, grids, read, trainer, boxes_follow, grids[0].clips)
        else:
            _warn(name, module, first)
        return
    if coarsest.size < baseline.size:
        _refuse_windows(module)
    few = first  # on the coarsest grid
    for grid in shapes[1:]:
        now = rehearse(grid)
        if all(map(isfinite, first.losses)) and not all(map(isfinite, now.losses)):  # of CTC with few frames, say
            now.error = ValueError("its loss is not finite, as it is on the baseline's grid")
        if now.error is not None:
            works = cache(lambda one: try_step(module, trainer, baseline, read((one,)), one).error is None)
            divisors = _divisors_that_work(shapes, works)
            raise _refusal(name, grid, _place(module, now), now.error, divisors) from now.error
        _check_points(_HOOKS, baseline, first.arrived or (), grid, now.arrived or ())
        _check_points("`training_step` or `forward`", baseline, [first.convolved], grid, [now.convolved])
        if not (boxes_follow and grid.size != baseline.size):
            _refuse_counted(module, first, now)
        few = now if grid is coarsest else few
    if len({grid.clips for grid in grids}) == 1:
        return
    many = rehearse(baseline, *more)  # at last, as it takes the most memory
    if many.error is None and many.of_clips:  # none of a `collate_fn` that drops samples
        _check_sum_over_clips(name, {**many.of_clips, clips: few.losses})
    if many.error is not None and many.grid.clips <= most:  # the training has as many
        alone = rehearse(many.grid)
        if alone.error is not None:
            raise ValueError(_fixed_number(name, coarsest, many.grid, alone.error)) from alone.error
        raise ValueError(_kept_state(name, many.grid, _place(module, many), many.error)) from many.error


def _number_of_clips(grids: Sequence[BatchShape]) -> int:
    """Two clips; or three, where two of each coarse grid are as long as one of the baseline, or have its points."""
    # A model that parts clips from their frames by a constant makes one clip of those two, and of three it can't. One
    # clip would be too few for many losses.
    for whole, *others in ([grid.frames for grid in grids], [replace(grid, clips=1).points for grid in grids]):
        coarse = [one for one in others if one < whole]
        if coarse and all(2 * one % whole == 0 for one in coarse):
            return 3
    return 2


def _refuse_counted(module: LightningModule, first: Trial, trial: Trial) -> None:
    """Refuses layers that give the points of a grid the places of the beginning of the baseline's."""
    baseline, grid = first.grid, trial.grid
    ratios = grid.frames / baseline.frames, grid.size / baseline.size
    layer = counted_from_first(first.met, trial.met, ratios)
    if layer is not None and not knows_grids(module, layer):
        raise ValueError(
            f"{type(module).__name__} counts places from the first: on {_named(grid)}, {_layer(module, layer)} gives "
            "its points the places at the beginning of the baseline's grid, but the points are spread over all of it. "
            "Give that layer, or the module, a method `set_grid(self, frames, size)`, which is called before each "
            "mini-batch, and let it spread the places. If they should be counted, let the method do nothing."
        )


def _refuse_windows(module: LightningModule) -> None:
    """Refuses the attention of Video Swin as its authors wrote it, whose biases are those of other distances."""
    for layer, part in module.named_modules():
        if type(part).__name__ == "WindowAttention3D" and not knows_grids(module, layer):
            raise ValueError(
                f"Where a coarse map is smaller than its window, {_layer(module, layer)} reads the biases of other "
                "distances. Take `torchvision.models.video.swin3d_t` and its kin, which the callback tells the grid, "
                "or keep the size: `long_cycle=LongCycle(((0.5, 1), (1, 1)))` and `short_cycle=ShortCycle((1,))`. If "
                "no map is smaller, give that layer a `set_grid(self, frames, size)` that does nothing."
            )


def _fixed_number(name: str, grid: BatchShape, more: BatchShape, error: Exception) -> str:
    return (
        f"A step of {name} takes {counted(grid.clips, 'clip')} of {_named(grid)}, but not {more.clips} "
        f"({error_text(error)}). The mini-batches of coarse grids have more clips than the baseline's: take their "
        "number from the mini-batch, as `clips.shape[0]`, wherever a tensor is made for them, and places in a queue "
        "modulo its length."
    )


def _kept_state(name: str, grid: BatchShape, where: str, error: Exception) -> str:
    return (
        f"{name} keeps something from step to step that has the size of a mini-batch: a step with {grid.clips} clips "
        f"of {_named(grid)} succeeds as the first step, but after steps with other clips {where} fails with "
        f"{error_text(error)}. Mini-batches change their number of clips and their grid. Reset what "
        "is kept at the beginning of each step, or make it fit the clips of the mini-batch."
    )


def _place(module: LightningModule, trial: Trial) -> str:
    return _HOOKS if trial.arrived is None else _layer(module, trial.layer)


def _layer(module: LightningModule, layer: str) -> str:
    return f"`{layer}` ({type(module.get_submodule(layer)).__name__})" if layer else "a step"


def _warn(name: str, module: LightningModule, failed: Trial) -> None:
    assert failed.error is not None
    rank_zero_warn(
        f"The grids could not be rehearsed with {name}: outside of a training, {_place(module, failed)} fails on the "
        f"baseline's own grid, with {counted(failed.grid.clips, 'clip')}, with {error_text(failed.error)}. "
        f"{UNNOTICED} Let `training_step` run on a copy of the module, and with any number of clips. If it also "
        "fails without this callback, build the model for the baseline's frames and size."
    )


def _named(grid: BatchShape) -> str:
    return f"the grid of {grid.frames} x {grid.size} x {grid.size} (frames x height x width)"


def _divisors_that_work(grids: Sequence[BatchShape], works: Callable[[BatchShape], bool]) -> str:
    """The divisors, as arguments, to whose multiples grids are rounded so that each works; empty if there are none."""
    full, *others = grids  # the baseline's isn't rounded, and some of the others must stay smaller
    for divisor, axes in product((2, 4, 8, 16, 32), (("size",), ("frames",), ("size", "frames"))):
        rounded: list[BatchShape] = []
        for grid in others:
            multiples = {axis: max(divisor, round(getattr(grid, axis) / divisor) * divisor) for axis in axes}
            overrides: dict[str, Any] = {axis: min(number, getattr(full, axis)) for axis, number in multiples.items()}
            rounded.append(replace(grid, **overrides))
        smaller = all(any(getattr(grid, axis) < getattr(full, axis) for grid in rounded) for axis in axes)
        if smaller and all(map(works, dict.fromkeys(rounded))):
            return ", ".join(f"{axis}_divisor={divisor}" for axis in axes)
    return ""


def _refusal(name: str, grid: BatchShape, where: str, error: Exception, divisors: str) -> ValueError:
    """The error for a grid on which a module fails; it runs on those that are rounded to multiples of `divisors`."""
    rounded = (
        f"It runs on all grids with `MultigridCallback({divisors})`, which is right for layers that halve clips again "
        "and again, as a U-Net's. Or let"
        if divisors
        else "Let"
    )
    return ValueError(
        f"{name} cannot take clips of {grid.frames} x {grid.size} x {grid.size} (frames x height x width): {where} "
        f"fails with {error_text(error)}. {rounded} it take clips of any length and size: end with a global pool, and "
        "take frames and pixels from the shape of the clips, also for labels and masks that have such axes. Resize "
        "positions in a method `set_grid(self, frames, size)` of the module, which is called before each step. If "
        "the clips have other axes, name them, for instance `MultigridCallback(layout='THWC')`. Or give "
        "MultigridCallback `long_cycle` and `short_cycle` factors that keep the clips larger: all keep their frames "
        "with `long_cycle=LongCycle(((1, 0.5**0.5), (1, 1)))`."
    )


def _check_points(where: str, full: BatchShape, before: Sequence[int], grid: BatchShape, now: Sequence[int]) -> None:
    """Refuses clips that something after the dataset makes larger than their grid.

    The rule: on no grid may a clip have over 1.75 times the points that the plan gives it, compared with the clips on
    the baseline's (`full`). So clips may be padded, cropped or scaled, but not to one size. `before` and `now` are the
    numbers of elements of what may be clips, on these grids.
    """
    if not now or len(now) != len(before) or not all(before):
        return
    ratios = (one / grid.points / (other / full.points) for one, other in zip(now, before, strict=True))
    excess = min(ratios, key=lambda ratio: abs(ratio - 1))
    if excess > _MOST:
        raise ValueError(
            f"{where} gets or makes clips with {excess:.2g} times the points of the plan on {_named(grid)}. A "
            "mini-batch has many clips, so it would take that many times the memory and time of the baseline's. "
            "Resize and sample frames in the dataset's `__getitem__`, after which the callback reduces the clips, "
            "or scale them with the shape in which they arrive."
        )


def _check_sum_over_clips(name: str, losses: Mapping[int, Sequence[float]]) -> None:
    """Refuses a loss that is a sum over clips, or has one beside a mean, by the `losses` of numbers of equal clips."""
    # Sums grow by as much with each clip. Those of a contrastive loss grow by the logarithm of the clips at most.
    few, *_, most = numbers = sorted(losses)
    some = numbers[len(numbers) // 2]
    for first, middle, last in zip(losses[few], losses[some], losses[most], strict=False):
        slopes = (middle - first) / (some - few), (last - middle) / (most - some)
        if abs(last - first) > _EXACT * abs(first) and abs(slopes[0] - slopes[1]) < _EXACT * max(map(abs, slopes)):
            raise ValueError(
                f"The loss of {name} is a sum over the clips, or has one: {few} equal clips have {first:.4g}, {some} "
                f"have {middle:.4g}, and {most} have {last:.4g}. Coarse grids have more clips, so gradients would grow "
                "with them, and the LR once more. Return the mean: divide it by the clips of the mini-batch at hand (a "
                "sum over the other clips by these), and with SGD multiply the LR by the baseline's `batch_size`."
            )

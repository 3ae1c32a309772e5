"""What is judged of trials: errors, how many points clips have, and the loss."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from lightning_multigrid.schedule import BatchShape
from lightning_multigrid.training.mini_batches import error_text

_MOST = 1.75  # frames or sizes that grow back make twice the points or more; padding to 32 pixels, less than 1.5 times
_EXACT = 0.05  # relative: how near two numbers are that are equal, in 16 bits and with noise

UNNOTICED = (
    "So a grid that a step can't take fails only in training. Places that are counted from the first, a loss that is "
    "a sum over the clips, and clips that hooks bring back to another size are not noticed."
)
HOOKS = "The dataset, its `collate_fn` or a hook of the mini-batch"


def named(grid: BatchShape) -> str:
    """A grid in messages."""
    return f"the grid of {grid.frames} x {grid.size} x {grid.size} (frames x height x width)"


def divisors_that_work(grids: Sequence[BatchShape], works: Callable[[BatchShape], bool]) -> str:
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


def refusal(name: str, grid: BatchShape, where: str, error: Exception, divisors: str) -> ValueError:
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


def check_points(where: str, full: BatchShape, before: Sequence[int], grid: BatchShape, now: Sequence[int]) -> None:
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
            f"{where} gets or makes clips with {excess:.2g} times the points of the plan on {named(grid)}. A "
            "mini-batch has many clips, so it would take that many times the memory and time of the baseline's. "
            "Resize and sample frames in the dataset's `__getitem__`, after which the callback reduces the clips, "
            "or scale them with the shape in which they arrive."
        )


def check_sum_over_clips(name: str, losses: Mapping[int, Sequence[float]]) -> None:
    """Refuses a loss that is a sum over clips, or has one beside a mean; `losses` are those of numbers of equal clips.

    They grow by as much with each clip. Those of a contrastive loss grow by the logarithm of the clips at most.
    """
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

"""What is judged of trials: how many points clips have, which clips a number is made of, and the loss."""

import math
from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from lightning_multigrid.schedule import BatchShape
from lightning_multigrid.training.mini_batches import shapes_of_clips

_MOST = 1.75  # frames or sizes that grow back make twice the points or more; padding to 32 pixels, less than 1.5 times
_NOISE = 1e-5  # relative: of operations whose order of summation differs from call to call
_EXACT = 0.01  # relative: how near a loss is to a multiple, in 16 bits

Outputs = Sequence[tuple[str, Tensor]]


def named(grid: BatchShape) -> str:
    """A grid in messages."""
    return f"the grid of {grid.frames} x {grid.size} x {grid.size} (frames x height x width)"


class PointsOnPlan:
    """Refuses clips that something after the dataset makes larger than their grid.

    The rule: on no grid may a clip have over 1.75 times the points that the plan gives it, compared with the clips of
    the baseline as they arrive there. So clips may be padded, cropped or scaled, but not to one size.
    """

    def __init__(self) -> None:
        self._first: dict[str, tuple[BatchShape, list[float]]] = {}
        self._real: set[BatchShape] = set()

    def check(self, where: str, grid: BatchShape, shapes: Sequence[Sequence[int]], clips: int) -> None:
        """Compares clips with the first ones there; refuses them if no tensor that may be clips is on the plan."""
        excess = self.excess(where, grid, shapes, clips)
        other = self._first[where][0]
        if excess > _MOST:
            shape = " x ".join(map(str, shapes[0][1:]))
            raise ValueError(
                f"{where[0].upper()}{where[1:]} gets or makes clips of {shape} on {named(grid)}, {excess:.2g} times "
                f"the points of the plan relative to {other.frames} x {other.size} x {other.size}. A mini-batch has "
                "many of them, and would take as many times the memory and time of the baseline's. Resize and sample "
                "frames in the dataset's `__getitem__`, after which the callback reduces the clips, or scale them with "
                "the shape in which they arrive."
            )

    def excess(self, where: str, grid: BatchShape, shapes: Sequence[Sequence[int]], clips: int) -> float:
        """Returns how many times the points of the plan clips have there; 1 where nothing can be said."""
        points = [prod(shape) / clips / grid.clip.points for shape in shapes]
        first = self._first.setdefault(where, (grid.clip, points))[1]
        if not points or len(points) != len(first) or not all(first):
            return 1.0
        return min((now / before for now, before in zip(points, first, strict=True)), key=lambda ratio: abs(ratio - 1))

    def check_model(self, grid: BatchShape, convolved: Sequence[int], clips: int, costs: float) -> None:
        """Refuses clips that the model makes larger: what its first convolution gets, and what a clip costs."""
        # Both, as a first convolution may take one frame at a time, and a model may cost the same on all grids.
        where, shapes = "`training_step` or `forward`", [convolved] * bool(convolved)
        if self.excess(where, grid, shapes, clips) > _MOST and costs > _MOST:
            self.check(where, grid, shapes, clips)

    def check_real(self, grid: BatchShape, batch: Any) -> None:
        """Checks the first real mini-batch of each grid where the trial failed, as if no hook changed the shape."""
        if grid.clip in self._real:
            return
        self._real.add(grid.clip)
        where = "a hook of the module or of the data"
        if self._first:
            self._first[where] = next(iter(self._first.values()))  # the baseline's clips as the loader makes them
        self.check(where, grid, shapes_of_clips(batch), grid.clips)


# --- Clips that mix ---


def mixing(outputs: Outputs, *others: Outputs) -> dict[str, bool]:
    """Of each layer, whether numbers of its output change with each of two clips, in the order of the step."""
    found: dict[str, bool] = {}
    for (name, numbers), *alike in zip(outputs, *others, strict=False):
        if any(other != name or values.shape != numbers.shape for other, values in alike):
            break  # the clips' values decide which layers run
        noise = max(_NOISE, 4 * torch.finfo(numbers.dtype).eps) * numbers.abs().max() if len(numbers) else 0
        changed = [(values - numbers).abs() > noise for _, values in alike]
        found[name] = found.get(name, False) or bool(torch.stack(changed).all(dim=0).any())
    return found


# --- The loss ---


def check_finite(name: str, grid: BatchShape, first: Sequence[float], losses: Sequence[float]) -> None:
    """Refuses a loss that is finite on the baseline's grid only."""
    for before, loss in zip(first, losses, strict=False):
        if math.isfinite(before) and not math.isfinite(loss):
            raise ValueError(
                f"The loss of {name} is {loss} on {named(grid)}, and {before:.3g} on the baseline's. A CTC loss, for "
                "instance, needs as many frames as symbols. Give MultigridCallback `long_cycle` and `short_cycle` "
                "factors that keep what the loss needs."
            )


def check_sum_over_clips(
    name: str, clips: int, once: Sequence[float], twice: Sequence[float], fourfold: Sequence[float]
) -> None:
    """Refuses a loss that is a sum over clips, given those of the same clips once, twice and four times."""
    # A contrastive loss grows by the logarithm of the clips at most: twice and three times, for instance.
    for one, two, four in zip(once, twice, fourfold, strict=False):
        if one and abs(two / one - 2) < 2 * _EXACT and abs(four / one - 4) < 4 * _EXACT:
            raise ValueError(
                f"The loss of {name} is a sum over the clips: {clips} clips have {one:.4g}, and the same clips twice "
                f"{two:.4g}. Coarse grids have more clips, so gradients would grow with them, and the LR once more. "
                "Return the mean: divide it by the clips of the mini-batch at hand, and with SGD multiply the LR by "
                "the baseline's `batch_size`."
            )

"""Tries a model on grids without computing anything: shapes only, on the meta device."""

import copy
import logging
import re
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
import yaml
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from lightning_multigrid.host import LightningModule
from lightning_multigrid.loading import seeded
from lightning_multigrid.positions import Encounter, Following, TracedValues, counted_from_first, knows_grids
from lightning_multigrid.schedule import BatchShape
from lightning_multigrid.training.lightning_internals import copy_without_trainer
from lightning_multigrid.training.mini_batches import TRIED_CLIPS, Handler, first_clips, shapes_of_clips
from lightning_multigrid.training.torch_internals import forget_hooks

log = logging.getLogger(__name__)

_LONG = 1000  # elements; those of longer containers are shared with a copy
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
        """Checks the first real mini-batch of each grid: where the trial failed, the first of all stands for it."""
        if grid.clip in self._real:
            return
        self._real.add(grid.clip)
        where, shapes = "a hook of the module or of the data", shapes_of_clips(batch)
        if shapes and [shape[1:] for shape in shapes] == self._full:
            self._first.setdefault(where, next(iter(self._first.values())))
        self.check(where, grid, shapes, grid.clips)


def _held_by(value: Any) -> Iterator[Any]:
    """Everything that an object holds, itself included, but for the elements of long containers, and the Trainer."""
    seen, waiting = set(), [value]
    while waiting:
        value = waiting.pop()
        if id(value) in seen or isinstance(value, (type, ModuleType)):
            continue
        seen.add(id(value))
        yield value
        if isinstance(value, (dict, list, tuple, set, deque)):
            if len(value) <= _LONG:
                waiting += value.values() if isinstance(value, dict) else value
        elif not isinstance(value, (Tensor, np.ndarray)):
            attributes = getattr(value, "__dict__", {})
            waiting += (part for name, part in attributes.items() if name not in ("_trainer", "_fabric"))


def meta_copy(module: LightningModule, real: dict[int, Tensor] | None = None) -> LightningModule:
    """Returns a copy whose tensors have shapes but no memory; what is done with the copy leaves no trace in the module.

    Arrays are shared, and can't be written to. So are the elements of containers of over 1000, and no others. `real`
    is filled with the module's tensors, by the `id` of those that stand for them in the copy.
    """
    memo: dict[int, Any] = {}
    real = {} if real is None else real
    for value in _held_by(module):
        if isinstance(value, nn.Parameter):
            memo[id(value)] = nn.Parameter(value.detach().to("meta"), value.requires_grad)
        elif isinstance(value, Tensor):
            memo[id(value)] = value.detach().to("meta")
        if isinstance(value, Tensor):
            real[id(memo[id(value)])] = value
        elif isinstance(value, np.ndarray):
            memo[id(value)] = value.view()
            memo[id(value)].flags.writeable = False
        elif isinstance(value, (dict, list, tuple, set, deque)) and len(value) > _LONG:
            memo[id(value)] = copy.copy(value)
    probe = copy_without_trainer(module, memo).train()
    forget_hooks(probe)  # they may write to what they have seen where they were made
    return probe


class _FirstConvolution(TorchFunctionMode):
    """Notes the shape of what the first convolution gets."""

    shape: Sequence[int] = ()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.conv2d, torch.conv3d) and args:
            self.shape = self.shape or args[0].shape
        return func(*args, **(kwargs or {}))


@dataclass
class _Trial:
    """What is known of a run on shapes: the innermost layer that did not return, and the error."""

    flops: float = 0.0  # multiply-adds of a clip
    convolved: Sequence[int] = ()  # shape of what the first convolution got
    layer: str = ""
    error: Exception | None = None
    encounters: Sequence[Encounter] = ()  # what met the data without being made of it


def _try(run: Callable[[Any], Any], batch: Any, module: nn.Module, real: Mapping[int, Tensor]) -> _Trial:
    entered: list[str] = []
    handles = []
    trial = _Trial()

    def left(*_: object) -> None:  # a value that a hook returns would replace the layer's output
        entered.pop()

    for name, layer in module.named_modules():
        handles.append(layer.register_forward_pre_hook(lambda *_, name=name: entered.append(name)))
        handles.append(layer.register_forward_hook(left))
    try:
        batch = apply_to_collection(batch, Tensor, lambda tensor: tensor.to("meta"))  # before its values are followed
        values = TracedValues(real, lambda: entered[-1] if entered else "")
        with FlopCounterMode(display=False) as counter, _FirstConvolution() as first, values:
            run(batch)
        trial.convolved, trial.encounters = first.shape, values.encounters
        trial.flops = counter.get_total_flops() / 2 / TRIED_CLIPS  # a multiplication and an addition count as two
    except Exception as error:  # whatever a user's model may raise
        trial.layer, trial.error = (entered[-1] if entered else ""), error
    finally:
        for handle in handles:
            handle.remove()
    return trial


def check_grids(
    module: LightningModule,
    grids: Sequence[BatchShape],
    handlers: Sequence[Handler],
    plan: PointsOnPlan,
    boxes_follow: bool = False,
) -> dict[BatchShape, float]:
    """Refuses grids that a script cannot take; returns the multiply-adds of a clip of each grid, if they are known.

    A mini-batch of `TRIED_CLIPS` clips goes through the handlers and `training_step`. Where that fails on the
    baseline's grid (it reads a value, or needs its Trainer), `forward` is tried; where that fails too, all is accepted.
    Where boxes follow the clips, pixels may be counted from the first: so places are judged on grids of the full size.
    """
    baseline = grids[0].clip
    flops: dict[BatchShape, float] = {}
    run: Callable[[Any], Any] | None = None
    encounters: Sequence[Encounter] = ()
    real: dict[int, Tensor] = {}
    # To compile a graph for each grid would take minutes, and tell nothing.
    with warnings.catch_warnings(), torch.no_grad(), torch.compiler.set_stance("force_eager"), seeded(0):
        warnings.simplefilter("ignore")
        for grid in dict.fromkeys(grid.clip for grid in grids):
            batch: Any = grid
            for name, handle in handlers:
                try:
                    batch = handle(batch)
                except Exception as error:
                    if grid == baseline:
                        log.debug("The grids can't be tried: %s fails: %s", name, error)
                        return {}
                    raise _refusal(module, grid, name, error) from error
                plan.check(name, grid, shapes_of_clips(batch), TRIED_CLIPS)
            if grid == baseline:
                run, probe = _runnable(module, batch, real)
                following = Following(probe, grid.frames, grid.size)
            if run is None:
                continue
            trial = _try(partial(_on_grid, following, grid, run), batch, probe, real)
            flops[grid] = trial.flops
            if trial.error is not None:
                raise _refusal(module, grid, _name(probe, trial.layer), trial.error) from trial.error
            if grid == baseline:
                encounters = trial.encounters
            ratios = grid.frames / baseline.frames, grid.size / baseline.size
            layer = counted_from_first(encounters, trial.encounters, ratios)
            judged = not boxes_follow or grid.size == baseline.size
            if layer is not None and judged and not knows_grids(probe, layer):
                raise ValueError(
                    f"{type(module).__name__} counts places from the first: on the grid of {grid.frames} x "
                    f"{grid.size} x {grid.size} (frames x height x width), {_name(probe, layer)} gives its points the "
                    "places of the beginning of the baseline's grid, but the clips are spread over all of it. Give "
                    "that layer, or the module, a method `set_grid(self, frames, size)`, which is called before each "
                    "mini-batch, and let it spread the places. If they shall be counted, let the method do nothing."
                )
            # Both, as a first convolution may take one frame at a time, and a model may cost the same on all grids.
            convolved, first = [trial.convolved] * bool(trial.convolved), flops[baseline]
            costs = trial.flops / first / (grid.points / baseline.points) if first else 1.0
            if plan.excess(_MODEL, grid, convolved, TRIED_CLIPS) > _MOST and costs > _MOST:
                plan.check(_MODEL, grid, convolved, TRIED_CLIPS)
    return flops if all(flops.values()) else {}


def _on_grid(following: Following, grid: BatchShape, run: Callable[[Any], Any], batch: Any) -> None:
    following.set_grid(grid.frames, grid.size)
    run(batch)


def _runnable(
    module: LightningModule, batch: Any, real: dict[int, Tensor]
) -> tuple[Callable[[Any], Any] | None, LightningModule]:
    """Returns what of a module runs on shapes, and the copy to try; None if nothing does."""
    try:
        probe = meta_copy(module, real)
    except Exception as reason:  # modules may hold anything, also what cannot be copied
        log.debug("The grids can't be tried, because the module can't be copied: %s", reason)
        return None, module
    for run in (lambda batch: probe.training_step(batch, 0), lambda batch: probe(first_clips(batch))):
        error = _try(run, batch, probe, real).error
        if error is None:
            return run, probe
        log.debug("The baseline's grid can't be tried: %s", error)
    return None, module


def _name(module: nn.Module, layer: str) -> str:
    return f"`{layer}` ({type(module.get_submodule(layer)).__name__})" if layer else "a step"


def _refusal(module: nn.Module, grid: BatchShape, where: str, error: Exception) -> ValueError:
    said = (str(error).splitlines() or [""])[0]
    told = f"{where.rpartition('(')[2].replace(')', ':')} {where} {said}"  # begins with the layer's type, or a place
    found = next((advice for pattern, advice in _WAYS_OUT.items() if re.search(pattern, told)))
    return ValueError(
        f"{type(module).__name__} cannot take clips of {grid.frames} x {grid.size} x {grid.size} (frames x height x "
        f"width): {where} fails with {type(error).__name__}: {said.rstrip('.')}. {found}"
    )

"""What a plan will cost: FLOPs and memory of each grid, seconds of a step, clips per second.

FLOPs and activations are those of the real model, found by shapes alone on the meta device. Seconds follow from one
known step time and the FLOPs, or from measured step times of every grid.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from lightning_multigrid.positions import Following
from lightning_multigrid.schedule import BatchShape, MultigridSchedule, Phase
from lightning_multigrid.training import meta_copy

_CLIPS = 2  # BatchNorm needs more than one value per channel


@dataclass(frozen=True)
class ClipCost:
    """The cost of training on one clip."""

    flops: float  # multiply-adds of a forward; a backward costs about twice as much on every grid
    saved_bytes: float  # activations that a forward keeps for the backward, at 32 bits


def clip_costs(module: LightningModule, grids: Sequence[BatchShape]) -> dict[BatchShape, ClipCost]:
    """Returns the cost of a clip of each grid, found without computing anything; empty if the model can't be tried.

    The first grid is the baseline's. `forward` of the module takes clips B x 3 x T x H x W.
    """
    costs = {}
    try:
        probe = meta_copy(module)
        for layer in probe.modules():
            if isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)):
                # Torch's `forward` takes three quarters of the time on the meta device, and counts no FLOPs.
                layer.forward = _KeepsInput.apply  # type: ignore[method-assign]
        following = Following(probe, grids[0].frames, grids[0].size)
        with warnings.catch_warnings(), torch.compiler.set_stance("force_eager"):
            warnings.simplefilter("ignore")
            for clip in dict.fromkeys(grid.clip for grid in grids):
                following.set_grid(clip.frames, clip.size)
                costs[clip] = _clip_cost(probe, clip)
    except Exception:  # whatever a user's model may raise; `fit` tries the model again and names the error
        return {}
    return costs if all(cost.flops for cost in costs.values()) else {}


class _KeepsInput(torch.autograd.Function):
    """Stands in for BatchNorm, and as BatchNorm does, keeps its input for the backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.empty_like(x)


def _clip_cost(probe: LightningModule, clip: BatchShape) -> ClipCost:
    known = {id(tensor.untyped_storage()) for tensor in (*probe.parameters(), *probe.buffers())}
    saved: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()  # kept alive, so that no other storage gets its `id`
        if id(storage) not in known:
            saved[id(storage)] = storage
        return tensor

    clips = torch.empty(_CLIPS, 3, clip.frames, clip.size, clip.size, device="meta")
    with (
        FlopCounterMode(display=False) as counter,
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
    ):
        output = probe(clips)
    saved_bytes = sum(storage.nbytes() for storage in saved.values())
    del output
    return ClipCost(counter.get_total_flops() / 2 / _CLIPS, saved_bytes / _CLIPS)


def rank_group(clips: int, sub_batch: int, world: int) -> int:
    """Returns how many ranks share BN statistics if each has this many clips.

    >>> rank_group(clips=2, sub_batch=8, world=16), rank_group(clips=64, sub_batch=8, world=16)
    (4, 1)
    """
    return min(world, math.ceil(sub_batch / clips))


@dataclass(frozen=True)
class Forecast:
    """The cost of a schedule on a number of devices.

    Args:
        schedule: The multigrid schedule.
        costs: Costs of a clip of each grid (`clip_costs`). Without them, costs are in proportion to t s^2 (Eq. 1).
        step_seconds: Seconds of a mini-batch of each shape on one device: of all shapes, as measured, or only of the
            baseline's, and FLOPs give the others; empty if none is known.
        world: Devices.
    """

    schedule: MultigridSchedule
    costs: Mapping[BatchShape, ClipCost]
    step_seconds: Mapping[BatchShape, float]
    world: int = 1

    def flops(self, shape: BatchShape) -> float:
        """Returns multiply-adds of a forward of a mini-batch, or its points (b t s^2) if they are not known."""
        cost = self.costs.get(shape.clip)
        return shape.clips * cost.flops if cost else shape.points

    def seconds(self, shape: BatchShape) -> float | None:
        """Returns seconds of a step on one device, without waiting for data; None if no step time is known."""
        if shape in self.step_seconds:
            return self.step_seconds[shape]
        baseline = self.schedule.baseline.shape
        known = self.step_seconds.get(baseline)
        return None if known is None else known * self.flops(shape) / self.flops(baseline)

    @property
    def speedup(self) -> float:
        """How many times faster than the baseline: by step times if they were measured, else by FLOPs."""
        return self.schedule.reduction(lambda shape: self.seconds(shape) or self.flops(shape))

    def saved_bytes(self, shape: BatchShape) -> float | None:
        """Returns bytes of the activations that a step keeps for the backward, at 32 bits; None if not known."""
        cost = self.costs.get(shape.clip)
        return None if cost is None else shape.clips * cost.saved_bytes

    def memory(self, phase: Phase) -> float | None:
        """Returns the activations of a phase's largest step over those of a baseline step; None if not known."""
        baseline = self.saved_bytes(self.schedule.baseline.shape)
        saved = [self.saved_bytes(shape) for shape in self.schedule.cycle(phase.shape)]
        return max(s for s in saved if s is not None) / baseline if baseline else None

    def clip_flops(self, phase: Phase) -> float:
        """Returns multiply-adds (or points, see `flops`) of a clip's forward, on average over a phase's clips."""
        cycle = self.schedule.cycle(phase.shape)
        return sum(map(self.flops, cycle)) / sum(shape.clips for shape in cycle)

    def phase_step_seconds(self, phase: Phase) -> float | None:
        """Returns seconds of a step, on average over the short cycle of a phase."""
        seconds = [self.seconds(shape) for shape in self.schedule.cycle(phase.shape)]
        return None if None in seconds else sum(s for s in seconds if s is not None) / len(seconds)

    def clips_per_second(self, phase: Phase) -> float | None:
        """Returns clips per second of all devices together, which the loaders must give so that no device waits."""
        step = self.phase_step_seconds(phase)
        cycle = self.schedule.cycle(phase.shape)
        return None if step is None else self.world * sum(shape.clips for shape in cycle) / len(cycle) / step

    def training_seconds(self, steps: Sequence[int]) -> float | None:
        """Returns seconds of all steps, given the steps of each phase (`MultigridSchedule.phase_steps`)."""
        times = [self.phase_step_seconds(phase) for phase in self.schedule.phases]
        return None if None in times else sum(n * t for n, t in zip(steps, times, strict=True) if t is not None)

"""What a plan will cost: FLOPs of each grid, seconds of a step, clips per second.

FLOPs are those of the real model, found by shapes alone on the meta device. Seconds follow from one known step time and
the FLOPs, or from step times of every grid that were measured on clips of noise.
"""

import math
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from statistics import median

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.flop_counter import FlopCounterMode

from lightning_multigrid.norm import convert_sub_batchnorm, set_sub_batch
from lightning_multigrid.positions import Following
from lightning_multigrid.reports import Clock
from lightning_multigrid.schedule import BatchShape, MultigridSchedule, Phase
from lightning_multigrid.training import meta_copy, refusal

_CLIPS = 2  # BatchNorm needs more than one value per channel
_MIXED = {"16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}


def clip_flops(module: LightningModule, grids: Sequence[BatchShape]) -> dict[BatchShape, float]:
    """Returns multiply-adds of a clip's forward on each grid, without computing; empty if the model can't be tried.

    A backward costs about twice as much on every grid. The first grid is the baseline's. `forward` of the module takes
    clips B x 3 x T x H x W.
    """
    flops: dict[BatchShape, float] = {}
    try:
        probe = meta_copy(module)
        for layer in probe.modules():
            if isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)):
                # Torch's `forward` takes three quarters of the time on the meta device, and counts no FLOPs.
                layer.forward = torch.empty_like  # type: ignore[method-assign]
        following = Following(probe, grids[0].frames, grids[0].size)
        with warnings.catch_warnings(), torch.compiler.set_stance("force_eager"), torch.no_grad():
            warnings.simplefilter("ignore")
            for clip in dict.fromkeys(grid.clip for grid in grids):
                following.set_grid(clip.frames, clip.size)
                with FlopCounterMode(display=False) as counter:
                    probe(clips_of(clip, _CLIPS))
                flops[clip] = counter.get_total_flops() / 2 / _CLIPS
    except Exception as error:  # whatever a user's model may raise
        if flops:
            raise refusal(type(module).__name__, clip, "`forward`", error) from error
        return {}
    return flops if all(flops.values()) else {}


def clips_of(grid: BatchShape, number: int) -> Tensor:
    """Returns so many clips of a grid, on the meta device."""
    return torch.empty(number, 3, grid.frames, grid.size, grid.size, device="meta")


def rank_group(clips: int, sub_batch: int, world: int) -> int:
    """Returns how many ranks share BN statistics if each has this many clips.

    >>> rank_group(clips=2, sub_batch=8, world=16), rank_group(clips=64, sub_batch=8, world=16)
    (4, 1)
    """
    return min(world, math.ceil(sub_batch / clips))


@dataclass(frozen=True)
class StepCost:
    """What a step costs: its seconds, and the most memory that it holds on a GPU, in bytes; None on a CPU."""

    seconds: float
    memory: int | None = None


@dataclass(frozen=True)
class Forecast:
    """The cost of a schedule on a number of devices."""

    schedule: MultigridSchedule
    of_clip: Mapping[BatchShape, float]  # multiply-adds on each grid; if empty, t s^2 stands for them (Eq. 1)
    steps: Mapping[BatchShape, StepCost]  # of all shapes, or only the baseline's, and FLOPs give the others
    world: int = 1  # devices

    def flops(self, shape: BatchShape) -> float:
        """Returns multiply-adds of a forward of a mini-batch, or its points (b t s^2) if they are not known."""
        return shape.clips * self.of_clip[shape.clip] if self.of_clip else shape.points

    def seconds(self, shape: BatchShape) -> float | None:
        """Returns seconds of a step on one device, without waiting for data; None if no step time is known."""
        if shape in self.steps:
            return self.steps[shape].seconds
        baseline = self.schedule.baseline.shape
        known = self.steps.get(baseline)
        return None if known is None else known.seconds * self.flops(shape) / self.flops(baseline)

    def memory(self, phase: Phase) -> int | None:
        """Returns the most memory of a step in a phase, in bytes; None if it was not measured on a GPU."""
        costs = [self.steps[shape].memory for shape in self.schedule.cycle(phase.shape) if shape in self.steps]
        return max((memory for memory in costs if memory is not None), default=None)

    @property
    def speedup(self) -> float:
        """How many times faster than the baseline: by step times if they were measured, else by FLOPs."""
        return self.schedule.reduction(lambda shape: self.seconds(shape) or self.flops(shape))

    def gflops(self, shape: BatchShape) -> float | None:
        """Returns billions of multiply-adds of a forward of one clip; None if they are not known."""
        return self.of_clip[shape.clip] / 1e9 if self.of_clip else None

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


def measure_steps(
    module: LightningModule,
    shapes: Sequence[tuple[BatchShape, int]],
    device: torch.device,
    *,
    precision: str = "32-true",
    rounds: int = 5,
    at_least: float = 0.0,
) -> dict[BatchShape, StepCost]:
    """Returns what a step (forward, backward, SGD) costs on each shape; its seconds are the median of several rounds.

    There are so many rounds, and more until `at_least` so many seconds have passed. The shapes take turns, so a machine
    whose speed drifts favours none of them. The first round, which chooses kernels and takes memory, does not count.
    Each shape comes with the clips that share BN statistics. Every `precision` that is not mixed is measured at 32
    bits. The module is trained, and stays on the device.
    """
    convert_sub_batchnorm(module).train().to(device)
    optimizer = SGD(module.parameters(), lr=1e-6, momentum=0.9)
    following = Following(module, shapes[0][0].frames, shapes[0][0].size)
    costs: dict[BatchShape, list[StepCost]] = {shape: [] for shape, _ in shapes}
    end = time.perf_counter() + at_least
    try:
        for turn in count():
            if turn > rounds and time.perf_counter() > end:
                break
            for shape, sub_batch in shapes:
                set_sub_batch(module, sub_batch, of=shape.clips)
                following.set_grid(shape.frames, shape.size)
                costs[shape].append(_step(module, optimizer, shape, device, precision))
    except torch.OutOfMemoryError as error:
        raise ValueError(
            f"A step on {shape} (clips x frames x size) does not fit into the memory of {device}. Use a smaller "
            "`batch_size`, or a `precision` such as `16-mixed`."
        ) from error
    return {
        shape: StepCost(median(cost.seconds for cost in of_shape[1:]), of_shape[-1].memory)
        for shape, of_shape in costs.items()
    }


def _step(module: LightningModule, optimizer: SGD, shape: BatchShape, device: torch.device, precision: str) -> StepCost:
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
    clips, clock = torch.randn(shape.clips, 3, shape.frames, shape.size, shape.size, device=device), Clock(device)
    start = clock.now()
    with torch.autocast(device.type, _MIXED.get(precision), enabled=precision in _MIXED):
        logits: Tensor = module(clips)
        loss = logits.float().square().mean()
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    end = clock.now()
    clock.wait(end)
    return StepCost(clock.seconds(start, end), torch.cuda.max_memory_allocated(device) if on_gpu else None)

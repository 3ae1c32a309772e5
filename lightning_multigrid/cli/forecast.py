"""What a plan will cost: seconds of a step, and clips per second.

They follow from one known step time and the points of each mini-batch, b t s^2 (Eq. 1), or from step times of every
grid that were measured on clips of noise.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.optim import SGD

from lightning_multigrid.norm import convert_sub_batchnorm, set_sub_batch
from lightning_multigrid.positions import Following
from lightning_multigrid.reports import Clock
from lightning_multigrid.schedule import BatchShape, MultigridSchedule, Phase

_MIXED = {"16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}


def rank_group(clips: int, sub_batch: int, world: int) -> int:
    """Returns how many ranks share BN statistics if each has this many clips.

    >>> rank_group(clips=2, sub_batch=8, world=16), rank_group(clips=64, sub_batch=8, world=16)
    (4, 1)
    """
    return min(world, math.ceil(sub_batch / clips))


@dataclass(frozen=True)
class Forecast:
    """The step times of a schedule on a number of devices."""

    schedule: MultigridSchedule
    steps: Mapping[BatchShape, float]  # seconds of all shapes, or only the baseline's, or none
    world: int = 1  # devices

    def seconds(self, shape: BatchShape) -> float:
        """Returns seconds of a step on one device, without waiting for data."""
        if shape in self.steps:
            return self.steps[shape]
        baseline = self.schedule.baseline.shape
        return self.steps[baseline] * shape.points / baseline.points

    def phase_step_seconds(self, phase: Phase) -> float | None:
        """Returns seconds of a step, on average over the short cycle of a phase; None if no step time is known."""
        cycle = self.schedule.cycle(phase.shape)
        return sum(map(self.seconds, cycle)) / len(cycle) if self.steps else None

    def clips_per_second(self, phase: Phase) -> float | None:
        """Returns clips per second of all devices together, which the loaders must give so that no device waits."""
        step = self.phase_step_seconds(phase)
        cycle = self.schedule.cycle(phase.shape)
        return None if step is None else self.world * sum(shape.clips for shape in cycle) / len(cycle) / step

    def training_seconds(self, steps: Sequence[int]) -> float | None:
        """Returns seconds of all steps, given the steps of each phase (`Plan.phase_steps`)."""
        times = [self.phase_step_seconds(phase) for phase in self.schedule.phases]
        return sum(n * t for n, t in zip(steps, times, strict=True) if t is not None) if self.steps else None


def measure_steps(
    module: LightningModule,
    shapes: Sequence[tuple[BatchShape, int]],
    device: torch.device,
    *,
    precision: str = "32-true",
    rounds: int = 10,
) -> dict[BatchShape, float]:
    """Returns the seconds of a step (forward, backward, SGD) on each shape: the median of several rounds.

    The shapes take turns, so a machine whose speed drifts favours none of them. The first round, which chooses kernels
    and takes memory, does not count. Each shape comes with the clips that share BN statistics. Every `precision` that
    is not mixed is measured at 32 bits. The module is trained, and stays on the device.
    """
    convert_sub_batchnorm(module).train().to(device)
    optimizer = SGD(module.parameters(), lr=1e-6, momentum=0.9)
    following = Following(module, shapes[0][0].frames, shapes[0][0].size)
    seconds: dict[BatchShape, list[float]] = {shape: [] for shape, _ in shapes}
    for _ in range(1 + rounds):
        for shape, sub_batch in shapes:
            set_sub_batch(module, sub_batch, of=shape.clips)
            following.set_grid(shape.frames, shape.size)
            try:
                seconds[shape].append(_step(module, optimizer, shape, device, precision))
            except torch.OutOfMemoryError as error:
                raise ValueError(
                    f"A step on {shape} (clips x frames x size) does not fit into the memory of {device}. Use a "
                    "smaller `batch_size`, or a `precision` such as `16-mixed`."
                ) from error
    return {shape: median(of_shape[1:]) for shape, of_shape in seconds.items()}


def _step(module: LightningModule, optimizer: SGD, shape: BatchShape, device: torch.device, precision: str) -> float:
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
    return clock.seconds(start, end)

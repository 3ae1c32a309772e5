"""Seconds of a step on each shape: by Eq. 1 from those of the baseline, or measured on clips of noise."""

from collections.abc import Sequence
from statistics import median

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.optim import SGD

from lightning_multigrid.norm import sub_batches
from lightning_multigrid.positions import Following
from lightning_multigrid.reports import Clock
from lightning_multigrid.schedule import BatchShape

MIXED = {"16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}
StepSeconds = dict[BatchShape, float]


def seconds_by_points(shapes: Sequence[tuple[BatchShape, int]], baseline: BatchShape, seconds: float) -> StepSeconds:
    """Returns the seconds of a step on each shape, in proportion to its points b t s^2, from those of the baseline."""
    return {shape: seconds * shape.points / baseline.points for shape, _ in shapes}


def measure_steps(
    module: LightningModule,
    shapes: Sequence[tuple[BatchShape, int]],
    device: torch.device,
    *,
    precision: str = "32-true",
    rounds: int = 10,
) -> StepSeconds:
    """Returns the seconds of a step (forward, backward, SGD) on each shape: the median of several rounds.

    The shapes take turns, so a machine whose speed drifts favours none of them. The first round, which chooses kernels
    and takes memory, does not count. Each shape comes with the clips that share BN statistics. Every `precision` that
    is not mixed is measured at 32 bits. The module is trained, and stays on the device.
    """
    module.train().to(device)
    optimizer = SGD(module.parameters(), lr=1e-6, momentum=0.9)
    following = Following(module, shapes[0][0].frames, shapes[0][0].size)
    seconds: dict[BatchShape, list[float]] = {shape: [] for shape, _ in shapes}
    for _ in range(1 + rounds):
        for shape, sub_batch in shapes:
            following.set_grid(shape.frames, shape.size)
            try:
                with sub_batches(sub_batch, of=shape.clips):
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
    with torch.autocast(device.type, MIXED.get(precision), enabled=precision in MIXED):
        logits: Tensor = module(clips)
        loss = logits.float().square().mean()
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    end = clock.now()
    clock.wait(end)
    return clock.seconds(start, end)

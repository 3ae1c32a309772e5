"""Step times of a model on the grids of a schedule, measured on clips of noise."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.optim import SGD

from lightning_multigrid.norm import convert_sub_batchnorm, restore_batchnorm, set_sub_batch
from lightning_multigrid.positions import Following
from lightning_multigrid.reports import clock_of
from lightning_multigrid.schedule import BatchShape

_MIXED = {"16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}


def measure_steps(
    module: LightningModule,
    shapes: Sequence[tuple[BatchShape, int]],
    device: torch.device,
    *,
    precision: str = "32-true",
    rounds: int = 5,
) -> dict[BatchShape, float]:
    """Returns seconds of a step (forward, backward, SGD) on each shape, the median of several rounds.

    The shapes take turns, so a machine whose speed drifts favours none of them. The first round, which chooses kernels
    and takes memory, does not count. Afterwards the module is on the CPU, and otherwise as before.

    Args:
        module: Its `forward` takes clips B x 3 x T x H x W.
        shapes: Shapes, each with the number of clips that share BN statistics.
        device: Where to measure.
        precision: The Trainer's; every precision that is not mixed is measured at 32 bits.
        rounds: Steps on each shape that count.

    Raises:
        ValueError: If a shape does not fit into the device's memory.
    """
    state = {name: value.detach().clone() for name, value in module.state_dict().items()}
    training = module.training
    convert_sub_batchnorm(module).train().to(device)
    optimizer = SGD(module.parameters(), lr=1e-6, momentum=0.9)
    following = Following(module, shapes[0][0].frames, shapes[0][0].size)
    seconds: dict[BatchShape, list[float]] = {shape: [] for shape, _ in shapes}
    try:
        for _ in range(1 + rounds):
            for shape, sub_batch in shapes:
                set_sub_batch(module, sub_batch, of=shape.clips)
                following.set_grid(shape.frames, shape.size)
                seconds[shape].append(_step(module, optimizer, shape, device, precision))
    except torch.OutOfMemoryError as error:
        raise ValueError(
            f"A step on {shape} (clips x frames x size) does not fit into the memory of {device}. Use a smaller "
            "`batch_size`, or a `precision` such as `16-mixed`."
        ) from error
    finally:
        following.restore()
        restore_batchnorm(module).cpu().train(training)
        module.zero_grad(set_to_none=True)
        module.load_state_dict(state)
    return {shape: median(times[1:]) for shape, times in seconds.items()}


def _step(module: LightningModule, optimizer: SGD, shape: BatchShape, device: torch.device, precision: str) -> float:
    clips, clock = torch.randn(shape.clips, 3, shape.frames, shape.size, shape.size, device=device), clock_of(device)
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

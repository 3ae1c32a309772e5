"""How long steps should take, predicted from counts and data sheets (a roofline). Nothing of it is measured.

The GPU's arithmetic, its memory, the host that launches operations, and the loader work at the same time, so a step
takes as long as the one of them that needs longest. Each is taken at its best, so a real step takes longer.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace

import torch
from lightning import LightningModule
from step_count import StepCount, count_training_step
from torch import nn

from lightning_multigrid.norm import convert_sub_batchnorm, restore_batchnorm, set_sub_batch
from lightning_multigrid.positions import Following
from lightning_multigrid.schedule import BatchShape, MultigridSchedule, text_table
from lightning_multigrid.training import meta_copy

Grid = tuple[BatchShape, int]  # and how many clips share BN statistics; 0 is plain BatchNorm
# About what a large matrix product and a large copy reach of an H200's peaks.
_COMPUTE_SHARE, _MEMORY_SHARE = 0.8, 0.9
_LAUNCH_SECONDS = 8e-6  # of Python, autograd and the driver for an operation: an assumption
# CPU seconds of a prepared clip, measured on one core of an Intel Xeon (benchmarks/results: loader, decode_real).
_CLIP_SECONDS, _FRAME_SECONDS = 2.5e-3, 0.22e-3


@dataclass(frozen=True)
class Gpu:
    """A GPU by its data sheet: TFLOP/s of dense matrix products at 16 bits and as TF32, TB/s of its memory."""

    name: str
    bf16: float
    tf32: float
    terabytes: float


GPUS = {
    # NVIDIA's data sheets of the H200 and the H100 (SXM), which give the rates with sparsity: twice these.
    "h200": Gpu("H200", bf16=989.5, tf32=494.7, terabytes=4.8),
    "h100": Gpu("H100", bf16=989.5, tf32=494.7, terabytes=3.35),
    # NVIDIA's data sheet of the A100 (SXM, 80 GB).
    "a100": Gpu("A100", bf16=312.0, tf32=156.0, terabytes=2.039),
    # NVIDIA's white paper on the Ada architecture, appendix A; bfloat16 is accumulated at 32 bits.
    "rtx4090": Gpu("RTX 4090", bf16=165.2, tf32=82.6, terabytes=1.008),
}


@dataclass(frozen=True)
class StepPrediction:
    """Seconds that each part needs for a step."""

    compute: float
    memory: float
    host: float
    loader: float

    @property
    def stepping(self) -> float:
        """Seconds of a step whose clips are there."""
        return max(self.compute, self.memory, self.host)

    @property
    def bound(self) -> str:
        return max(asdict(self).items(), key=lambda part: part[1])[0]


def predict_step(count: StepCount, gpu: Gpu, shape: BatchShape, *, half: bool, workers: int) -> StepPrediction:
    """Predicts a step at 16 bits (`half`) or as TF32; workers with a core each read its clips from prepared videos."""
    compute = count.flops / ((gpu.bf16 if half else gpu.tf32) * 1e12 * _COMPUTE_SHARE)
    memory = count.bytes / (gpu.terabytes * 1e12 * _MEMORY_SHARE)
    loader = shape.clips * (_CLIP_SECONDS + _FRAME_SECONDS * shape.frames) / max(1, workers)
    return StepPrediction(compute, memory, count.launches * _LAUNCH_SECONDS, loader)


def count_grids(module: LightningModule, grids: Iterable[Grid], *, half: bool) -> dict[Grid, StepCount]:
    """Counts a step on each grid, the baseline's first. `forward` of the module takes clips B x 3 x T x H x W."""
    dtype, counts, following = torch.bfloat16 if half else torch.float32, dict[Grid, StepCount](), None
    probe = meta_copy(module).to(dtype)
    for shape, sub_batch in grids:
        following = following or Following(probe, shape.frames, shape.size)
        following.set_grid(shape.frames, shape.size)
        restore_batchnorm(probe)
        if sub_batch:
            set_sub_batch(convert_sub_batchnorm(probe), sub_batch, of=shape.clips)
        clips = torch.empty(shape.clips, 3, shape.frames, shape.size, shape.size, device="meta", dtype=dtype)
        counts[shape, sub_batch] = _with_weights(count_training_step(probe, clips), probe, half)
    return counts


def _with_weights(count: StepCount, module: nn.Module, half: bool) -> StepCount:
    """Adds SGD with momentum and decay, which passes 8 times over the weights, and at 16 bits, casts of layers."""
    weights = sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)
    layers = sum(isinstance(part, (nn.Conv3d, nn.Linear)) for part in module.modules())
    traffic = weights * (8 * 4 + (12 if half else 0))  # there and back
    return replace(count, bytes=count.bytes + traffic, launches=count.launches + 8 + (2 * layers if half else 0))


@dataclass(frozen=True)
class Prediction:
    """The predicted steps of a schedule: of the baseline's shape with plain BatchNorm, and of each grid."""

    schedule: MultigridSchedule
    steps: Mapping[Grid, StepPrediction]

    def speedup(self, *, loader: bool) -> float:
        """Returns how many times faster multigrid is, with this loader or with one that always keeps up."""
        baseline = self.schedule.baseline.shape
        seconds = {g: max(step.stepping, loader * step.loader) for g, step in self.steps.items()}
        multigrid = {shape: spent for (shape, sub_batch), spent in seconds.items() if sub_batch}
        return self.schedule.reduction(multigrid.__getitem__) * seconds[baseline, 0] / multigrid[baseline]

    @property
    def clips_beyond_host(self) -> int:
        """Clips of the baseline on a device from which on no step waits for the host, whose time does not grow."""
        waits = max(step.host / max(step.compute, step.memory) for step in self.steps.values())
        return math.ceil(self.schedule.baseline.shape.clips * waits)

    def table(self) -> str:
        columns = ["clips x frames x size", "BN clips", "compute", "memory", "host", "loader", "bound by", "clips/s"]
        cells = []
        for (shape, sub_batch), step in self.steps.items():
            parts = [*(f"{1000 * seconds:.1f}" for seconds in asdict(step).values()), step.bound]
            cells.append([str(shape), str(sub_batch or "plain"), *parts, f"{shape.clips / step.stepping:.0f}"])
        return (
            f"{text_table(columns, cells)}\nMilliseconds of a step, which takes at least the longest. Predicted: "
            f"{self.speedup(loader=True):.2f}x faster than the baseline, {self.speedup(loader=False):.2f}x\nif loaders "
            f"give each device the clips/s of the last column. From {self.clips_beyond_host} clips per device on, no "
            "step waits for the host."
        )

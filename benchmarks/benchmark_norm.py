"""How long BatchNorm over sub-mini-batches takes, forward and backward, compared with plain BatchNorm.

    python benchmarks/benchmark_norm.py
    python benchmarks/benchmark_norm.py --device cuda --json norm.json

Layers take turns on the same mini-batches:

- `plain`: `nn.BatchNorm3d`;
- `ours`: the same within `sub_batches`, statistics over groups of `--sub-batch` clips;
- `copies`: ours without `torch.compile` in channels-last memory, where it is used: on a GPU;
- `split`: a BatchNorm without affine part normalises the groups; separate operations scale and shift.

On the CPU the times are process times, which other jobs on the machine disturb least.
"""

import argparse
import time
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from unittest.mock import patch

import torch
from measuring import choose_device, machine, machine_line, make_clock, write_json
from torch import Tensor, nn

from lightning_multigrid import sub_batches

LAYERS = ["plain", "ours", "copies", "split"]
# Inputs of BatchNorm in the stages of a Slow pathway, N x C x T x H x W, with few enough points for a CPU.
# The last two have a remainder: 37 clips make groups of 10, 9, 9 and 9.
SHAPES = ["32x64x8x28x28", "64x128x4x14x14", "32x256x4x14x14", "64x512x2x7x7", "37x64x4x14x14", "37x256x4x7x7"]
# For a GPU, as large as in the paper: SlowFast's slow pathway on 128 x 8 x 112, 64 x 8 x 158 and so on.
GPU_SHAPES = [
    "128x64x2x28x28",
    "128x256x2x28x28",
    "64x256x4x40x40",
    "64x512x8x20x20",
    "32x1024x8x10x10",
    "61x256x4x40x40",
]
VARIANTS = [
    ("float32", torch.float32, torch.contiguous_format),
    ("float32 channels_last_3d", torch.float32, torch.channels_last_3d),
    ("bfloat16", torch.bfloat16, torch.contiguous_format),
    ("bfloat16 channels_last_3d", torch.bfloat16, torch.channels_last_3d),
]


class Ours(nn.BatchNorm3d):
    """Statistics over `sub_batch` clips; `copies` says as if `torch.compile` did not run."""

    def __init__(self, channels: int, sub_batch: int, copies: bool = False) -> None:
        super().__init__(channels)
        self.sub_batch = sub_batch
        self.off = patch("lightning_multigrid.norm.operation.takes_compiled", lambda _: False) if copies else None

    def forward(self, x: Tensor) -> Tensor:
        with self.off or nullcontext(), sub_batches(self.sub_batch, of=len(x)):
            return super().forward(x)


class SplitThenAffine(nn.Module):
    """Normalises `groups` groups of equal size, then scales and shifts."""

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.groups = groups
        self.statistics = nn.BatchNorm3d(channels * groups, affine=False)
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        clips, channels, *other = x.shape
        merged = x.reshape(clips // self.groups, channels * self.groups, *other)
        normalised = self.statistics(merged).reshape(x.shape)
        return normalised * self.weight.to(x.dtype).view(-1, 1, 1, 1) + self.bias.to(x.dtype).view(-1, 1, 1, 1)


def measure(
    shape: list[int],
    dtype: torch.dtype,
    memory_format: torch.memory_format,
    sub_batch: int,
    device: torch.device,
    seconds: float,
) -> dict[str, float]:
    """Median milliseconds of forward and backward, per layer, over rounds in which each layer has its turn."""
    clips, channels = shape[:2]
    layers: dict[str, nn.Module] = {
        "plain": nn.BatchNorm3d(channels),
        "ours": Ours(channels, sub_batch),
    }
    if device.type == "cuda" and memory_format == torch.channels_last_3d:
        layers["copies"] = Ours(channels, sub_batch, copies=True)
    groups = max(1, clips // sub_batch)
    if clips % groups == 0:  # the split layer takes no remainder
        layers["split"] = SplitThenAffine(channels, groups)
    layers = {name: layer.to(device) for name, layer in layers.items()}
    x, gradient = (
        torch.randn(shape, device=device, dtype=dtype).contiguous(memory_format=memory_format) for _ in range(2)
    )
    x.requires_grad_()
    clock = make_clock(device)
    # On a GPU several at a time: otherwise the time would be that of Python, which starts the operations.
    repeats = 20 if device.type == "cuda" else 1
    times: dict[str, list[float]] = {name: [] for name in layers}
    warm_up, least = 2, 5
    start = time.perf_counter()
    while len(times["plain"]) < warm_up + least or time.perf_counter() - start < seconds:
        for name, layer in layers.items():
            began = clock()
            for _ in range(repeats):
                x.grad = None
                layer(x).backward(gradient)
            times[name].append((clock() - began) / repeats)
    return {name: 1000 * median(spent[warm_up:]) for name, spent in times.items()}


def parse_shape(text: str) -> list[int]:
    parts = text.split("x")
    if len(parts) != 5 or not all(part.isdigit() and int(part) for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NxCxTxHxW, such as {SHAPES[0]}")
    return [int(part) for part in parts]


def table_line(shape: str, variant: str, *numbers: str) -> str:
    return f"{shape:<24}{variant:<26}" + "".join(f"{number:>12}" for number in numbers)


def main(args: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description="Forward and backward time of nn.BatchNorm3d (plain), in sub_batches (ours), and statistics per "
        "group with the affine part apart (split; it knows no remainders). Ratios are to plain, in turns in one run."
    )
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="cpu", help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=40, help="about how long in total (default: %(default)s)")
    parser.add_argument("--sub-batch", type=int, default=8, help="clips that share statistics (default: %(default)s)")
    parser.add_argument(
        "--shapes", type=parse_shape, nargs="+", metavar="NxCxTxHxW", help=f"inputs (default: {' '.join(SHAPES)})"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers there")
    options = parser.parse_args(args)
    device = choose_device(options, parser.error)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    shapes = options.shapes or [parse_shape(text) for text in (GPU_SHAPES if device.type == "cuda" else SHAPES)]

    print(machine_line(machine(device)))
    columns = [f"{name} ms" for name in LAYERS] + [f"{name}/plain" for name in LAYERS[1:]]
    print(table_line("N x C x T x H x W", "variant", *columns))
    rows = []
    for variant, dtype, memory_format in VARIANTS:
        for shape in shapes:
            seconds = options.seconds / (len(shapes) * len(VARIANTS))
            times = measure(shape, dtype, memory_format, options.sub_batch, device, seconds)
            ratios = {name: spent / times["plain"] for name, spent in times.items() if name != "plain"}
            rows.append({"shape": shape, "variant": variant, "ms": times, "ratio": ratios})
            numbers = [times.get(name) for name in LAYERS] + [ratios.get(name) for name in LAYERS[1:]]
            texts = ["-" if number is None else f"{number:.2f}" for number in numbers]
            print(table_line(" x ".join(map(str, shape)), variant, *texts), flush=True)
            write_json(options, "norm", {"rows": rows})


if __name__ == "__main__":
    main()

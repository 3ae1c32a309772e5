"""What a training step of each model asks of a device, and how much of it sub-mini-batch BatchNorm adds: no GPU needed.

    python benchmarks/count_operations.py
    python benchmarks/count_operations.py --shape 8x32x224 --sub-batch 2 --json operations.json

Counts forward and backward on shapes alone (the meta device), for the model with plain BatchNorm and with statistics
over groups of `--sub-batch` clips, contiguous and channels-last:

- copies: `CopySlices` nodes of autograd, each of which copies a whole activation several times;
- bytes: what the operations read and write, each of their inputs and outputs once;
- operations: those that read or write memory; the host starts each of them;
- calls: with views and allocations.

It also counts the operations that make a mini-batch from decoded crops, in the two ways of `resample_clips`.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from measuring import machine, machine_line, write_json
from step_count import StepCount, count_step, count_training_step
from torch import Tensor, nn

from lightning_multigrid import BatchShape, convert_sub_batchnorm, resample_clips
from lightning_multigrid.models import i3d_nl_r50, i3d_r50, slowfast_r50, small_cnn
from lightning_multigrid.norm import set_sub_batch
from lightning_multigrid.pixels import YuvFormat
from lightning_multigrid.schedule import text_table

MODELS: dict[str, Callable[[], nn.Module]] = {
    "slowfast": lambda: slowfast_r50(400),
    "i3d": lambda: i3d_r50(400),
    "i3d_nl": lambda: i3d_nl_r50(400),
    "small": lambda: small_cnn(16),
}
FORMATS = {"contiguous": torch.contiguous_format, "channels_last_3d": torch.channels_last_3d}


def copies(output: Tensor) -> int:
    """The `CopySlices` nodes before a tensor in autograd's graph."""
    seen, waiting = set(), [output.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [former for former, _ in node.next_functions]
    return sum(type(node).__name__ == "CopySlices" for node in seen)


def count(name: str, shape: BatchShape, memory_format: torch.memory_format, sub_batch: int) -> tuple[StepCount, int]:
    """Counts a step of a model; a `sub_batch` of 0 is plain BatchNorm."""
    with torch.device("meta"):
        model = MODELS[name]().to(memory_format=memory_format)
        clips = torch.empty(shape.clips, 3, shape.frames, shape.size, shape.size)
    clips = clips.contiguous(memory_format=memory_format)
    if sub_batch:
        set_sub_batch(convert_sub_batchnorm(model), sub_batch, of=shape.clips)
    return count_training_step(model, clips), copies(model(clips)) if sub_batch else 0


def compare(name: str, shape: BatchShape, memory_format: str, sub_batch: int) -> dict[str, Any]:
    """Counts a step with plain BatchNorm and with ours."""
    plain, _ = count(name, shape, FORMATS[memory_format], 0)
    ours, copied = count(name, shape, FORMATS[memory_format], sub_batch)
    return {
        "model": name,
        "memory_format": memory_format,
        "copies": copied,
        "tflops": plain.flops / 1e12,
        "plain": {"gb": plain.bytes / 1e9, "operations": plain.launches, "calls": plain.calls},
        "ratio": {
            "bytes": ours.bytes / plain.bytes,
            "operations": ours.launches / plain.launches,
            "calls": ours.calls / plain.calls,
        },
    }


def resampling(shape: BatchShape, short: int = 256) -> dict[str, dict[str, float]]:
    """Counts what makes a mini-batch from crops of videos with a shorter side of `short` pixels."""
    side = min(short, round(shape.size * short / 224)) // 2 * 2
    format = YuvFormat(shape.frames, side, side, 0, 0)
    rgb = [torch.empty(shape.frames, side, side, 3, dtype=torch.uint8, device="meta")] * shape.clips
    yuv = [format.view(torch.empty(format.nbytes, dtype=torch.uint8, device="meta"))] * shape.clips
    found = {}
    for pixels, crops in (("rgb", rgb), ("yuv", yuv)):
        for way, together in (("one by one", False), ("together", True)):
            step = count_step(lambda: resample_clips(crops, shape.size, together=together))  # noqa: B023
            found[f"{pixels}, {way}"] = {"operations": step.launches, "gb": step.bytes / 1e9}
    return found


def parse_shape(text: str) -> BatchShape:
    parts = text.split("x")
    if len(parts) != 3 or not all(part.isdigit() and int(part) for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form clips x frames x size, such as 64x8x158")
    return BatchShape(*map(int, parts))


def main(args: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", choices=MODELS, default=["slowfast", "i3d", "i3d_nl"])
    parser.add_argument("--shape", type=parse_shape, default="64x8x158", metavar="CLIPSxFRAMESxSIZE")
    parser.add_argument("--sub-batch", type=int, default=8, help="clips that share statistics (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers there")
    options = parser.parse_args(args)

    print(machine_line(machine(torch.device("cpu"))))
    print(f"A step on {options.shape} (clips x frames x size), statistics over {options.sub_batch} clips")
    rows = [compare(name, options.shape, form, options.sub_batch) for name in options.model for form in FORMATS]
    columns = ["model", "memory format", "copies", "TFLOP", "GB", "ratio", "operations", "ratio", "calls", "ratio"]
    cells = [
        [
            row["model"],
            row["memory_format"],
            f"{row['copies']}",
            f"{row['tflops']:.2f}",
            f"{row['plain']['gb']:.1f}",
            f"{row['ratio']['bytes']:.3f}",
            f"{row['plain']['operations']}",
            f"{row['ratio']['operations']:.2f}",
            f"{row['plain']['calls']}",
            f"{row['ratio']['calls']:.2f}",
        ]
        for row in rows
    ]
    print(text_table(columns, cells))
    ways = resampling(options.shape)
    print("\nResampling a mini-batch")
    cells = [[way, f"{found['operations']}", f"{found['gb']:.2f}"] for way, found in ways.items()]
    print(text_table(["way", "operations", "GB"], cells))
    shown = {"device": "cpu", "shape": str(options.shape), "sub_batch": options.sub_batch}
    write_json(options.json, "operations", shown, {"rows": rows, "resampling": ways})


if __name__ == "__main__":
    main()

"""What a training step of each model asks of a device, and how much of it sub-mini-batch BatchNorm adds: no GPU needed.

    python benchmarks/count_operations.py --shape 8 32 224 --sub-batch 2 --json operations.json

Forward and backward are counted on fake tensors: bytes that operations read and write, such operations (the host
starts each). An operation reads each of its inputs and writes each of its outputs once. A BatchNorm on a GPU reads its
input twice, forward and backward, plain or ours, which counts once for both. In channels-last memory ours is counted
as it is where `torch.compile` doesn't run: with copies to contiguous memory and back.
"""

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from measuring import write_json
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode  # torch's notes on extending it document this path
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from lightning_multigrid import BatchShape, models, sub_batches

MODELS = {name: getattr(models, name) for name in ("slowfast_r50", "i3d_r50", "i3d_nl_r50", "small_cnn")}
FORMATS = {"contiguous": torch.contiguous_format, "channels_last_3d": torch.channels_last_3d}
_aten = torch.ops.aten
_ALLOCATE = {_aten.empty, _aten.empty_like, _aten.empty_strided, _aten.new_empty, _aten.new_empty_strided}
_OVERWRITE = {_aten.copy_, _aten.fill_, _aten.zero_}  # don't read what they write


@dataclass(frozen=True)
class StepCount:
    flops: int  # of convolutions and matrix products; a multiplication and an addition count as two
    bytes: int  # that the operations read and write, each of their inputs and outputs once
    launches: int  # of operations that read or write memory: at least as many kernels are launched


def count_step(step: Callable[[], object]) -> StepCount:
    """Counts what a function does."""
    # The mode that is entered last sees an operation first: whole, before the other one takes it apart.
    with FlopCounterMode(display=False) as flops, CountedOperations() as counted:
        step()
    return StepCount(flops.get_total_flops(), counted.bytes, counted.launches)


class CountedOperations(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.bytes, self.launches = 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        outputs = func(*args, **kwargs)
        if func.namespace == "prim":  # a question, such as that for the device
            return outputs
        read = list(_tensors((args[1:] if func.overloadpacket in _OVERWRITE else args, kwargs)))
        written = list(_tensors(outputs))
        storages = {id(tensor.untyped_storage()) for tensor in read}
        view = written and all(id(tensor.untyped_storage()) in storages for tensor in written)
        if func.overloadpacket not in _ALLOCATE and (func._schema.is_mutable or not view):
            self.launches += 1
            self.bytes += sum(map(_nbytes, {id(tensor): tensor for tensor in read}.values()))
            self.bytes += sum(map(_nbytes, written))
        return outputs


def _tensors(value: Any) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor))


def _nbytes(tensor: Tensor) -> int:
    sizes = zip(tensor.shape, tensor.stride(), strict=True)  # an expanded dimension has no stride, and counts once
    return math.prod(size for size, stride in sizes if stride) * tensor.element_size()


def compare(name: str, shape: BatchShape, memory_format: str, sub_batch: int) -> dict[str, Any]:
    """Counts a step with plain BatchNorm and with ours."""
    form = FORMATS[memory_format]
    with FakeTensorMode():
        model = MODELS[name](400)
        for weight in model.parameters():  # `model.to` can't do it for fake tensors
            weight.data = weight.data.to(memory_format=form if weight.ndim == 5 else torch.preserve_format)
        clips = torch.empty(shape.clips, 3, shape.frames, shape.size, shape.size)
        clips = clips.contiguous(memory_format=form)
        plain = count_step(lambda: model(clips).sum().backward())
        model.zero_grad(set_to_none=True)  # else the next step adds to the gradients of this one
        with sub_batches(sub_batch, of=shape.clips):
            ours = count_step(lambda: model(clips).sum().backward())
    values = {"gb": plain.bytes / 1e9, "operations": plain.launches}
    ratios = {"bytes": ours.bytes / plain.bytes, "operations": ours.launches / plain.launches}
    head = {"model": name, "memory_format": memory_format, "tflops": plain.flops / 1e12}
    return head | {"plain": values, "ratio": ratios}


def main(args: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", choices=MODELS, default=list(MODELS)[:3])
    parser.add_argument("--shape", type=int, nargs=3, default=[64, 8, 158], metavar=("CLIPS", "FRAMES", "SIZE"))
    parser.add_argument("--sub-batch", type=int, default=8, help="clips that share statistics (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers there")
    options = parser.parse_args(args)
    shape = BatchShape(*options.shape)
    print(f"A step on {shape} (clips x frames x size), statistics over {options.sub_batch} clips")
    rows = [compare(name, shape, form, options.sub_batch) for name in options.model for form in FORMATS]
    for row in rows:
        plain, ratio = row["plain"], {kind: f"(ours x {value:.3f})" for kind, value in row["ratio"].items()}
        told = f"{plain['gb']:.1f} GB {ratio['bytes']}, {plain['operations']} operations {ratio['operations']}"
        print(f"{row['model']}, {row['memory_format']}: {told}")
    write_json(options, "operations", {"rows": rows})


if __name__ == "__main__":
    main()

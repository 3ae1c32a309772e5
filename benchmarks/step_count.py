"""What a training step asks of a device: FLOPs, bytes and operations, counted on the meta device.

Nothing is computed there, so any model and any mini-batch can be counted in seconds.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode  # torch's notes on extending it document this path
from torch.utils.flop_counter import FlopCounterMode

_aten = torch.ops.aten
_ALLOCATE = {_aten.empty, _aten.empty_like, _aten.empty_strided, _aten.new_empty, _aten.new_empty_strided}
_OVERWRITE = {_aten.copy_, _aten.fill_, _aten.zero_}  # don't read what they write


@dataclass(frozen=True)
class StepCount:
    """What forward and backward of a mini-batch take; the optimizer is not included."""

    flops: int  # of convolutions and matrix products; a multiplication and an addition count as two
    bytes: int  # that the operations read and write, each of their inputs and outputs once
    calls: int  # of operations, views and allocations included: what the host does
    launches: int  # of operations that read or write memory: at least as many kernels are launched


def count_training_step(model: nn.Module, clips: Tensor) -> StepCount:
    """Counts forward and backward of a model on clips B x 3 x T x H x W; both are on the meta device.

    Memory formats count: a layer for which a GPU would copy its input is charged for the copy.
    """
    return count_step(lambda: model(clips).sum().backward())


def count_step(step: Callable[[], object]) -> StepCount:
    """Counts what a function does on the meta device."""
    # The mode that is entered last sees an operation first: whole, before the other one takes it apart.
    with FlopCounterMode(display=False) as flops, CountedOperations() as counted:
        step()
    return StepCount(flops.get_total_flops(), counted.bytes, sum(counted.calls.values()), counted.launches)


class CountedOperations(TorchDispatchMode):
    """Counts the operations that run within it, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes, self.launches = 0, 0
        self.calls: dict[str, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "prim":  # a question, such as that for the device
            return func(*args, **kwargs)
        outputs = _in_memory_format_of(func, args, func(*args, **kwargs))
        self.calls[str(func)] = self.calls.get(str(func), 0) + 1
        read = list(_tensors((args[1:] if func.overloadpacket in _OVERWRITE else args, kwargs)))
        written = list(_tensors(outputs))
        storages = {id(tensor.untyped_storage()) for tensor in read}
        view = not func._schema.is_mutable and all(id(tensor.untyped_storage()) in storages for tensor in written)
        if func.overloadpacket not in _ALLOCATE and not (view and written):
            self.launches += 1
            self.bytes += sum(map(_nbytes, {id(tensor): tensor for tensor in read}.values()))
            self.bytes += sum(map(_nbytes, written))
        return outputs


def _in_memory_format_of(func: Any, args: Any, outputs: Any) -> Any:
    """Gives what a 3D convolution makes the memory format that it has on a GPU; on the meta device it is lost."""
    forward = func.overloadpacket is _aten.convolution
    if not forward and func.overloadpacket is not _aten.convolution_backward:
        return outputs
    inputs = [tensor for tensor in args[:3] if tensor is not None and tensor.ndim == 5 and not tensor.is_contiguous()]
    if any(tensor.is_contiguous(memory_format=torch.channels_last_3d) for tensor in inputs):
        made = [
            t if t is None or t.ndim < 5 else t.to(memory_format=torch.channels_last_3d)
            for t in ([outputs] if forward else outputs)
        ]
        return made[0] if forward else tuple(made)
    return outputs


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _tensors(part)


def _nbytes(tensor: Tensor) -> int:
    """Bytes of a tensor, where expanded dimensions count once."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return math.prod(size for size, stride in sizes if stride) * tensor.element_size()

"""BatchNorm over sub-mini-batches in channels-last memory, without a copy to contiguous memory and back.

There, N x C x * is a matrix with a row of C values for each point of each clip, so all groups together are a view of
it. `torch.compile` makes two kernels of the arithmetic on a GPU: one that reads, and one that reads and writes.

Legend: N rows, C channels, `*` the other axes (H W; T H W), P their points; k groups, units of u neighbouring rows.
"""

import warnings
from functools import cache
from typing import Any

import torch
from torch import Tensor

_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}  # by the number of axes


def only_channels_last(x: Tensor) -> bool:
    """Whether a tensor lies in channels-last memory, and would have to be copied to contiguous memory."""
    last = _LAST.get(x.dim())
    return last is not None and x.is_contiguous(memory_format=last) and not x.is_contiguous()


def as_given(output: Tensor, x: Tensor) -> Tensor:
    """The output for `x`: in channels-last memory, if that lies there."""
    return output.contiguous(memory_format=_LAST[x.dim()]) if only_channels_last(x) else output


def takes_compiled(x: Tensor) -> bool:
    """Whether `normalize_groups` spares a copy: in channels-last memory on a GPU where `torch.compile` works."""
    if not x.is_cuda or not only_channels_last(x):
        return False
    # In a graph of the script the function becomes a part of it.
    return torch.compiler.is_compiling() or compiles(x.device, x.dtype)


@cache
def compiles(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the function can be compiled, forward and backward. If not, a warning says why, once."""
    try:
        with torch.inference_mode(False), torch.enable_grad():  # whatever the first call is in
            x = torch.linspace(-2, 3, 4 * 8 * 6, device=device).view(4, 8, 3, 2).to(dtype)
            x = x.contiguous(memory_format=torch.channels_last).requires_grad_()
            weight = torch.ones(8, device=device, requires_grad=True)
            _compiled()(x, weight, weight, 2, 1, 1e-5)[0].float().square().sum().backward()
    except Exception as error:  # each kind means that the training goes on without
        first_line = str(error).strip().partition("\n")[0]
        warnings.warn(
            "In channels-last memory, BatchNorm over sub-mini-batches copies its input: `torch.compile` failed "
            f"({type(error).__name__}: {first_line}).",
            stacklevel=2,
        )
        return False
    return True


def normalize_groups(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, groups: int, unit: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalises k groups of as many rows, dealt out in units; returns the output, the mean, and the unbiased variance.

    Mean and variance are averages over the groups, C values each.
    """
    weight = x.new_ones(x.shape[1]) if weight is None else weight
    bias = x.new_zeros(x.shape[1]) if bias is None else bias
    function = _normalized if torch.compiler.is_compiling() else _compiled()
    return function(x, weight, bias, groups, unit, eps)


def _normalized(
    x: Tensor, weight: Tensor, bias: Tensor, groups: int, unit: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    turns = x.shape[0] // (groups * unit)
    points = x.movedim(1, -1).reshape(turns, groups, -1, x.shape[1])  # a view: u rows of P points are neighbours
    wide = points.to(torch.promote_types(x.dtype, torch.float32))
    var, mean = torch.var_mean(wide, dim=(0, 2), correction=0, keepdim=True)
    output = ((wide - mean) * (torch.rsqrt(var + eps) * weight) + bias).to(x.dtype)
    output = output.reshape(x.shape[0], *x.shape[2:], x.shape[1]).movedim(-1, 1)
    count = turns * points.shape[2]
    return output, mean.mean(dim=(0, 1, 2)), var.mean(dim=(0, 1, 2)) * (count / (count - 1))


@cache
def _compiled() -> Any:
    return torch.compile(_normalized, dynamic=True)

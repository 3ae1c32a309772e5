"""BatchNorm over sub-mini-batches in channels-last memory, without a copy to contiguous memory and back.

There, N x C x * is a matrix with a row of C values for each point of each clip. Neighbouring clips are a group, so a
group is a block of rows. Triton's kernels (`triton_kernels.py`) read the matrix twice and write it once, forward and
backward, whatever the number of groups. They are operations of torch, so that its tools see them.

Legend: N clips, C channels, `*` the other axes (H W; T H W); k groups.
"""

import os
import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, library
from torch.nn import functional as F

_SWITCH = "LIGHTNING_MULTIGRID_TRITON"
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}  # by the number of axes


class RowGroups(NamedTuple):
    """Groups of neighbouring rows: the first `larger` of them have `small + extra` rows, the others `small`."""

    number: int
    small: int
    extra: int
    larger: int

    def sizes(self) -> list[int]:
        """The rows of each group.

        >>> RowGroups(3, small=8, extra=2, larger=1).sizes()
        [10, 8, 8]
        """
        return [self.small + self.extra] * self.larger + [self.small] * (self.number - self.larger)

    def times(self, factor: int) -> "RowGroups":
        """The groups if each row becomes `factor` rows."""
        return RowGroups(self.number, self.small * factor, self.extra * factor, self.larger)


def only_channels_last(x: Tensor) -> bool:
    """Whether a tensor lies in channels-last memory, and would have to be copied to contiguous memory."""
    last = _LAST.get(x.dim())
    return last is not None and x.is_contiguous(memory_format=last) and not x.is_contiguous()


def to_channels_last(x: Tensor) -> Tensor:
    """A tensor of four or five axes in channels-last memory."""
    return x.contiguous(memory_format=_LAST[x.dim()])


def has_kernels(x: Tensor, *of_layer: Tensor | None) -> bool:
    """Whether there are kernels for an input and a layer's parameters and buffers. If Triton doesn't run, says so once.

    `torch.compile` makes kernels of its own.
    """
    if torch.compiler.is_compiling() or not x.is_cuda or x.dtype not in _DTYPES or not only_channels_last(x):
        return False
    if any(tensor is not None and tensor.dtype not in (x.dtype, torch.float32) for tensor in of_layer):
        return False  # torch has a word on it
    return _kernels_run(x.device, x.dtype)


@cache
def _kernels_run(device: torch.device, dtype: torch.dtype) -> bool:
    why = _why_not(device, dtype)
    if why is not None:
        warnings.warn(f"In channels-last memory, BatchNorm over sub-mini-batches copies its input: {why}", stacklevel=2)
    return why is None


def _why_not(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why kernels do not run; None if they do."""
    switch = os.environ.get(_SWITCH, "1")
    if switch not in ("0", "1"):
        raise ValueError(
            f"The environment variable {_SWITCH} must be 0 (without Triton) or 1 (with it), got {switch!r}."
        )
    if switch == "0":
        return f"{_SWITCH}=0."
    # Triton needs a C compiler and a GPU that is new enough. What is missing shows in a first launch only.
    try:
        with torch.inference_mode(False), torch.enable_grad():  # whatever the first call is in
            wrong = _differs_from_plain(device, dtype)
    except Exception as error:  # each kind means that the training goes on without Triton
        first_line = str(error).strip().partition("\n")[0]
        return f"Triton failed ({type(error).__name__}: {first_line}). {_SWITCH}=0 does not try it."
    return f"Triton's kernels give other numbers than torch here ({wrong}). Please report it." if wrong else None


def _differs_from_plain(device: torch.device, dtype: torch.dtype) -> str:
    """What of a small layer's forward and backward, over groups of 3 and 2 clips, is not that of torch's BatchNorm."""
    groups, sizes = RowGroups(2, small=2, extra=1, larger=1), [3, 2]
    of_points = groups.times(4)
    made = torch.linspace(-2, 3, 5 * 24 * 4, device=device).sin().view(5, 24, 2, 2)
    x, grad = (to_channels_last(one.to(dtype)) for one in (made, made.flip(0).cos()))
    weight, bias, mean, var = torch.linspace(0.5, 1.5, 4 * 24, device=device).view(4, 24).unbind()
    exact = x.double().requires_grad_()
    affine = weight.double(), bias.double()
    parts = [F.batch_norm(part, None, None, *affine, True, 0.0, 1e-5) for part in torch.split(exact, sizes)]
    expected = torch.cat(parts)
    [of_x] = torch.autograd.grad(expected, exact, grad.double())
    operations = torch.ops.lightning_multigrid
    output, means, variances = operations.sub_batch_norm(x, weight, bias, mean, var, of_points, 0.1, 1e-5)
    of_x_here, _, _ = operations.sub_batch_norm_backward(grad, x, weight, means, variances, of_points, 1e-5)
    tolerance = max(1e-4, 4 * torch.finfo(dtype).eps)
    for name, found, known in (("output", output, expected.detach()), ("gradient", of_x_here, of_x)):
        error = float((found.double() - known).abs().max() / known.abs().max())
        if not error <= tolerance:
            return f"{name}, by {error:.1g}"
    return ""


def grouped_batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running: tuple[Tensor | None, Tensor | None],
    groups: RowGroups,
    momentum: float,
    eps: float,
) -> Tensor:
    """BatchNorm of each group of neighbouring rows of `x`, N x C x * in channels-last memory, as is the result.

    `running` are the mean and the variance that move by `momentum`: towards the average of the groups' means, and that
    of their unbiased variances, weighted by the groups' rows.
    """
    # Autograd looks for tensors among the arguments only, not within tuples.
    output: Tensor = _GroupedBatchNorm.apply(x, weight, bias, *running, groups, momentum, eps)
    return output


class _GroupedBatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        groups: RowGroups,
        momentum: float,
        eps: float,
    ) -> Tensor:
        points = groups.times(x[0, 0].numel())
        output, mean, var = torch.ops.lightning_multigrid.sub_batch_norm(
            x, weight, bias, running_mean, running_var, points, momentum, eps
        )
        ctx.save_for_backward(x, weight, mean, var)
        ctx.groups, ctx.points, ctx.eps = groups, points, eps
        ctx.of_bias = None if bias is None else bias.dtype
        return output  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        x, weight, mean, var = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        if torch.is_grad_enabled():  # somebody wants gradients of the gradients
            found: Sequence[Any] = _differentiable_gradients(grad, x, weight, ctx.groups.sizes(), ctx.eps, wanted)
        else:
            found = torch.ops.lightning_multigrid.sub_batch_norm_backward(
                to_channels_last(grad), x, weight, mean, var, ctx.points, ctx.eps
            )
        dtypes = (x.dtype, None if weight is None else weight.dtype, ctx.of_bias)
        kept = (one.to(dtype) if want else None for one, dtype, want in zip(found, dtypes, wanted, strict=False))
        return *kept, None, None, None, None, None


def _differentiable_gradients(
    grad: Tensor, x: Tensor, weight: Tensor | None, sizes: Sequence[int], eps: float, wanted: Sequence[bool]
) -> list[Tensor | None]:
    """The gradients of `x`, weight and bias by torch's own BatchNorm of each group, as far as they are wanted."""
    parts = [F.batch_norm(part, None, None, weight, None, True, 0.0, eps) for part in torch.split(x, list(sizes))]
    inputs = [tensor for tensor, want in zip((x, weight), wanted, strict=False) if tensor is not None and want]
    made = iter(torch.autograd.grad(torch.cat(parts), inputs, grad, create_graph=True) if inputs else ())
    of_x, of_weight = (next(made) if want else None for want in wanted[:2])
    return [of_x, of_weight, grad.sum(dim=[0, *range(2, grad.dim())]) if wanted[2] else None]


# --- The operations ---


def _forward(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    groups: Sequence[int],
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    from lightning_multigrid.norm import triton_kernels  # where there is no GPU, there may be no Triton

    return triton_kernels.forward(x, weight, bias, running_mean, running_var, RowGroups(*groups), momentum, eps)


def _backward(
    grad: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, var: Tensor, groups: Sequence[int], eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    from lightning_multigrid.norm import triton_kernels

    return triton_kernels.backward(grad, x, weight, mean, var, RowGroups(*groups), eps)


def _forwards_shapes(x: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    mean, var = (x.new_empty((others[4][0], x.shape[1]), dtype=torch.float32) for _ in range(2))
    return torch.empty_like(x), mean, var


def _backwards_shapes(grad: Tensor, x: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    of_weight, of_bias = (x.new_empty(x.shape[1], dtype=torch.float32) for _ in range(2))
    return torch.empty_like(x), of_weight, of_bias


# Means and biased variances are k x C, and the gradients of weight and bias C values, all at 32 bits. `groups` are the
# numbers of a `RowGroups`, whose rows are the points of all clips.
_library: Any = library.Library("lightning_multigrid", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define(
    "sub_batch_norm(Tensor x, Tensor? weight, Tensor? bias, Tensor(a!)? running_mean, Tensor(b!)? running_var, "
    "int[] groups, float momentum, float eps) -> (Tensor output, Tensor mean, Tensor var)"
)
_library.define(
    "sub_batch_norm_backward(Tensor grad, Tensor x, Tensor? weight, Tensor mean, Tensor var, int[] groups, float eps) "
    "-> (Tensor of_x, Tensor of_weight, Tensor of_bias)"
)
_library.impl("sub_batch_norm", _forward, "CompositeExplicitAutograd")
_library.impl("sub_batch_norm_backward", _backward, "CompositeExplicitAutograd")
library.register_fake("lightning_multigrid::sub_batch_norm", _forwards_shapes, lib=_library)
library.register_fake("lightning_multigrid::sub_batch_norm_backward", _backwards_shapes, lib=_library)

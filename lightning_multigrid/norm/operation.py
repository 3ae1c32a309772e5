"""BatchNorm with statistics over sub-mini-batches (Sec. 3.2, Batch Normalization), by the operation.

A multigrid mini-batch has many times the clips of the baseline's. Statistics over all of them would regularise less, so
each group of about as many clips as the baseline's mini-batch has its own. Every layer of BatchNorm calls
`torch.nn.functional.batch_norm`. Within `sub_batches` that function is the one below. So no layer is changed, and
layers of other classes, copies and pickles need no care.

Legend: N rows, C channels, `*` the other axes (none; L; H W; T H W), P their points; k groups, units of u neighbours.
"""

import math
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from lightning_multigrid.norm.across_ranks import SharedBatchStatistics, neighbours, ranks_needed, world_size


class _Groups(NamedTuple):
    """The arguments of `sub_batches`, and how many ranks share statistics: 1 if each has enough clips."""

    clips: int
    of: int
    baseline_batches: float
    ranks: int


_groups: _Groups | None = None  # within `sub_batches`
_lock, _holder = threading.RLock(), ""


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Refuses another thread that would set BatchNorm's groups; the same thread may enter again."""
    global _holder  # as torch's function is one for all threads
    if not _lock.acquire(blocking=False):
        raise RuntimeError(
            "MultigridCallback and `sub_batches` set for all threads how many clips share BatchNorm statistics. The "
            f"thread {_holder!r} already trains with one of them, so {threading.current_thread().name!r} can't. Train "
            "one after the other, or in processes of their own."
        )
    try:
        _holder = threading.current_thread().name
        yield
    finally:
        _lock.release()


@contextmanager
def sub_batches(clips: int, of: int, *, baseline_batches: float = 1, world: int | None = None) -> Iterator[None]:
    """Within it, BatchNorm of any kind has statistics over `clips` clips, in mini-batches of `of` clips.

    It holds for whatever calls `torch.nn.functional.batch_norm` by this name in training: the layers of torch, derived
    classes, and others such as timm's; `nn.SyncBatchNorm` and TorchScript don't. No layer changes. Forward and backward
    should both be within it, as a checkpointed activation is computed again in the backward.

    N clips form k = max(1, N // clips) groups, each normalised by its own mean and variance: clip i is in group i % k.
    If a model folds frames into the first axis, or puts several views into one mini-batch, a clip has m rows, which is
    N / `of`, rounded. The rows are dealt out to the groups in turn, m neighbours at a time. So the frames of a clip
    stay in one group if they are neighbours, as `flatten(0, 1)` of B x T x ... makes them. Of `cat([real, fake])`, and
    of rows that are sorted by time, each group has the same mixture. If the rows can't be parted evenly, the first
    groups have up to m rows more.

    The running statistics mean what plain BatchNorm's do for mini-batches of `clips` clips: they follow the averages of
    the groups' means and of their (unbiased) variances, weighted by the groups' rows. The mini-batch counts in them
    with 1 - (1 - m)^baseline_batches, where m is the layer's momentum: a step on a coarse base shape replaces several
    of the baseline's, and the weights change as much. A single group that counts once is plain BatchNorm to the bit.

    If `torch.distributed` is initialised and `of` is less than `clips`, a rank shares statistics with its neighbours:
    `min(R, ceil(clips / of))` of the R ranks form a group; left-over ranks join the last group. Forward and backward
    give what a single process would compute on all the group's clips. `of` decides it on all ranks alike, whatever
    reaches a layer on one of them, even if no clip does. Ranks that share must be replicas of the model. A layer has
    one all-reduce forward, of (2 C + 1) values per rank of the group, and one backward, of 2 C. The callback makes the
    groups (`torch.distributed.new_group`) before the first step; elsewhere a forward that needs them does.
    `DistributedDataParallel` needs no change: each rank's gradient is that of the sum of all losses with respect to its
    own clips, and all replicas take over the running statistics of rank 0, as with plain BatchNorm.

    Args:
        clips: Clips that share statistics.
        of: Clips of a mini-batch on this device.
        baseline_batches: Mini-batches of the baseline that this one replaces (`Step.baseline_batches`).
        world: Ranks that train together, if not all of the default group: 1 says that each trains by itself.

    Raises:
        ValueError: If `clips` or `of` is below 1; in training, as in plain BatchNorm, if a group has one value per
            channel.
        RuntimeError: If another thread is within it, or within a `fit` with MultigridCallback.

    >>> layer, x = torch.nn.BatchNorm3d(4), torch.randn(16, 4, 2, 3, 3)
    >>> with sub_batches(8, of=16):
    ...     torch.allclose(layer(x)[::2], layer(x[::2]), atol=1e-5)  # clips 0, 2, 4 ... are a group
    True
    """
    global _groups
    for name, number in (("clips", clips), ("of", of)):
        if not isinstance(number, int) or number < 1:
            raise ValueError(
                f"`{name}` must be an integer of at least 1, got {number!r}. For statistics over the whole mini-batch "
                "leave `sub_batches` out."
            )
    ranks = ranks_needed(of, clips, world_size(world)) if of < clips else 1
    with one_at_a_time():
        before = _groups, F.batch_norm
        # Not public, but the one name by which the layers of torch 2.6 to 2.15 (`nn/modules/batchnorm.py`) and those of
        # other libraries call BatchNorm. `test_all_layers_call_the_function_that_is_replaced` fails when that changes.
        _groups, F.batch_norm = _Groups(clips, of, float(baseline_batches), ranks), batch_norm
        try:
            yield
        finally:
            _groups, F.batch_norm = before


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """`torch.nn.functional.batch_norm` over the groups of `sub_batches`."""
    running = running_mean, running_var
    if _groups is None or not training:
        return _plain(input, running, weight, bias, training, momentum, eps)
    clips, of, batches, ranks = _groups
    momentum = momentum if batches == 1 else 1 - (1 - momentum) ** batches
    # Meta tensors, on which models are tried before training, have nothing to share.
    if ranks > 1 and not input.is_meta:
        return _over_ranks(input, running, weight, bias, momentum, eps, ranks)  # type: ignore[no-any-return]
    rows = input.shape[0]
    unit = max(1, (rows + of // 2) // of)  # rows of a clip, which stay together
    groups = max(1, min(min(rows, of) // clips, -(-rows // unit)))
    if rows // groups * math.prod(input.shape[2:]) == 1:
        raise ValueError(f"Expected more than 1 value per channel when training, got input size {input.shape}")
    if groups == 1:
        return _plain(input, running, weight, bias, True, momentum, eps)
    even = rows % (groups * unit) == 0
    if even and takes_compiled(input):
        output, *seen = normalize_groups(input, weight, bias, groups, unit, eps)
        _move(running, seen, momentum)
        return output
    if even and unit == 1:
        output = _merged(input.contiguous(), running, weight, bias, groups, momentum, eps)
    else:
        output = _apart(input, running, weight, bias, groups, unit, momentum, eps)
    return output.contiguous(memory_format=_LAST[input.dim()]) if only_channels_last(input) else output


_Running = Sequence[Tensor | None]  # mean and variance


def _plain(
    x: Tensor,
    running: _Running,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Tensor:
    # Not torch's function of `functional`: a graph of `torch.compile` would call it by its name, which is ours.
    (mean, var), cudnn = running, torch.backends.cudnn.enabled
    return torch.batch_norm(x, weight, bias, mean, var, training, momentum, eps, cudnn)


# `torch.compile` must break its graph here, as it would take the group of ranks for a constant.
@torch.compiler.disable  # type: ignore[untyped-decorator]
def _over_ranks(
    x: Tensor, running: _Running, weight: Tensor | None, bias: Tensor | None, momentum: float, eps: float, ranks: int
) -> Tensor:
    """Normalises by the statistics of neighbouring ranks, as few as have a sub-mini-batch of clips together."""
    weight = x.new_ones(x.shape[1]) if weight is None else weight
    bias = x.new_zeros(x.shape[1]) if bias is None else bias
    x, weight, bias, mean, var, count = SharedBatchStatistics.apply(x, weight, bias, eps, neighbours(ranks))
    output = _plain(x, (mean, var), weight, bias, False, 0.0, eps)
    _move(running, (mean, var * (count / (count - 1))), momentum)
    return output


def _move(running: _Running, seen: Sequence[Tensor], momentum: float) -> None:
    for one, values in zip(running, seen, strict=True):
        if one is not None:
            one.data.lerp_(values.detach().to(one.dtype), momentum)


def _merged(
    x: Tensor, running: _Running, weight: Tensor | None, bias: Tensor | None, groups: int, momentum: float, eps: float
) -> Tensor:
    """One BatchNorm of n clips with k C channels. Clip i belongs to group i % k, so this is a view."""
    merged = x.view(-1, groups * x.shape[1], *x.shape[2:])
    weights, biases, *moments = (
        None if tensor is None else tensor.repeat(groups) for tensor in (weight, bias, *running)
    )
    output = _plain(merged, moments, weights, biases, True, momentum, eps)
    for moved, one in zip(moments, running, strict=True):
        if moved is not None and one is not None:
            torch.mean(moved.view(groups, -1), dim=0, dtype=one.dtype, out=one.data)
    # Not `view`: of a view, an in-place ReLU would make autograd copy all activations. No public function changes the
    # shape of a tensor that nobody else sees; matmul uses this one for it.
    return torch.ops.aten._unsafe_view(output, x.shape)  # type: ignore[no-any-return]


def _apart(
    x: Tensor,
    running: _Running,
    weight: Tensor | None,
    bias: Tensor | None,
    groups: int,
    unit: int,
    momentum: float,
    eps: float,
) -> Tensor:
    """A BatchNorm of each group, where no view has the rows of all groups together."""
    units = torch.split(x, unit)
    parts = [torch.cat(units[group::groups]) for group in range(groups)]
    weights, biases = _for_each(groups, weight), _for_each(groups, bias)
    shares = _momenta([len(part) for part in parts], momentum)
    outputs = [
        torch.split(_plain(part, running, w, b, True, share, eps), unit)
        for part, w, b, share in zip(parts, weights, biases, shares, strict=True)
    ]
    return torch.cat([outputs[turn % groups][turn // groups] for turn in range(len(units))])


def _for_each(groups: int, tensor: Tensor | None) -> Sequence[Tensor | None]:
    """A tensor k times. The backward adds up the gradients in two operations; for the tensor itself, in k - 1."""
    return [None] * groups if tensor is None else tensor.expand(groups, -1).unbind()


def _momenta(sizes: Sequence[int], momentum: float) -> list[float]:
    """The momenta by which groups move running statistics one after another as their average, weighted by size, would.

    >>> _momenta([1, 1], momentum=1.0)  # the second halves what the first has set
    [1.0, 0.5]
    """
    shares = [momentum * size / sum(sizes) for size in sizes]
    return [share / (1 - sum(shares[index + 1 :])) for index, share in enumerate(shares)]


# --- In channels-last memory on a GPU ---
# There, N x C x * is a matrix with a row of C values for each point of each clip, so all groups together are a view of
# it. `torch.compile` makes two kernels of the arithmetic: one that reads, and one that reads and writes. So nothing is
# copied to contiguous memory and back.

_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}  # by the number of axes


def only_channels_last(x: Tensor) -> bool:
    """Whether a tensor lies in channels-last memory, and would have to be copied to contiguous memory."""
    last = _LAST.get(x.dim())
    return last is not None and x.is_contiguous(memory_format=last) and not x.is_contiguous()


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
    """Returns the output, and the averages over the groups of their means and unbiased variances, C values each."""
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

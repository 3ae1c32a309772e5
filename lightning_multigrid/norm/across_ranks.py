"""Batch statistics over the clips of several ranks, forward and backward (Sec. 3.2, Batch Normalization).

Legend: N clips of a rank, C channels, `*` the other axes, R ranks.
"""

from collections.abc import Iterable
from itertools import pairwise
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch import distributed as dist
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


class SharedBatchStatistics(torch.autograd.Function):
    """Statistics of the clips of a group of ranks, and the gradients that flow through the statistics.

    `x`, `weight` and `bias` pass through unchanged; a BatchNorm with given statistics follows. Its backward takes the
    statistics for constants, and its gradients arrive here. Those of `weight` and `bias` are sums over clips: exactly
    what the ranks need to add the part of the gradient that flows through the statistics.

    The gradients are those of the sum of the ranks' losses: for `x` complete, for `weight` and `bias` this rank's part.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float, group: dist.ProcessGroup
    ) -> tuple[Tensor, ...]:
        """Returns `x`, `weight`, `bias`; the group's mean and (biased) variance per channel; its number of values."""
        channels = x.shape[1]
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        local = wide.new_zeros(2, channels)
        if len(x):  # a rank may have no clip
            local = torch.stack(torch.var_mean(wide, [0, *range(2, x.dim())], correction=0)[::-1])
        # Each rank fills a row: the result has the same bits on all, and no variance is a difference of large sums.
        rows = local.new_zeros(dist.get_world_size(group), 2 * channels + 1)
        rows[dist.get_rank(group)] = torch.cat([*local, local.new_full((1,), x.numel() // channels)])
        dist.all_reduce(rows, group=group)
        means, variances, counts = rows.tensor_split((channels, 2 * channels), dim=1)
        count = counts.sum()  # stays on the device, as reading it would wait for the device
        share = counts / count
        mean = (share * means).sum(dim=0)
        var = (share * (variances + (means - mean) ** 2)).sum(dim=0)
        ctx.save_for_backward(x, weight, mean, var, count)
        ctx.eps, ctx.group = eps, group
        ctx.mark_non_differentiable(mean, var, count)
        return x, weight.to(mean.dtype), bias.to(mean.dtype), mean, var, count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_x: Tensor, grad_weight: Tensor, grad_bias: Tensor, *_: Tensor) -> tuple[Any, ...]:
        x, weight, mean, var, count = ctx.saved_tensors
        if ctx.needs_input_grad[0]:
            sums = torch.stack([grad_weight, grad_bias])
            dist.all_reduce(sums, group=ctx.group)
            # Through variance and mean: -weight / deviation * (normalised x * sum of grad_weight + sum of grad_bias)
            # / count, which is a BatchNorm of `x` with the following weight and bias.
            slope, shift = -weight * (var + ctx.eps).rsqrt() * sums / count
            grad_x = F.batch_norm(x, mean, var, slope, shift, training=False, eps=ctx.eps).add_(grad_x)
        return grad_x, grad_weight.to(weight.dtype), grad_bias.to(weight.dtype), None, None


# This rank's groups: default group -> least number of ranks -> group. They last as long as the default group.
_groups: WeakKeyDictionary[dist.ProcessGroup, dict[int, dist.ProcessGroup]] = WeakKeyDictionary()


def world_size(most: int | None = None) -> int:
    """Ranks that train together: those of the default group, but no more than `most`; 1 if there is no group."""
    every = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    return every if most is None else min(every, most)


def ranks_needed(clips: int, sub_batch: int, world: int | None = None) -> int:
    """How many ranks with this many clips have a sub-mini-batch together, or all of `world` (None: all there are).

    >>> ranks_needed(clips=2, sub_batch=8, world=16), ranks_needed(clips=64, sub_batch=8, world=16)
    (4, 1)
    """
    return min(world or world_size(), -(-sub_batch // clips))


def make_groups(clips_and_sub_batches: Iterable[tuple[int, int]]) -> None:
    """Makes the groups of ranks that share statistics. All ranks must call it with the same numbers."""
    # A layer makes a missing group in its forward, but on NCCL that may hang while other operations are under way.
    for least in sorted({ranks_needed(clips, sub_batch) for clips, sub_batch in clips_and_sub_batches} - {1}):
        neighbours(least)


def neighbours(least: int) -> dist.ProcessGroup:
    """This rank's group of at least `least` ranks. The first call with a `least` waits for all ranks."""
    world = dist.group.WORLD
    assert world is not None
    parts = _partition(dist.get_world_size(), least)
    if len(parts) == 1:
        return world  # not stored in `_groups`, where it would keep its own key alive
    made = _groups.setdefault(world, {})
    if least not in made:
        # Every rank must make every group, in the same order: NCCL may split the communicator of all ranks for it.
        for ranks in parts:
            group = dist.new_group(ranks)
            if isinstance(group, dist.ProcessGroup):  # otherwise this rank is not in the group
                made[least] = group
    return made[least]


def _partition(world: int, least: int) -> list[list[int]]:
    """Groups of `least` neighbouring ranks; the remaining ranks join the last group."""
    return [list(range(*ends)) for ends in pairwise([*range(0, world - least + 1, least), world])]

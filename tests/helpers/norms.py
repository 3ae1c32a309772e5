"""Layers of BatchNorm and clips for them, which clips share statistics, and plain BatchNorm of them."""

import copy

import torch
from torch import nn

from lightning_multigrid.norm import operation, sub_batches

CHANNELS = 3
INPUTS = [
    (nn.BatchNorm1d, (), torch.contiguous_format),
    (nn.BatchNorm1d, (4,), torch.contiguous_format),
    (nn.BatchNorm2d, (3, 2), torch.contiguous_format),
    (nn.BatchNorm2d, (3, 2), torch.channels_last),
    (nn.BatchNorm3d, (2, 3, 2), torch.contiguous_format),
    (nn.BatchNorm3d, (2, 3, 2), torch.channels_last_3d),
]


def make_clips(number, other=(2, 3, 2), memory_format=torch.contiguous_format, dtype=torch.float64):
    """Clips with a mean and a scale of their own, so that no two groups have equal statistics."""
    shape = (number, CHANNELS, *other)
    x = torch.randn(shape) * torch.rand(number, *[1] * (len(shape) - 1)) + torch.randn(number, *[1] * (len(shape) - 1))
    return x.to(dtype).contiguous(memory_format=memory_format)


def make_layer(kind=nn.BatchNorm3d, **arguments):
    layer = kind(CHANNELS, dtype=torch.float64, **arguments)
    if layer.weight is not None:
        nn.init.uniform_(layer.weight, 0.5, 2)
        nn.init.normal_(layer.bias)
    return layer


def shared_clips():
    """How many clips share statistics at the moment; None outside of `sub_batches`."""
    return None if operation._groups is None else operation._groups.clips


def grouped(layer, x, clips, of=None, **arguments):
    """The output of a layer within `sub_batches`; by default each row is a clip."""
    with sub_batches(clips, of=len(x) if of is None else of, **arguments):
        return layer(x)


def in_turn(rows, groups, together=1):
    """The rows of each group, if they are dealt out in turn, so many neighbours at a time."""
    return [tuple(row for row in range(rows) if row // together % groups == group) for group in range(groups)]


def groups_of(layer, x, clips, of=None):
    """Which rows share statistics: those whose output changes when one of them changes."""
    probe = copy.deepcopy(layer)
    with torch.no_grad():
        before, groups = grouped(probe, x, clips, of).flatten(1), set()
        for row in range(len(x)):
            changed = x.clone()
            changed[row] += torch.randn_like(changed[row])
            different = (grouped(probe, changed, clips, of).flatten(1) != before).any(dim=1)
            groups.add(tuple(different.nonzero().flatten().tolist()))
    return sorted(groups)


def loop_of_batchnorm(layer, x, groups):
    """Output, and a layer whose running statistics are the average of one copy per group, weighted by their rows."""
    output = torch.empty_like(x)
    layers = [copy.deepcopy(layer) for _ in groups]
    for plain, group in zip(layers, groups, strict=True):
        plain.weight, plain.bias = layer.weight, layer.bias  # gradients add up in one place
        output = output.index_copy(0, torch.tensor(group), plain(x[list(group)]))
    average = copy.deepcopy(layer)
    if average.track_running_stats:
        average.num_batches_tracked += 1
        for name in ("running_mean", "running_var"):
            weighted = [len(g) * getattr(plain, name) for plain, g in zip(layers, groups, strict=True)]
            getattr(average, name).copy_(sum(weighted) / len(x))
    return output, average

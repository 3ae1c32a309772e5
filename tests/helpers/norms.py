"""Which clips share statistics of BatchNorm, and plain BatchNorm of them."""

import copy

import torch

from lightning_multigrid.norm import restore_batchnorm


def plain_copy(layer):
    return restore_batchnorm(copy.deepcopy(layer))


def groups_of(layer, x):
    """Which clips share statistics: those whose output changes when one of them changes."""
    probe = copy.deepcopy(layer)
    with torch.no_grad():
        before = probe(x).flatten(1)
        groups = set()
        for clip in range(len(x)):
            changed = x.clone()
            changed[clip] += torch.randn_like(changed[clip])
            different = (probe(changed).flatten(1) != before).any(dim=1)
            groups.add(tuple(different.nonzero().flatten().tolist()))
    return sorted(groups)


def loop_of_batchnorm(layer, x, groups):
    """Output, and a plain layer whose running statistics are the clip-weighted average of one copy per group."""
    output = torch.empty_like(x)
    layers = [plain_copy(layer) for _ in groups]
    for plain, group in zip(layers, groups, strict=True):
        plain.weight, plain.bias = layer.weight, layer.bias  # gradients add up in one place
        output = output.index_copy(0, torch.tensor(group), plain(x[list(group)]))
    average = plain_copy(layer)
    if average.track_running_stats:
        average.num_batches_tracked += 1
        for name in ("running_mean", "running_var"):
            weighted = [len(g) * getattr(plain, name) for plain, g in zip(layers, groups, strict=True)]
            getattr(average, name).copy_(sum(weighted) / len(x))
    return output, average

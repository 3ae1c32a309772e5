"""Sets BatchNorm's running statistics to those of many clips (precise BatchNorm), or to their average over ranks."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch import distributed as dist

from lightning_multigrid.norm.across_ranks import world_size

BatchNorm: TypeAlias = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d


def tracking_layers(module: nn.Module) -> dict[str, BatchNorm]:
    """The BatchNorm layers of a module that keep running statistics, by name."""
    return {
        name: layer
        for name, layer in module.named_modules()
        if isinstance(layer, BatchNorm) and layer.track_running_stats and layer.running_mean is not None
    }


@contextmanager
def observed_moments(layers: Mapping[str, nn.Module]) -> Iterator[dict[str, list[Tensor]]]:
    """Collects a 3 x C tensor for each input of a layer, by name: number of values, mean and (biased) variance."""
    moments: dict[str, list[Tensor]] = {name: [] for name in layers}

    def observe(name: str, layer: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        x: Tensor = (*args, *kwargs.values())[0].detach()
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        var, mean = torch.var_mean(x, dim=[0, *range(2, x.dim())], correction=0)
        moments[name].append(torch.stack([torch.full_like(mean, x.numel() / x.shape[1]), mean, var]))

    with ExitStack() as hooks:
        for name, layer in layers.items():
            hooks.enter_context(layer.register_forward_pre_hook(partial(observe, name), with_kwargs=True))
        yield moments


def write_statistics(layers: Mapping[str, BatchNorm], moments: Mapping[str, Sequence[Tensor]]) -> None:
    """Sets running statistics to those of all values on all ranks, by the law of total variance, in one all-reduce."""
    # Sums of values and of squares are exact enough in float64 even for a small variance.
    sums = []
    for name, layer in layers.items():
        parts = [part.cpu().double() for part in moments[name]] or [torch.zeros(3, layer.num_features).double()]
        count, mean, var = torch.stack(parts, dim=1)
        sums.append(torch.stack([count, count * mean, count * (var + mean**2)]).sum(dim=1))
    merged = _sum_over_ranks(torch.cat(sums, dim=1), _buffers(layers)[0].device)
    channels = [layer.num_features for layer in layers.values()]
    for layer, part in zip(layers.values(), torch.split(merged, channels, dim=1), strict=True):
        count, value, square = part
        if count[0] > 0:
            running_mean, running_var = _buffers({"": layer})
            running_mean.copy_(value / count)
            running_var.copy_((square / count - (value / count) ** 2).clamp_(min=0))


def average_statistics(layers: Mapping[str, BatchNorm]) -> None:
    """Sets running statistics to their average over ranks, in one all-reduce: DDP would keep those of rank 0 only."""
    buffers = _buffers(layers)
    if world_size() == 1 or not buffers:
        return
    merged = torch.cat([buffer.cpu().double() for buffer in buffers])
    merged = _sum_over_ranks(merged, buffers[0].device) / world_size()
    for buffer, value in zip(buffers, torch.split(merged, [len(buffer) for buffer in buffers]), strict=True):
        buffer.copy_(value)


def _buffers(layers: Mapping[str, BatchNorm]) -> list[Tensor]:
    return [cast("Tensor", b) for layer in layers.values() for b in (layer.running_mean, layer.running_var)]


def _sum_over_ranks(values: Tensor, device: torch.device) -> Tensor:
    if world_size() == 1:
        return values
    summed = values.to(device)
    dist.all_reduce(summed)
    return summed.cpu()

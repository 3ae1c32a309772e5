"""Sets BatchNorm's running statistics to those of many clips (precise BatchNorm), or to their average over ranks."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial, reduce
from typing import Any, TypeAlias

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
    buffers = _buffers(layers)
    parts = [part for name in layers for part in moments[name]] or [torch.zeros(3, 0)]
    sizes = [(len(moments[name]), layer.num_features) for name, layer in layers.items()]
    seen = torch.split(_to_cpu(parts, buffers[0].device), [number * width for number, width in sizes], dim=1)
    # Sums of values and of squares are exact enough in float64 even for a small variance.
    sums = []
    for size, part in zip(sizes, seen, strict=True):
        count, mean, var = part.reshape(3, *size)
        sums.append(torch.stack([count, count * mean, count * (var + mean**2)]).sum(dim=1))
    count, value, square = _sum_over_ranks(torch.cat(sums, dim=1), buffers[0].device)
    mean = value / count
    var = (square / count - mean**2).clamp_(min=0)
    before = _to_cpu(buffers, buffers[0].device).view(2, -1)
    _write(buffers, torch.where(count > 0, torch.stack([mean, var]), before).flatten())  # no clip reaches some layers


def average_statistics(layers: Mapping[str, BatchNorm]) -> None:
    """Sets running statistics to their average over ranks, in one all-reduce: DDP would keep those of rank 0 only."""
    buffers = _buffers(layers)
    if world_size() > 1 and buffers:
        device = buffers[0].device
        _write(buffers, _sum_over_ranks(_to_cpu(buffers, device), device) / world_size())


# Each copy to or from a device waits for it, so there is one for all layers.


def _buffers(layers: Mapping[str, BatchNorm]) -> list[Tensor]:
    """All running means, then all running variances."""
    means, variances = [[getattr(layer, name) for layer in layers.values()] for name in ("running_mean", "running_var")]
    return [*means, *variances]


def _to_cpu(tensors: Sequence[Tensor], device: torch.device) -> Tensor:
    """Joins tensors along their last dimension, in float64; layers on other devices than this one cost a copy each."""
    return torch.cat([tensor.to(device) for tensor in tensors], dim=-1).cpu().double()  # not every device has float64


def _write(buffers: Sequence[Tensor], values: Tensor) -> None:
    dtype = reduce(torch.promote_types, (buffer.dtype for buffer in buffers))
    parts = torch.split(values.to(dtype).to(buffers[0].device), [len(buffer) for buffer in buffers])
    for buffer, part in zip(buffers, parts, strict=True):
        buffer.copy_(part)


def _sum_over_ranks(values: Tensor, device: torch.device) -> Tensor:
    if world_size() == 1:
        return values
    summed = values.to(device)
    dist.all_reduce(summed)
    return summed.cpu()

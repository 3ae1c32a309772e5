"""Sets BatchNorm's running statistics to those of many clips (precise BatchNorm), or to their average over ranks."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
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


def write_statistics(
    layers: Mapping[str, BatchNorm], moments: Mapping[str, Sequence[Tensor]], world: int | None = None
) -> None:
    """Sets running statistics to those of all values on all ranks, by the law of total variance.

    `world` is how many ranks train together; None for all of the default group.
    """
    world = world_size(world)
    for name, layer in layers.items():
        seen = torch.stack(list(moments[name]) or [torch.zeros(3, layer.num_features)])
        # Sums of values and of squares are exact enough in float64 even for a small variance. Not every device has it.
        count, mean, var = seen.cpu().double().unbind(dim=1)
        sums = torch.stack([count, count * mean, count * (var + mean**2)]).sum(dim=1)
        count, value, square = _sum_over_ranks(sums, _tracked(layer)[0].device, world)
        if count.any():  # else no clip reaches the layer
            mean = value / count
            _write(layer, mean, (square / count - mean**2).clamp_(min=0))


def average_statistics(layers: Mapping[str, BatchNorm], world: int | None = None) -> None:
    """Sets running statistics to their average over ranks: DDP would keep those of rank 0 only."""
    world = world_size(world)
    if world > 1:
        for layer in layers.values():
            own = torch.stack(_tracked(layer))
            _write(layer, *_sum_over_ranks(own.cpu().double(), own.device, world) / world)


def _tracked(layer: Any) -> tuple[Tensor, Tensor]:
    return layer.running_mean, layer.running_var


def _write(layer: BatchNorm, *statistics: Tensor) -> None:
    for buffer, values in zip(_tracked(layer), statistics, strict=True):
        buffer.copy_(values)


def _sum_over_ranks(values: Tensor, device: torch.device, world: int) -> Tensor:
    if world == 1:
        return values
    summed = values.to(device)
    dist.all_reduce(summed)
    return summed.cpu()

"""Layers whose classes derive from BatchNorm, such as timm's `BatchNormAct2d`, which normalises and then activates.

Such a layer keeps its own `forward`. Where that hands the layer's statistics to `F.batch_norm`, as torch's does, the
normalisation of sub-mini-batches takes the place of that call, and the rest is the class's own.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.lazy import LazyModuleMixin
from torch.overrides import TorchFunctionMode

Normalize = Callable[[Tensor], Tensor]


class _BatchNormCalls(TorchFunctionMode):
    """Within it, a function takes the calls of `F.batch_norm`: their input, and whether the rest is what a layer hands.

    That is, whether the call is one of the layer's `forward` in training, as torch's own `forward` makes it.
    """

    def __init__(self, layer: Any, instead: Callable[[Tensor, bool], Tensor]) -> None:
        super().__init__()
        self._layer, self._instead = layer, instead

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        taken = self._batch_norm if func is F.batch_norm else func
        return taken(*args, **(kwargs or {}))

    def _batch_norm(
        self,
        input: Tensor,
        running_mean: Any,
        running_var: Any,
        weight: Any = None,
        bias: Any = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        layer = self._layer
        tracked = layer.running_mean if layer.track_running_stats else None
        handed = running_mean is tracked and weight is layer.weight and bias is layer.bias
        return self._instead(input, handed and training and eps == layer.eps)


def has_own_forward(kind: type[nn.Module]) -> bool:
    """Whether a class of BatchNorm layers computes otherwise than torch's."""
    return kind.forward is not _BatchNorm.forward


def is_sharded(layer: nn.Module) -> bool:
    """Whether `fully_shard` was called on a layer itself, which then holds parts of tensors."""
    return any(kind.__name__ == "FSDPModule" for kind in type(layer).__mro__)  # to import that class takes a second


def can_group(layer: nn.Module, dims: int) -> bool:
    """Whether a layer of a derived class can have statistics of sub-mini-batches; its input has so many axes.

    A class with a `forward` of its own is tried on a copy: it must call `F.batch_norm` once, with what is the layer's.
    Lazy layers become plain BatchNorm.
    """
    if isinstance(layer, LazyModuleMixin) or is_sharded(layer):
        return False
    if not has_own_forward(type(layer)):
        return True
    calls: list[bool] = []

    def note(input: Tensor, own: bool) -> Tensor:
        calls.append(own)
        return torch.empty_like(input)

    try:
        tried: Any = copy.deepcopy(layer).to("cpu").train()
        with _BatchNormCalls(tried, note):
            tried.forward(torch.zeros(2, tried.num_features, *[2] * (dims - 2)))
    except Exception:  # whatever a user's layer may raise
        return False
    return calls == [True]


def run_own_forward(layer: Any, forward: Callable[..., Any], normalize: Normalize, *args: Any, **named: Any) -> Any:
    """Runs the `forward` of a derived class in training, with `normalize` in the place of its `F.batch_norm`."""
    counter: Tensor | None = layer.num_batches_tracked
    counted = None if counter is None else counter.clone()  # both count the mini-batch

    def instead(input: Tensor, own: bool) -> Tensor:
        if not own:
            raise RuntimeError(
                f"{type(layer).__name__} normalises otherwise than when it was tried, so it can't have the statistics "
                "of sub-mini-batches. Use torch's BatchNorm, or a class that doesn't derive from it."
            )
        if counter is not None and counted is not None:
            counter.copy_(counted)
        return normalize(input)

    with _BatchNormCalls(layer, instead):
        output = forward(layer, *args, **named)
    if counter is not None and counted is not None:
        counter.copy_(counted + 1)
    return output

"""BatchNorm with statistics over sub-mini-batches (Sec. 3.2, Batch Normalization).

A multigrid mini-batch has many times the clips of the baseline's. Statistics over all of them would regularise less, so
each group of about `sub_batch` clips has its own. Only the *class* of a layer changes: whatever was made before or
after the conversion finds the same parameters and buffers under the same names.

Legend: N clips, C channels, `*` the other axes (none; L; H W; T H W); k groups of n clips; R ranks.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.lazy import LazyModuleMixin

from lightning_multigrid.norm.across_ranks import SharedBatchStatistics, neighbours, ranks_needed, world_size
from lightning_multigrid.norm.channels_last import (
    RowGroups,
    grouped_batch_norm,
    has_kernels,
    only_channels_last,
    to_channels_last,
)

Module = TypeVar("Module", bound=nn.Module)


class _SubBatchNorm(nn.Module):
    """The common part of the three layers. Plain BatchNorm, the next base class of each, holds the state."""

    sub_batch: int
    _baseline_batches: float = 1.0
    # Its length is the clips of a mini-batch. For each value of a number, `torch.compile` would make a graph.
    _mini_batch: Tensor | None = None
    _world: int | None = None  # ranks that train together; None for all of the default group
    _in_step: bool = False  # converted until its step ends: a copy, which no step will restore, is plain
    _input_dims: ClassVar[tuple[int, ...]]
    _plain_class: ClassVar[type[nn.Module]]  # what the layer is without the conversion

    # Attributes of plain BatchNorm, as torch declares them; `weight` and `bias` may be None in spite of that.
    eps: float
    momentum: float | None
    track_running_stats: bool
    weight: nn.Parameter
    bias: nn.Parameter
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        sub_batch: int = 8,
    ) -> None:
        _check_clips("sub_batch", sub_batch)
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype)
        self.sub_batch = sub_batch

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or input.dim() not in self._input_dims:
            return _torchs_forward(self, input)  # evaluates the input, or refuses it
        rows = input.shape[0]
        # The number of clips that is planned, where one is, decides whether ranks share: it is the same on all of them.
        planned = rows if self._mini_batch is None else self._mini_batch.shape[0]
        # Meta tensors, on which models are tried before training, have nothing to share.
        if 0 < planned < self.sub_batch and not input.is_meta and (world := world_size(self._world)) > 1:
            return self._normalize_over_ranks(input, planned, world)  # type: ignore[no-any-return]
        clips = min(rows, planned)
        groups = clips // self.sub_batch
        return self._normalize_whole(input) if groups < 2 else self._normalize(input, clips, groups)

    # `torch.compile` must break its graph here, as it would take the group of ranks for a constant.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _normalize_over_ranks(self, x: Tensor, clips: int, world: int) -> Tensor:
        """Normalises by the statistics of neighbouring ranks, as few as have a sub-mini-batch of clips together."""
        weight = x.new_ones(x.shape[1]) if self.weight is None else self.weight
        bias = x.new_zeros(x.shape[1]) if self.bias is None else self.bias
        group = neighbours(ranks_needed(clips, self.sub_batch, world))
        x, weight, bias, mean, var, count = SharedBatchStatistics.apply(x, weight, bias, self.eps, group)
        output = F.batch_norm(x, mean, var, weight, bias, training=False, eps=self.eps)
        if self.track_running_stats and self.running_mean is not None and self.running_var is not None:
            weight_of_batch = self._count()
            self.running_mean.data.lerp_(mean.to(self.running_mean.dtype), weight_of_batch)
            self.running_var.data.lerp_((var * (count / (count - 1))).to(self.running_var.dtype), weight_of_batch)
        return output

    def _normalize_whole(self, x: Tensor) -> Tensor:
        """Normalises by the statistics of all clips: plain BatchNorm to the bit, but for the weight of a mini-batch."""
        mean, var, momentum = self._running()
        return F.batch_norm(x, mean, var, self.weight, self.bias, True, momentum, self.eps)

    def _running(self) -> tuple[Tensor | None, Tensor | None, float]:
        """The running statistics that a mini-batch moves, if any, and its weight in them."""
        if not self.track_running_stats or self.running_mean is None or self.running_var is None:
            return None, None, 0.0
        return self.running_mean, self.running_var, self._count()

    def _normalize(self, x: Tensor, clips: int, groups: int) -> Tensor:
        """Normalises each of this rank's groups by its own statistics; `F.batch_norm` moves the running ones, too."""
        rows = x.shape[0]
        whole = 1 if rows % clips else rows // clips  # rows that stay together: those of a clip
        size, larger = rows // whole // groups, rows // whole % groups  # `torch.compile` doesn't know `divmod`
        mean, var, momentum = self._running()
        in_order = RowGroups(groups, size * whole, whole, larger)
        if has_kernels(x, self.weight, self.bias, mean, var):
            return grouped_batch_norm(x, self.weight, self.bias, (mean, var), in_order, momentum, self.eps)
        if larger or rows != clips:  # clips of several rows have no view as below
            return self._normalize_apart(x, in_order.sizes(), mean, var, momentum)
        output = self._normalize_together(x.contiguous(), groups, mean, var, momentum)
        return to_channels_last(output) if only_channels_last(x) else output

    def _count(self) -> float:
        """Counts a mini-batch; returns its weight in the running statistics."""
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        if self.momentum is None:  # a cumulative average reads the number from the device, as in plain BatchNorm
            return 1 / float(self.num_batches_tracked)
        batches = self._baseline_batches
        return self.momentum if batches == 1 else 1 - (1 - self.momentum) ** batches

    def _normalize_together(
        self, x: Tensor, groups: int, mean: Tensor | None, var: Tensor | None, momentum: float
    ) -> Tensor:
        """One BatchNorm of n clips with k C channels. Clip i belongs to group i % k, so this is a view."""
        merged = x.view(-1, groups * x.shape[1], *x.shape[2:])
        weights, biases, means, variances = _for_groups(groups, self.weight, self.bias, mean, var)
        output = F.batch_norm(merged, means, variances, weights, biases, True, momentum, self.eps)
        for moved, running in ((means, mean), (variances, var)):
            if moved is not None and running is not None:
                torch.mean(moved.view(groups, -1), dim=0, dtype=running.dtype, out=running.data)
        # Not `view`: of a view, an in-place ReLU would make autograd copy all activations. No public function changes
        # the shape of a tensor that nobody else sees; matmul uses this one for it.
        return torch.ops.aten._unsafe_view(output, x.shape)  # type: ignore[no-any-return]

    def _normalize_apart(
        self, x: Tensor, sizes: list[int], mean: Tensor | None, var: Tensor | None, momentum: float
    ) -> Tensor:
        """A BatchNorm of each group of neighbouring rows."""
        weights, biases = _for_each(len(sizes), self.weight), _for_each(len(sizes), self.bias)
        parts = zip(torch.split(x, sizes), weights, biases, _momenta(sizes, momentum), strict=True)
        return torch.cat([F.batch_norm(part, mean, var, w, b, True, share, self.eps) for part, w, b, share in parts])

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, sub_batch={self.sub_batch}"

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self._in_step:
            return restore_batchnorm, (_plain(self),)
        if type(self) in _SUB_BATCH_CLASSES.values():
            return super().__reduce_ex__(protocol)
        # The class that was made for a layer of a derived class can be found by no name.
        return convert_sub_batchnorm, (_plain(self),), {name: vars(self)[name] for name in _ADDED & vars(self).keys()}


class _ForGroups(torch.autograd.Function):
    """Repeats tensors of C values k times in one operation; the backward adds up the gradients of each in one."""

    @staticmethod
    def forward(groups: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        return torch.cat([tensor for tensor in tensors for _ in range(groups)]).chunk(len(tensors))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:  # `torch.func` needs it
        ctx.groups, *tensors = inputs
        fixed = [row for row, tensor in zip(output, tensors, strict=True) if not tensor.requires_grad]
        ctx.mark_non_differentiable(*fixed)
        ctx.set_materialize_grads(False)  # autograd would fill zeros for them

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        return None, *(None if one is None else one.view(ctx.groups, -1).sum(dim=0) for one in gradients)


def _for_groups(groups: int, *tensors: Tensor | None) -> list[Tensor | None]:
    """Each tensor of C values repeated to k C."""
    if torch.compiler.is_compiling():  # it makes one operation of many, and knows no number of tensors that changes
        return [None if tensor is None else tensor.repeat(groups) for tensor in tensors]
    given = [tensor for tensor in tensors if tensor is not None]
    repeated = iter(_ForGroups.apply(groups, *given) if given else ())
    return [None if tensor is None else next(repeated) for tensor in tensors]


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


def _torchs_forward(layer: Any, input: Tensor) -> Tensor:
    # That of 1d and 2d, too: the check of the axes is the layer's.
    output: Tensor = nn.BatchNorm3d.forward(layer, input)
    return output


class SubBatchNorm1d(_SubBatchNorm, nn.BatchNorm1d):
    """`nn.BatchNorm1d` over sub-mini-batches, for inputs N x C or N x C x L. See `SubBatchNorm3d`."""

    _input_dims = (2, 3)
    _plain_class = nn.BatchNorm1d


class SubBatchNorm2d(_SubBatchNorm, nn.BatchNorm2d):
    """`nn.BatchNorm2d` over sub-mini-batches, for inputs N x C x H x W. See `SubBatchNorm3d`."""

    _input_dims = (4,)
    _plain_class = nn.BatchNorm2d


class SubBatchNorm3d(_SubBatchNorm, nn.BatchNorm3d):
    """`nn.BatchNorm3d` over sub-mini-batches, for inputs N x C x T x H x W.

    In training, N clips form k = max(1, N // sub_batch) groups, each normalised by its own mean and variance. N can be
    any number: a remainder is spread over the groups, whose sizes differ by one clip at most. Which clips form a group
    is not specified, so the clips must be in random order. It depends on the memory format: on CUDA, inputs in
    channels-last memory have kernels of Triton (`channels_last.py`), unless the environment says
    `LIGHTNING_MULTIGRID_TRITON=0`.

    With `set_sub_batch(model, sub_batch, of=N)` the input may have more rows than N: neighbouring rows are those of one
    clip, as `flatten(0, 1)` of B x T x ... makes them, and stay in one group. So there are never more groups than
    the mini-batch has sub-mini-batches, and a group never has fewer than `sub_batch` rows: k = max(1, min(rows, N) //
    sub_batch). If the rows are no multiple of N (a clip was left out), they are spread over the k groups evenly.

    The running statistics have the same meaning as plain BatchNorm's for mini-batches of `sub_batch` clips: they follow
    the average of the groups' means and the average of their (unbiased) variances, weighted by the groups' clips. The
    variance *between* the groups' means is not included.

    A single group is plain BatchNorm to the bit, and so is evaluation, which with `track_running_stats=False` uses the
    statistics of the whole mini-batch. `torch.compile` needs one graph for mini-batches of any size, but a separate one
    per k for those with a remainder.

    If `torch.distributed` is initialised, a training rank with N < sub_batch shares statistics with its neighbours:
    `min(R, ceil(sub_batch / N))` of the R ranks form a group; left-over ranks join the last group. Forward and backward
    give what a single process would compute on all the group's clips. With `set_sub_batch(model, sub_batch, of=N)`, N
    decides that on all ranks alike, whatever reaches a layer on one of them, be it no clip. Without it, **every rank
    must have the same number of clips in a step** (more exactly, must need the same number of ranks); a rank that alone
    has a small mini-batch would wait for the others forever. Ranks that share must be replicas of the model. A step
    has one all-reduce forward, of (2 C + 1) values per rank of the group, and one backward, of 2 C. Ranks with
    sub_batch clips or more send nothing, and neither does evaluation. The groups (`torch.distributed.new_group`) last
    as long as the default group. The callback makes them before the first step; elsewhere a forward that needs them.

    `DistributedDataParallel` needs no change. Each rank's gradient is that of the sum of all losses with respect to its
    own clips, so the average over ranks is the gradient of the mean loss. Running statistics are equal within a group.
    All replicas take over the running statistics of rank 0, as with plain BatchNorm: rank 0's buffers are sent to all
    ranks before each forward (`broadcast_buffers`, the default).

    The other arguments are those of `nn.BatchNorm3d`.

    Args:
        sub_batch: Clips that share statistics. The attribute may change between two mini-batches.

    Raises:
        ValueError: If `sub_batch` is below 1; in training, as in plain BatchNorm, if a group has one value per channel.

    >>> SubBatchNorm3d(4, sub_batch=2)(torch.randn(6, 4, 2, 3, 3)).shape
    torch.Size([6, 4, 2, 3, 3])
    """

    _input_dims = (5,)
    _plain_class = nn.BatchNorm3d


_SUB_BATCH_CLASSES: dict[type[nn.Module], type[_SubBatchNorm]] = {
    nn.BatchNorm1d: SubBatchNorm1d,
    nn.BatchNorm2d: SubBatchNorm2d,
    nn.BatchNorm3d: SubBatchNorm3d,
}
# To the attributes of plain BatchNorm.
_ADDED = {"sub_batch", "_mini_batch", "_world", "_baseline_batches", "_in_step"}


def is_sharded(layer: nn.Module) -> bool:
    """Whether `fully_shard` was called on a layer itself, which then holds parts of tensors."""
    return any(kind.__name__ == "FSDPModule" for kind in type(layer).__mro__)  # to import that class takes a second


def _class_of(layer: nn.Module) -> type[_SubBatchNorm] | None:
    """The class that gives a layer statistics of sub-mini-batches; None if it has one, or is left alone."""
    kind = type(layer)
    if kind in _SUB_BATCH_CLASSES:
        return _SUB_BATCH_CLASSES[kind]
    if isinstance(layer, _SubBatchNorm):
        return None
    base = next((base for base in kind.__mro__ if base in _SUB_BATCH_CLASSES), None)
    # Lazy layers become plain BatchNorm, and those that `fully_shard` has changed hold parts of tensors.
    if base is None or isinstance(layer, LazyModuleMixin) or is_sharded(layer):
        return None
    if not _is_timms(kind) and kind.forward is not base.forward:
        return None
    return _derived_class(kind, _SUB_BATCH_CLASSES[base])  # type: ignore[arg-type]  # mypy: modules have a hash


@cache
def _derived_class(kind: Any, ours: Any) -> type[_SubBatchNorm]:
    """A class that is derived from another one and has our `forward`."""
    members: dict[str, Any] = {"_plain_class": kind, "__module__": kind.__module__, "__doc__": kind.__doc__}
    if _is_timms(kind):
        members["forward"] = lambda self, x: self.act(self.drop(ours.forward(self, x)))
    return type(f"SubBatch{kind.__name__}", (kind, ours), members)


def _is_timms(kind: type[nn.Module]) -> bool:
    """Whether a class is timm's `BatchNormAct2d`, which has a copy of torch's `forward` in its own."""
    return (kind.__module__.partition(".")[0], kind.__name__) == ("timm", "BatchNormAct2d")


def left_alone(module: nn.Module) -> dict[str, nn.Module]:
    """The layers, by name, of classes that derive from BatchNorm and have a `forward` of their own: not converted."""
    kinds = tuple(_SUB_BATCH_CLASSES)
    return {
        name: layer
        for name, layer in module.named_modules()
        if isinstance(layer, kinds) and not isinstance(layer, (_SubBatchNorm, LazyModuleMixin)) and not _class_of(layer)
    }


def convert_sub_batchnorm(module: Module, clips: int = 8) -> Module:
    """Gives each BatchNorm layer of `module`, itself included, statistics over sub-mini-batches, in place.

    Only the class of a layer changes. Parameters, buffers, hooks and state-dict keys stay, so you may convert before or
    after you make an optimizer or load a checkpoint. Layers converted earlier take the new `clips`.

    So are layers of derived classes, timm's `BatchNormAct2d` among them. Other classes with a `forward` of their own
    (frozen, quantised, with statistics of their own) are left alone, and so is `nn.SyncBatchNorm`. Lazy layers become
    plain BatchNorm in their first forward; convert after it. `nn.SyncBatchNorm.convert_sync_batchnorm` (Lightning's
    `sync_batchnorm=True`) replaces converted layers by its own.

    Args:
        module: A layer or a model.
        clips: Clips that share statistics.

    Returns:
        `module` itself.

    Raises:
        ValueError: If `clips` is below 1.

    >>> convert_sub_batchnorm(nn.Sequential(nn.BatchNorm2d(4)), clips=16)  # doctest: +ELLIPSIS
    Sequential(
      (0): SubBatchNorm2d(4, ..., sub_batch=16)
    )
    """
    _check_clips("clips", clips)
    for layer in module.modules():
        if (ours := _class_of(layer)) is not None:
            layer.__class__ = ours
    set_sub_batch(module, clips)
    return module


def set_sub_batch(
    module: nn.Module | Sequence[nn.Module],
    clips: int,
    of: int | None = None,
    baseline_batches: float = 1,
    world: int | None = None,
) -> None:
    """Sets `sub_batch` of every converted layer of `module`, itself included.

    In the short cycle, mini-batches with 2 and 4 times the clips have statistics over 16 and 32 clips.

    A step of multigrid training on a coarse base shape replaces several of the baseline's, and the weights change as
    much. With `baseline_batches` the running statistics forget as much, too: a mini-batch counts in them with
    1 - (1 - m)^baseline_batches, so that they look back over the same part of an epoch as in the baseline. The
    attribute `momentum` of a layer is m, that of the baseline.

    Args:
        module: A layer or a model, or the converted layers of one (`sub_batchnorm_layers`), which need no search.
        clips: Clips that share statistics.
        of: Clips of the mini-batches to come. A model that folds frames into the batch axis needs it, and so do ranks
            on which a layer may get fewer clips than on others: by default each row of its input counts as a clip.
        baseline_batches: Mini-batches of the baseline that these replace (`Step.baseline_batches`).
        world: Ranks that train together, if not all of the default group: 1 says that each trains by itself.

    Raises:
        ValueError: If `clips` or `of` is below 1.

    >>> layer = convert_sub_batchnorm(nn.BatchNorm3d(4))
    >>> set_sub_batch(layer, 32); layer.sub_batch
    32
    """
    _check_clips("clips", clips)
    _check_clips("of", clips if of is None else of)
    values: dict[str, Any] = {"sub_batch": clips, "_mini_batch": None if of is None else torch.empty(of, 0)}
    values |= {"_baseline_batches": float(baseline_batches), "_world": world}
    for layer in sub_batchnorm_layers(module) if isinstance(module, nn.Module) else module:
        vars(layer).update(values)  # not by `nn.Module.__setattr__`, which looks for parameters, each time


def sub_batchnorm_layers(module: nn.Module) -> list[_SubBatchNorm]:
    """The converted layers of `module`, itself included."""
    return [layer for layer in module.modules() if isinstance(layer, _SubBatchNorm)]


def restore_batchnorm(module: Module) -> Module:
    """Undoes `convert_sub_batchnorm` in place: each converted layer becomes plain BatchNorm again. Returns `module`."""
    for layer in module.modules():
        if isinstance(layer, _SubBatchNorm):
            for name in _ADDED & vars(layer).keys():
                delattr(layer, name)
            layer.__class__ = layer._plain_class  # type: ignore[assignment]
    return module


def _plain(layer: _SubBatchNorm) -> nn.Module:
    """The layer without the conversion, with the state of a converted one."""
    plain = layer._plain_class.__new__(layer._plain_class)
    vars(plain).update((name, value) for name, value in vars(layer).items() if name not in _ADDED)
    return plain


class ConvertedInSteps:
    """The BatchNorm layers of a module, which are converted while a step runs.

    Between steps they are the script's, and so are copies and pickles that are made within one.
    """

    def __init__(self, module: nn.Module) -> None:
        made = ((layer, _class_of(layer)) for layer in module.modules())
        self._converted = [(layer, type(layer), ours) for layer, ours in made if ours is not None]
        # Those that the script has converted itself stay so.
        self.layers = [*(layer for layer, *_ in self._converted), *sub_batchnorm_layers(module)]

    def set(self, clips: int, of: int, baseline_batches: float = 1, world: int | None = None) -> None:
        """A step begins; the arguments are those of `set_sub_batch`."""
        for layer, _, ours in self._converted:
            object.__setattr__(layer, "__class__", ours)  # `nn.Module` would look for parameters, each time
            vars(layer)["_in_step"] = True
        set_sub_batch(self.layers, clips, of, baseline_batches, world)

    def restore(self) -> None:
        """The step has ended."""
        for layer, own, _ in self._converted:
            object.__setattr__(layer, "__class__", own)
            for name in _ADDED:
                vars(layer).pop(name, None)


def _check_clips(name: str, clips: int) -> None:
    if not isinstance(clips, int) or clips < 1:
        raise ValueError(
            f"`{name}` must be an integer of at least 1, got {clips!r}. For statistics over the whole mini-batch keep "
            "plain BatchNorm (`restore_batchnorm`)."
        )

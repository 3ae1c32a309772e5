"""The guard against places that are counted from the first: models that take every grid, but read the wrong places.

A coarse clip covers the time and the space of a full one with fewer points. A model that takes the first rows of a
table, or positions 0, 1, 2 ... of its tokens, reads them as the beginning of the full clip. No shape tells this, so the
trial on shapes follows values, too: those that are made of weights, buffers and constants only.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode  # torch's notes on extending it document this path

_aten = torch.ops.aten
_MEET = {_aten.add, _aten.add_, _aten.sub, _aten.sub_, _aten.mul, _aten.mul_, _aten.cat}
_MAKE = {_aten.arange, _aten.linspace, _aten.zeros, _aten.ones, _aten.full, _aten.scalar_tensor, _aten.eye, _aten.empty}
_BY_SHAPE = {_aten.zeros_like, _aten.ones_like, _aten.full_like, _aten.new_zeros, _aten.new_ones, _aten.new_full}
_MOST = 2**22  # elements of a value that is followed: tables have fewer, many weights have more


class Encounter(NamedTuple):
    """Values that met the data: `layer` added them to it, multiplied it with them, or joined them."""

    layer: str
    operation: str
    values: Tensor


class TracedValues(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows the values of what a run on shapes makes without the data, and notes where they meet the data."""

    def __init__(self, real: Mapping[int, Tensor], layer: Callable[[], str]) -> None:
        # `real` has what tensors of shapes stand for, by the `id` of these; `layer` names the one that is running.
        super().__init__()  # type: ignore[no-untyped-call]
        self.encounters: list[Encounter] = []
        self._real, self._layer = real, layer
        self._device = next((tensor.device for tensor in real.values()), torch.device("cpu"))
        # By the `id` of the tensor of shapes, which is kept, so that no other one gets its `id`.
        self._known: dict[int, tuple[Tensor, Tensor]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        operation, inputs = func.overloadpacket, list(_tensors((args, kwargs)))
        constant = [x for x in inputs if not x.is_meta or id(x) in self._known or id(x) in self._real]
        if operation in _MEET and 0 < len(constant) < len(inputs):
            self._meet(operation, constant)
        made: Any = None
        # Weights of linear layers are transposed first, and would all be copied.
        if (len(constant) == len(inputs) > 0 and operation is not _aten.t) or operation in _MAKE | _BY_SHAPE:
            made = self._make(func, args, kwargs, operation in _BY_SHAPE)
        result = func(*args, **kwargs)
        for tensor, value in zip(_tensors(result), _tensors(made), strict=False):
            self._known[id(tensor)] = tensor, value
        if made is None:  # data was written into a constant
            for tensor in _tensors(result):
                self._known.pop(id(tensor), None)
        return result

    def _value(self, tensor: Tensor) -> Tensor:
        if id(tensor) not in self._known:
            real = self._real.get(id(tensor), tensor).detach()
            if real.numel() > _MOST:
                raise NotImplementedError
            real = real.to(self._device, copy=True)
            if real.is_floating_point() and real.numel() > 1 and not real.any():
                # A table that training has not filled yet: it shall have other rows than these.
                real.copy_(torch.linspace(1, 2, real.numel()).view_as(real))
            self._known[id(tensor)] = tensor, real
        return self._known[id(tensor)][1]

    def _meet(self, operation: Any, constants: Sequence[Tensor]) -> None:
        for tensor in constants:
            if tensor.ndim and tensor.numel() > 1:
                with suppress(Exception):  # as in `_make`
                    self.encounters.append(Encounter(self._layer(), operation.__name__, self._value(tensor)))

    def _make(self, func: Any, args: Any, kwargs: Any, by_shape: bool) -> Any:
        """Does for real what is done on shapes; None where that can't be said."""

        def real(value: Any) -> Any:
            if isinstance(value, Tensor):
                return torch.empty_like(value, device=self._device) if by_shape else self._value(value)
            if isinstance(value, (list, tuple)):
                return [real(part) for part in value]
            return self._device if isinstance(value, torch.device) else value

        if torch.Tag.nondeterministic_seeded in func.tags:
            return None
        try:
            made = func(*real(args), **{name: real(value) for name, value in kwargs.items()})
        except Exception:  # whatever an operator or a kind of tensor may raise: its values are not followed
            return None
        return made if all(tensor.numel() <= _MOST for tensor in _tensors(made)) else None


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _tensors(part)


def counted_from_first(full: Sequence[Encounter], coarse: Sequence[Encounter], ratios: Sequence[float]) -> str | None:
    """The first layer whose places on a coarse grid lie at the beginning of the baseline's; None without one."""
    # `ratios` are the frames and the size of the coarser grid relative to the baseline's.
    waiting: dict[tuple[str, str], list[Tensor]] = {}
    for met in full:
        waiting.setdefault(met[:2], []).append(met.values)
    for met in coarse:
        if waiting.get(met[:2]) and _at_beginning(waiting[met[:2]].pop(0), met.values, ratios):
            return met.layer
    return None


def _at_beginning(full: Tensor, coarse: Tensor, ratios: Sequence[float]) -> bool:
    axes = [axis for axis in range(full.ndim) if coarse.shape[axis : axis + 1] != full.shape[axis : axis + 1]]
    if full.ndim != coarse.ndim or not axes or any(coarse.shape[axis] > full.shape[axis] for axis in axes):
        return False
    full, coarse = ((torch.view_as_real(table) if table.is_complex() else table).double() for table in (full, coarse))
    if len(torch.unique(coarse)) <= 2:  # a mask
        return False
    if len(axes) == 1:
        return _rows_at_beginning(full.movedim(axes[0], 0), coarse.movedim(axes[0], 0), ratios)
    for axis in axes:
        full = full.narrow(axis, 0, coarse.shape[axis])
    axes = [axis for axis in axes if (coarse != coarse.narrow(axis, 0, 1)).any()]  # copies for each clip are equal
    if len(axes) == 2 and coarse.shape[axes[0]] == coarse.shape[axes[1]]:
        diagonal = coarse.diagonal(dim1=axes[0], dim2=axes[1])
        if (diagonal == diagonal[..., :1]).all():  # it depends on the distance of two points: Swin's bias, for instance
            return False
    return bool(axes) and torch.allclose(full, coarse, rtol=1e-4, equal_nan=True)


def _rows_at_beginning(full: Tensor, coarse: Tensor, ratios: Sequence[float]) -> bool:
    """Whether the rows of a coarse table are rows of the full one, none of them from its end."""
    generator = torch.Generator().manual_seed(0)
    key = torch.randn(full[0].numel(), dtype=torch.float64, generator=generator).to(full.device)
    rows, known = (table.reshape(len(table), -1) @ key for table in (coarse, full))
    near = 1e-5 * known.abs().max()
    ranked, order = known.sort(stable=True)
    same = (ranked.diff(prepend=ranked[:1]) > near).cumsum(0)  # equal rows, of several clips, for instance, are one
    first = torch.full_like(order, len(known)).scatter_reduce(0, same, order, "amin")

    def furthest(keys: Tensor) -> int:
        at = torch.searchsorted(ranked, keys - near).clamp(max=len(known) - 1)
        return int(torch.where((ranked[at] - keys).abs() <= near, first[same[at]], len(known)).max())

    share = len(coarse) / len(full)
    reduced = min((ratio for ratio in ratios if ratio < 1), key=lambda ratio: abs(ratio - share), default=0.0)
    # Rows that are spread lie further apart: the last of n is (n - 1) / n of the way.
    distinct = 1 + int((rows.sort().values.diff() > near).sum())
    count = furthest(known) + 1
    return 0 < furthest(rows) < min((reduced + 0.1) * count, count - count / distinct)

"""The guard against places that are counted from the first: models that take every grid, but read the wrong places.

A coarse clip covers the time and the space of a full one with fewer points. A model that takes the first rows of a
table, or positions 0, 1, 2 ... of its tokens, reads them as the beginning of the full clip. No shape and no error tells
this. The values do that meet the data without being made of it: those of weights, buffers and constants only.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode  # torch's notes on extending it document this path

from lightning_multigrid.training.mini_batches import tensors_in

_aten = torch.ops.aten
# Of the data, they take the shape and the type, and no values.
_LIKE = {_aten.zeros_like, _aten.ones_like, _aten.full_like, _aten.empty_like}
_LIKE |= {_aten.new_zeros, _aten.new_ones, _aten.new_full, _aten.new_empty}
_MOST = 2**26  # numbers of values that are compared


class Encounter(NamedTuple):
    """Values that met the data: an operation of `layer` made numbers of both."""

    layer: str
    operation: str
    values: Tensor


class TracedValues(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows what a run makes of the data, and notes what else meets it, by whatever operation.

    Integers count only where they are computed with, number by number: those that choose or name places of the data
    mean its own. What is random counts as data.
    """

    def __init__(self, data: Any, layer: Callable[[], str]) -> None:
        # `data` holds the tensors of a mini-batch; `layer` names the one that is running.
        super().__init__()  # type: ignore[no-untyped-call]
        self.encounters: list[Encounter] = []
        self._layer = layer
        # By address, and kept, so that no other memory gets the address of what is free again.
        self._data: dict[int, torch.UntypedStorage] = {}
        for tensor in tensors_in(data):
            self._add(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        inputs = tensors_in((args, kwargs))
        others = [tensor for tensor in inputs if _address(tensor) not in self._data]
        in_place = func.overloadpacket.__name__.endswith("_")
        before = [tensor.clone() if in_place else tensor for tensor in others]
        result = func(*args, **kwargs)
        if torch.Tag.nondeterministic_seeded not in func.tags:
            if len(others) == len(inputs) or func.overloadpacket in _LIKE:
                return result
            if any(map(_is_of_numbers, tensors_in(result))):
                self._meet(func, before)
        viewed = () if in_place else [_address(tensor) for tensor in others]
        for tensor in tensors_in(result):
            if _address(tensor) not in viewed:
                self._add(tensor)
        return result

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        self._data.clear()  # all that the run has made

    def _add(self, tensor: Tensor) -> None:
        self._data[_address(tensor)] = tensor.untyped_storage()

    def _meet(self, func: Any, others: Sequence[Tensor]) -> None:
        computed = torch.Tag.pointwise in func.tags
        for tensor in others:
            if tensor.ndim and tensor.numel() > 1 and (computed or _is_of_numbers(tensor)):
                self.encounters.append(Encounter(self._layer(), func.overloadpacket.__name__, tensor.detach()))


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _is_of_numbers(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def counted_from_first(full: Sequence[Encounter], coarse: Sequence[Encounter], ratios: Sequence[float]) -> str | None:
    """The first layer whose places on a coarse grid lie at the beginning of the baseline's; None without one."""
    # `ratios` are the frames and the size of the coarser grid relative to the baseline's.
    waiting, met = _by_place(full), _by_place(coarse)
    for place, values in met.items():
        pairs = zip(waiting.get(place, []), values, strict=False)
        if any(_at_beginning(other, value, ratios) for other, value in pairs):
            return place[0]
    return None


def _by_place(encounters: Sequence[Encounter]) -> dict[tuple[str, str], list[Tensor]]:
    found: dict[tuple[str, str], list[Tensor]] = {}
    for met in encounters:
        found.setdefault(met[:2], []).append(met.values)
    return found


def _at_beginning(full: Tensor, coarse: Tensor, ratios: Sequence[float]) -> bool:
    axes = [axis for axis in range(full.ndim) if coarse.shape[axis : axis + 1] != full.shape[axis : axis + 1]]
    if full.ndim != coarse.ndim or not axes or any(coarse.shape[axis] > full.shape[axis] for axis in axes):
        return False
    if full.numel() > _MOST:
        return False
    full, coarse = (
        (torch.view_as_real(table) if table.is_complex() else table).cpu().double() for table in (full, coarse)
    )
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

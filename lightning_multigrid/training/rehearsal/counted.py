"""The guard against places that are counted from the first: models that take every grid, but read the wrong places.

A coarse clip covers the time and the space of a full one with fewer points. A model that takes the first rows of a
table, or positions 0, 1, 2 ... of its tokens, reads them as the beginning of the full clip. No shape and no error tells
this. The values do that meet the data without being made of it: those of weights, buffers and constants only.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode  # torch's notes on extending it document this path

from lightning_multigrid.training.mini_batches import tensors_in

_MOST = 2**26  # numbers of values that are compared
_PRODUCTS = {"mul", "mm", "mv", "bmm", "dot", "addmm", "baddbmm"}  # operations
_NEAR = 1e-5  # of the largest: how near numbers are that were computed with others beside them

Met = Mapping[tuple[str, str], Sequence[Tensor]]  # by the layer and the operation


class TracedValues(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows what a step makes of the data, and notes what else meets it, by whatever operation.

    Integers don't count: they choose or name places of the data. `convolved` is how many numbers all convolutions got.
    """

    def __init__(self, data: Sequence[Tensor], layer: Callable[[], str]) -> None:
        # `data` holds the tensors of a mini-batch; `layer` names the one that is running.
        super().__init__()  # type: ignore[no-untyped-call]
        self.met: dict[tuple[str, str], list[Tensor]] = {}
        self.convolved = 0
        self._layer = layer
        # By address, and kept, so that no other memory gets the address of what is free again.
        self._data: dict[int, torch.UntypedStorage] = {}
        self._add(data)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name: str = func.overloadpacket.__name__
        inputs = tensors_in((args, kwargs))
        others = [tensor for tensor in inputs if _address(tensor) not in self._data]
        # `zeros_like` and the like take the shape and the type of the data, and no values.
        meets = len(others) < len(inputs) and not name.endswith("_like") and not name.startswith("new_")
        if meets:
            for tensor in others:
                if isinstance(tensor, nn.Parameter) or not 1 < tensor.numel() <= _MOST:
                    continue  # a whole parameter is the same on each grid
                if tensor.is_floating_point() or tensor.is_complex():
                    kept = tensor.clone() if name.endswith("_") else tensor.detach()  # it may be written to
                    self.met.setdefault((self._layer(), name), []).append(kept)
        if name == "convolution":
            self.convolved += inputs[0].numel()
        result = func(*args, **kwargs)
        if meets:
            self._add(tensors_in(result))
        return result

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        self._data.clear()  # all that the step has made

    def _add(self, tensors: Sequence[Tensor]) -> None:
        self._data |= {_address(tensor): tensor.untyped_storage() for tensor in tensors}


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def counted_from_first(full: Met, coarse: Met, ratios: Sequence[float]) -> str | None:
    """The first layer whose places on a coarse grid lie at the beginning of the baseline's; None without one."""
    # `ratios` are the frames and the size of the coarser grid relative to the baseline's.
    for place, tables in coarse.items():
        for other, table in zip(full.get(place, []), tables, strict=False):
            if _at_beginning(other, table, ratios) and not (place[1] in _PRODUCTS and _is_ramp(table)):
                return place[0]
    return None


def _is_ramp(table: Tensor) -> bool:
    """Whether numbers are evenly spaced along one axis, and equal along the others."""
    # The data times 1, 2, 3 ... and summed is a centre of mass, as key points are read from heat maps. It is in units
    # of the grid, by whose size a script divides it.
    if table.is_complex():
        return False
    varied = [axis for axis in range(table.ndim) if (table != table.narrow(axis, 0, 1)).any()]
    if len(varied) != 1 or table.shape[varied[0]] < 3:
        return False
    steps = table.double().diff(dim=varied[0])
    return bool(((steps - steps.mean()).abs() <= _NEAR * table.abs().max()).all())


def _at_beginning(full: Tensor, coarse: Tensor, ratios: Sequence[float]) -> bool:
    axes = [axis for axis in range(full.ndim) if coarse.shape[axis : axis + 1] != full.shape[axis : axis + 1]]
    if full.ndim != coarse.ndim or not axes or any(coarse.shape[axis] > full.shape[axis] for axis in axes):
        return False
    full, coarse = (
        (torch.view_as_real(table) if table.is_complex() else table).cpu().double() for table in (full, coarse)
    )
    if len(torch.unique(coarse)) <= 2:  # a mask
        return False
    if len(axes) == 2 and coarse.shape[axes[0]] == coarse.shape[axes[1]]:
        diagonal = coarse.diagonal(dim1=axes[0], dim2=axes[1])
        if (diagonal == diagonal[..., :1]).all():  # it depends on the distance of two points: Swin's bias, for instance
            return False
    # Along the first axis on which it depends; copies for each clip are equal.
    along = next((axis for axis in axes if (coarse != coarse.narrow(axis, 0, 1)).any()), axes[0])
    for axis in axes:
        if axis != along:
            full = full.narrow(axis, 0, coarse.shape[axis])
    return _rows_at_beginning(full.movedim(along, 0), coarse.movedim(along, 0), ratios)


def _rows_at_beginning(full: Tensor, coarse: Tensor, ratios: Sequence[float]) -> bool:
    """Whether the rows of a coarse table are rows of the full one, none of them from its end."""
    # A row becomes one number; equal rows, of several clips, for instance, the same one.
    key = torch.randn(full[0].numel(), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    known, rows = (table.reshape(len(table), -1) @ key for table in (full, coarse))
    near = _NEAR * known.abs().max()
    first: dict[float, int] = {}
    for place, row in enumerate((known / near).round().tolist()):
        first.setdefault(row, place)
    found = [first[row] for row in (rows / near).round().tolist() if row in first]
    if len(found) < 0.9 * len(rows):  # some may be rounded to another number
        return False
    share = len(coarse) / len(full)
    reduced = min((ratio for ratio in ratios if ratio < 1), key=lambda ratio: abs(ratio - share), default=0.0)
    # Rows that are spread lie further apart: the last of n is (n - 1) / n of the way.
    count = max(first.values()) + 1
    return 0 < max(found) < min((reduced + 0.1) * count, count - count / len({*found}))

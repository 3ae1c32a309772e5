"""Tells the parts of a module the grid of each mini-batch, and puts everything back afterwards."""

import inspect
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from torch import Tensor, nn

from lightning_multigrid.positions.adapters import POOLS, Grid, Grids, Table, adapter_of, resizes_itself


class Following:
    """What knows positions in a module, and follows the grid of each mini-batch.

    These are parts of known libraries (`ADAPTERS`), and every part, the module itself included, that has a method
    `set_grid(frames, size)`. On the baseline's grid the module is as it was: no attribute differs. On others, state
    dicts and parameters still are the same. The module was made for the baseline's grid, of these `frames` and `size`.
    """

    def __init__(self, module: nn.Module, frames: int, size: int) -> None:
        self._baseline = self._grid = Grid(frames, size)
        found = ((part, adapter_of(part)) for part in module.modules())
        self._adapted = [(part, adapter) for part, adapter in found if adapter is not None]
        self._own = [part for part in module.modules() if _has_set_grid(part)]
        self._changes: dict[Grid, Mapping[nn.Module, Mapping[str, Any]]] = {}
        self._undo = ExitStack()

    @property
    def names(self) -> list[str]:
        """The classes of the parts with positions, in their order in the module."""
        parts = [*(part for part, _ in self._adapted if not isinstance(part, tuple(POOLS))), *self._own]
        return list(dict.fromkeys(type(part).__name__ for part in parts))

    def resized(self, frames: int, size: int) -> list[str]:
        """The classes of the parts whose tables are resized on a grid."""
        changes = self._changes_on(Grid(frames, size))
        return [type(part).__name__ for part, values in changes.items() if "__class__" in values]

    def set_grid(self, frames: int, size: int) -> None:
        grid = Grid(frames, size)
        if grid == self._grid:
            return
        self._undo.close()
        if grid != self._baseline:
            self._undo.callback(setattr, self, "_grid", self._baseline)
            for part, attributes in self._changes_on(grid).items():
                for name, value in attributes.items():
                    self._set(part, name, value)
            self._grid = grid
        for part in self._own:
            part.set_grid(frames=frames, size=size)  # type: ignore[operator]

    def restore(self) -> None:
        """Puts everything back: the baseline's grid."""
        self.set_grid(self._baseline.frames, self._baseline.size)

    def _changes_on(self, grid: Grid) -> Mapping[nn.Module, Mapping[str, Any]]:
        # Always the same objects for a grid: `torch.compile` makes another graph for others.
        if grid not in self._changes:
            grids = Grids(self._baseline, grid)
            changes: dict[nn.Module, dict[str, Any]] = {}
            for part, adapter in self._adapted:
                for name, value in adapter(part, grids).items():
                    owner, _, last = name.rpartition(".")
                    changes.setdefault(part.get_submodule(owner), {})[last] = value
            self._changes[grid] = {part: _with_tables(type(part), values) for part, values in changes.items()}
        return self._changes[grid]

    def _set(self, part: nn.Module, name: str, value: Any) -> None:
        if name in vars(part) or name == "__class__":
            self._undo.callback(setattr, part, name, getattr(part, name))
        else:  # it comes from the class
            self._undo.callback(delattr, part, name)
        setattr(part, name, value)


def _with_tables(own: type, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns changes with a subclass instead of tables: there, the names of the tables give resized ones."""
    tables = {name: property(_reader(name, table)) for name, table in values.items() if isinstance(table, Table)}
    if not tables:
        return values
    names = {"__module__": own.__module__, "__qualname__": own.__qualname__}
    others = {name: value for name, value in values.items() if name not in tables}
    return {**others, "__class__": type(own.__name__, (own,), {**names, **tables})}


def _reader(name: str, table: Table) -> Callable[[nn.Module], Tensor]:
    def read(part: Any) -> Tensor:
        whole: Any = nn.Module.__getattr__(part, name)  # the parameter or buffer: it knows no properties
        return table.resized(whole)

    return read


def knows_grids(module: nn.Module, layer: str) -> bool:
    """Whether a layer, or what it is a part of, is told the grid by its own `set_grid`, or is known to find it out."""
    names = layer.split(".")
    parts = [module.get_submodule(".".join(names[:end])) for end in range(len(names) + 1)]
    return any(_has_set_grid(part) or adapter_of(part) is resizes_itself for part in parts)


def _has_set_grid(part: nn.Module) -> bool:
    method = getattr(type(part), "set_grid", None)  # a compiled module answers for its original
    return callable(method) and {"frames", "size"} <= inspect.signature(method).parameters.keys()

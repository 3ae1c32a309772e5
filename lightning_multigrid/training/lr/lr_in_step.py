"""The LR in use: the baseline's times a scale, in an optimizer's groups only while it updates."""

import math
from collections.abc import Callable, Mapping
from functools import partial, wraps
from types import MethodType
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from lightning_multigrid.host import MisconfigurationException
from lightning_multigrid.training.script.optimizers import with_held
from lightning_multigrid.training.trainer.changes import Changes
from lightning_multigrid.training.trainer.torch_internals import version_of

_WORDS = {"lr": "LR", "weight_decay": "weight decay"}


class LRInStep:
    """Multiplies values in the parameter groups of an optimizer while it updates.

    Before and after an update, and within the closure that `step` is given (where `training_step`, clipping and most
    hooks run), the groups hold the very objects that the script and its schedulers have put there: the baseline's
    values. Tensors stay the same objects, too, and are changed in place. An error in an update leaves the baseline's.

    Args:
        optimizer: The optimizer, which may hold others that update for it, as `Lookahead` and SAM do.
        scales: By what to multiply, by the names in the groups; may change between updates.
        before_update: Called with the optimizer before each update, after its closure.
        refuse_other: Called with the LR as `note_lr` found it and as it is now, if another one was written meanwhile.

    Raises:
        MisconfigurationException: If the `step` of an optimizer can't be replaced; while it updates, if something else
            writes one of the values.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        scales: Mapping[str, float],
        before_update: Callable[[Optimizer], None],
        refuse_other: Callable[[float, float], None],
    ) -> None:
        self.optimizer, self.scales, self._before_update = optimizer, scales, before_update
        self._refuse_other = refuse_other
        self._noted: dict[int, tuple[Any, Any, int]] = {}  # LRs by the `id` of their group: what, a copy, and a version
        self.used: float | Tensor | None = None  # the LR in use of the first group, in the last update
        self._optimizers = with_held(optimizer)
        self._updating = False
        self._scaled_values: list[tuple[dict[str, Any], str, Any, int]] = []  # group, name, what it holds, its version
        self._undo: list[Callable[[], Any]] = []

    def start(self, changes: Changes) -> None:
        """Changes `step` of the optimizers, which `changes` undo."""
        for one in self._optimizers:
            # Not torch's hooks: they don't run after an error, and not at all for a class that torch hasn't wrapped.
            # Schedulers of torch replace `step` on the instance in the same way.
            try:
                changes.set_attribute(one, "step", MethodType(self._scaled(one.step), one))
            except (AttributeError, TypeError) as error:
                raise MisconfigurationException(
                    f"MultigridCallback scales the LR within the `step` of each optimizer, but that of "
                    f"{type(one).__name__} can't be replaced ({error}). Give its class a `__dict__`: no `__slots__`."
                ) from error

    def note_lr(self) -> None:
        """Notes the LR of each group, after what may change it."""
        self._noted = {}
        for group in (group for one in self._optimizers for group in one.param_groups):
            lr = group.get("lr")
            self._noted[id(group)] = lr, lr.clone() if isinstance(lr, Tensor) else lr, _version(lr)

    def check_lr(self) -> None:
        """Refuses another LR than the one that was noted last."""
        for group in (group for one in self._optimizers for group in one.param_groups):
            lr = group.get("lr")
            noted, value, version = self._noted.get(id(group), (lr, lr, 0))
            same = lr is noted and _version(lr) == version if isinstance(lr, Tensor) else lr == noted
            if not same and lr is not None and not math.isclose(lr, value, rel_tol=1e-6):
                self._refuse_other(float(value), float(lr))

    def _scaled(self, own: Callable[..., Any]) -> Callable[..., Any]:
        """Returns `step` with the scale."""

        @wraps(getattr(own, "__func__", own))
        def step(one: Any, *args: Any, **kwargs: Any) -> Any:
            if all(one is not other for other in self._optimizers):  # a copy, which is not this run's
                return type(one).step(one, *args, **kwargs)
            if self._updating:  # a step within a step: of a base class, or of an optimizer that is held
                return own(*args, **kwargs)
            closure = kwargs.get("closure", args[0] if args else None)
            if callable(closure):
                if "closure" in kwargs:
                    kwargs["closure"] = self._between(closure)
                else:
                    args = (self._between(closure), *args[1:])
            try:
                self._begin()
                if not callable(closure):
                    self._before_update(self.optimizer)
                result = own(*args, **kwargs)
                self._refuse_written()
                return result
            finally:
                self._end()
                self.note_lr()

        return step

    def _between(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def run() -> Any:
            self._refuse_written()
            self._end()
            loss = closure()
            self._begin()
            self._before_update(self.optimizer)
            return loss

        return run

    def _begin(self) -> None:
        self.check_lr()
        self._updating = True
        groups = {id(group): group for one in self._optimizers for group in one.param_groups}
        tensors = set[int]()
        for group in groups.values():
            for name, scale in self.scales.items():
                value = group.get(name)
                if value is None or scale == 1:
                    continue
                if not isinstance(value, Tensor):
                    self._undo.append(partial(group.__setitem__, name, value))
                    group[name] = value * scale
                elif id(value) not in tensors:  # of a compiled or capturable optimizer, and maybe of several groups
                    tensors.add(id(value))
                    self._undo.append(partial(value.copy_, value.clone()))
                    value.mul_(scale)
                self._scaled_values.append((group, name, group[name], _version(group[name])))
        lr = next((group["lr"] for group in groups.values() if group.get("lr") is not None), None)
        self.used = lr.clone() if isinstance(lr, Tensor) else lr

    def _end(self) -> None:
        while self._undo:
            self._undo.pop()()
        self._scaled_values.clear()
        self._updating = False

    def _refuse_written(self) -> None:
        for group, name, value, version in self._scaled_values:
            now = group.get(name)
            same = now is value and _version(value) == version if isinstance(value, Tensor) else now == value
            if not same:
                raise MisconfigurationException(
                    f"The {_WORDS[name]} was written within `step` of {type(self.optimizer).__name__}, where it is the "
                    f"baseline's times {self.scales[name]:g}, so nothing tells which of the two was meant. Write it in "
                    "a hook of Lightning, or return a scheduler from `configure_optimizers`."
                )


def _version(value: Any) -> int:
    return version_of(value) if isinstance(value, Tensor) else 0

"""The LR and the weight decay in use: the baseline's times a scale, in an optimizer's groups only while it updates."""

from collections.abc import Callable, Iterable
from functools import wraps
from numbers import Real
from types import MethodType
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from lightning_multigrid.host import MisconfigurationException
from lightning_multigrid.training.script.optimizers import decays_apart, with_held
from lightning_multigrid.training.trainer.changes import Changes
from lightning_multigrid.training.trainer.torch_internals import version_of


class LRInStep:
    """Multiplies the LR in the parameter groups of a script's optimizers while one of them updates.

    Before and after an update, and within the closure that `step` is given (where `training_step`, clipping and most
    hooks run), the groups hold the very objects that the script and its schedulers have put there: the baseline's
    values. Tensors stay the same objects, and are changed in place. An error in an update leaves the baseline's.

    With `decays`, the weight decay of groups whose optimizer takes it from the weights themselves is also scaled.

    If a number of a group was written since `note`, `refuse` is called with its name, what it was and what it is, even
    if both are equal; but not between two epochs (`may_be_written`). None allows it everywhere.
    """

    def __init__(
        self, optimizers: Iterable[Optimizer], refuse: Callable[[str, Any, Any], None] | None, decays: bool = False
    ) -> None:
        self._refuse, self.may_be_written = refuse, True
        self.scale = 1.0  # of the LR
        self.used: float | Tensor | None = None  # the LR in use of the first group, in the last update
        self._optimizers = [*{id(one): one for optimizer in optimizers for one in with_held(optimizer)}.values()]
        self._updating = False
        self._decays = decays
        self._noted: list[_Noted] = []  # the numbers of all groups
        self.before: list[_Noted] = []  # during an update with a scale: what is scaled
        self._scaled: list[_Noted] = []  # and as what

    def start(self, changes: Changes) -> None:
        for one in self._optimizers:
            # Not torch's hooks: they don't run after an error, and not at all for a class that torch hasn't wrapped.
            # Schedulers of torch replace `step` on the instance in the same way.
            try:
                changes.set_attribute(one, "step", MethodType(self._with_scale(one.step), one))
            except (AttributeError, TypeError) as error:
                raise MisconfigurationException(
                    "MultigridCallback scales the LR within the `step` of each optimizer, but the `step` of "
                    f"{type(one).__name__} can't be replaced ({error}). Give its class a `__dict__`: no `__slots__`."
                ) from error

    def note(self) -> None:
        groups = self._groups().values()
        self._noted = [_Noted(group, name) for group in groups for name in group if _is_number(name, group[name])]

    def check(self) -> None:
        if self.may_be_written or self._refuse is None:
            return
        groups = self._groups()
        for noted in self._noted:
            now = noted.group.get(noted.name)
            if noted.written and now is not None and id(noted.group) in groups:  # a script may load others
                self._refuse(noted.name, noted.value, now)

    def _groups(self) -> dict[int, dict[str, Any]]:
        return {id(group): group for one in self._optimizers for group in one.param_groups}  # some hold the same

    def _scales(self) -> "list[_Noted]":
        apart = {id(g) for one in self._optimizers for g in one.param_groups if self._decays and decays_apart(one, g)}
        names = {"lr"}, {"lr", "weight_decay"}
        return [noted for noted in self._noted if noted.name in names[id(noted.group) in apart]]

    def _with_scale(self, own: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(getattr(own, "__func__", own))
        def step(one: Any, *args: Any, **kwargs: Any) -> Any:
            if all(one is not other for other in self._optimizers):  # a copy, which is not this run's
                return type(one).step(one, *args, **kwargs)
            if self._updating:  # a step within a step: of a base class, or of an optimizer that is held
                return own(*args, **kwargs)
            closure = kwargs.get("closure", args[0] if args else None)
            if callable(closure):
                if "closure" in kwargs:
                    kwargs["closure"] = self._between_updates(closure)
                else:
                    args = (self._between_updates(closure), *args[1:])
            try:
                self._begin()
                result = own(*args, **kwargs)
                self._refuse_written()
                return result
            finally:
                self._end()
                self.may_be_written = False

        return step

    def _between_updates(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def run() -> Any:
            self._refuse_written()
            self._end()
            loss = closure()
            self._begin()
            return loss

        return run

    def _begin(self) -> None:
        self.check()
        self.note()
        self._updating = True
        if self.scale != 1:
            self.before = self._scales()
            for noted in self.before:
                if not isinstance(noted.own, Tensor):
                    noted.group[noted.name] = noted.own * self.scale
            tensors = {id(noted.own): noted.own for noted in self.before if isinstance(noted.own, Tensor)}
            for tensor in tensors.values():  # of a compiled or capturable optimizer, and maybe of several groups
                tensor.mul_(self.scale)
            self._scaled = [_Noted(noted.group, noted.name) for noted in self.before]
        self.used = next((noted.value for noted in self._scaled or self._noted if noted.name == "lr"), None)

    def _end(self) -> None:
        for noted in self.before:
            noted.put_back()
        self.before, self._scaled = [], []
        self._updating = False
        self.note()

    def _refuse_written(self) -> None:
        written = next((noted for noted in self._scaled if not noted.stands), None)
        if written is not None:
            what = {"lr": "LR", "weight_decay": "weight decay"}[written.name]
            raise MisconfigurationException(
                f"The {what} was written within `step` of an optimizer, where it is the baseline's times "
                f"{self.scale:g}, so nothing tells which of the two was meant. Write it in a hook of Lightning, "
                "or return a scheduler from `configure_optimizers`."
            )


def _is_number(name: str, value: Any) -> bool:
    """Whether what a group holds is a number, also one of NumPy, or several, as `betas` are."""
    kinds = int, float, tuple, list, Tensor, Real  # in this order, as an abstract class is asked slowly
    return isinstance(value, kinds) and not isinstance(value, bool) and name != "params"


class _Noted:
    """A setting that a parameter group has at some moment: a number, or a tensor that may be changed in place."""

    def __init__(self, group: dict[str, Any], name: str) -> None:
        self.group, self.name, self.own = group, name, group[name]
        self._tensor = isinstance(self.own, Tensor)
        self.value, self._version = (self.own.clone(), version_of(self.own)) if self._tensor else (self.own, 0)

    @property
    def stands(self) -> bool:
        """Whether the group still has it: an equal number, or the same tensor, unchanged."""
        now = self.group.get(self.name)
        if isinstance(now, Tensor):  # to compare its value, Python would wait for its device
            return now is self.own and version_of(now) == self._version
        return bool(now == self.own)

    @property
    def written(self) -> bool:
        """Whether the group was given another object, or the tensor was changed."""
        return self.group.get(self.name) is not self.own or (self._tensor and not self.stands)

    def put_back(self) -> None:
        self.group[self.name] = self.own
        if self._tensor:
            self.own.copy_(self.value)

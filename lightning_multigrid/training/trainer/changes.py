"""Temporary changes of objects that belong to the script."""

from contextlib import ExitStack
from functools import partial
from types import new_class
from typing import Any, cast

from lightning_multigrid.host import Callback, Trainer


class Changes(ExitStack):
    """A stack of temporary changes. `close` undoes them in reverse order, and carries on if undoing one fails."""

    def set_attribute(self, owner: Any, name: str, value: Any) -> None:
        """Sets an attribute until `close`; then a method that comes from the class is the class's again."""
        known = name in vars(owner)
        undo = partial(setattr, owner, name, vars(owner)[name]) if known else partial(delattr, owner, name)
        setattr(owner, name, value)
        self.callback(undo)

    def add_callback(self, trainer: Trainer, callback: Callback, first: bool = False) -> None:
        """Adds a callback to the Trainer, as the last or the first one, until `close`."""
        host: Any = trainer
        # Lightning may be iterating over the list, and would call a callback again if another one came before it.
        host.callbacks = [callback, *host.callbacks] if first else [*host.callbacks, callback]

        def remove() -> None:
            # Lightning may be iterating over the list: if it became shorter, Lightning would skip a callback.
            host.callbacks = [other for other in host.callbacks if other is not callback]

        self.callback(remove)

    def subclass(self, owner: Any, members: dict[str, Any]) -> None:
        """Gives an object methods that no checkpoint saves, by a subclass: copies and pickles of it are the class's."""
        own = type(owner)
        self.callback(setattr, owner, "__class__", own)

        def reduce(one: Any, _: Any) -> Any:
            # The first argument of what makes the copy is its class. Later protocols compare it with `__class__`.
            made = cast("tuple[Any, ...]", super(type(one), one).__reduce_ex__(1))
            return (made[0], (own, *made[1][1:]), *made[2:])

        names = {"__module__": own.__module__, "__qualname__": own.__qualname__, "__reduce_ex__": reduce}
        owner.__class__ = new_class(own.__name__, (own,), exec_body=lambda space: space.update(names | members))

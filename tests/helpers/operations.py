"""Counts the operations that a computation asks of its device: on a GPU each costs about the same, however small."""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class Operations(TorchDispatchMode):
    """Counts operations, also those on the CPU, but no views."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()  # without their overloads

    @property
    def number(self) -> int:
        return self.names.total()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view:
            self.names[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))

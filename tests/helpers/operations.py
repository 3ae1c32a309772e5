"""Counts the operations that a computation asks of its device: on a GPU each costs about the same, however small."""

from collections import Counter

from torch.utils._python_dispatch import TorchDispatchMode


class Operations(TorchDispatchMode):
    """Counts operations, also those on the CPU, but no views."""

    def __init__(self):
        super().__init__()
        self.names = Counter()  # without their overloads

    @property
    def number(self):
        return self.names.total()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if not func.is_view:
            self.names[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))

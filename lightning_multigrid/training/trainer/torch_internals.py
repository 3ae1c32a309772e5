"""Everything of torch that `training` uses and that is not public: the file to read when torch releases.

Each entry names the place in torch 2.6 to 2.15 that it relies on, and why there is no public way. The test of an entry
is `test_<name>` in `tests/training/test_torch_internals.py`; it fails when torch changes.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from torch import Tensor, nn
from torch.optim.lr_scheduler import ChainedScheduler, SequentialLR
from torch.utils.data.dataloader import _BaseDataLoaderIter


def scheduler_parts(scheduler: Any, start: int = 0, end: float = math.inf) -> list[tuple[Any, int, float]]:
    """Returns the schedulers that a scheduler is made of, each with the ticks at which it starts and ends."""
    # `optim/lr_scheduler.py`, `_schedulers` and `_milestones`: the parts have no public names.
    if isinstance(scheduler, SequentialLR):
        ticks = [start, *(start + tick for tick in scheduler._milestones)]
        ends = [*(min(tick, end) for tick in ticks[1:]), end]
        pieces = zip(scheduler._schedulers, ticks, ends, strict=True)
        return [part for inner, its_start, its_end in pieces for part in scheduler_parts(inner, its_start, its_end)]
    if isinstance(scheduler, ChainedScheduler):
        return [part for inner in scheduler._schedulers for part in scheduler_parts(inner, start, end)]
    return [(scheduler, start, end)]


def version_of(tensor: Tensor) -> int:
    """Returns a number that grows with each change in place of a tensor, without waiting for its device."""
    # `torch/_C/_VariableFunctions.pyi`, `Tensor._version`: only the notes on autograd speak of it.
    return tensor._version


def asks_for_mini_batch(frame: FrameType) -> bool:
    """Whether a frame is that of the `next` of a `DataLoader`."""
    # `utils/data/dataloader.py`, `_BaseDataLoaderIter`: the iterators have no public class.
    return frame.f_code is _BaseDataLoaderIter.__next__.__code__


def awaits_mini_batch(frame: FrameType | None) -> bool:
    """Whether what runs in a frame, as a handler of a signal is given it, is the `next` of a `DataLoader`."""
    # `utils/data/dataloader.py`: see `asks_for_mini_batch`.
    while frame is not None and not asks_for_mini_batch(frame):
        frame = frame.f_back
    return frame is not None


def forget_hooks(module: nn.Module) -> None:
    """Removes all hooks of calls."""
    # `nn/modules/module.py`: only who has registered a hook can remove it.
    for part in module.modules():
        for hooks in (part._forward_hooks, part._forward_pre_hooks, part._backward_hooks, part._backward_pre_hooks):
            hooks.clear()


@contextmanager
def graph_for_each_grid(graphs: int) -> Iterator[None]:
    """Lets `torch.compile` make a static graph for each grid, and up to this many of a function.

    By itself it makes the second graph of a function for any shape: that one is slow to make (minutes for a small CNN)
    and to run. And with more graphs than its limit it runs the function eagerly. `dynamic=True` of the script stays.
    """
    # `_dynamo/config.py`: no setting is public. Later versions keep these names of 2.6 as aliases.
    from torch._dynamo import config

    with config.patch(
        automatic_dynamic_shapes=False,
        cache_size_limit=max(graphs, config.cache_size_limit),
        accumulated_cache_size_limit=max(64 * graphs, config.accumulated_cache_size_limit),
    ):
        yield

"""Everything of torch that `training` uses and that is not public: the file to read when torch releases.

The test of an entry is `test_<name>` in `tests/training/test_torch_internals.py`; it fails when torch changes.
"""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.optim.lr_scheduler import ChainedScheduler, SequentialLR


def scheduler_parts(scheduler: Any, start: int = 0, end: float = math.inf) -> list[tuple[Any, int, float]]:
    """Returns the schedulers that a scheduler is made of, each with the ticks at which it starts and ends.

    torch 2.6 to 2.15 (`optim/lr_scheduler.py`, `_schedulers` and `_milestones`): the parts have no public names.
    """
    if isinstance(scheduler, SequentialLR):
        ticks = [start, *(start + tick for tick in scheduler._milestones)]
        ends = [*(min(tick, end) for tick in ticks[1:]), end]
        pieces = zip(scheduler._schedulers, ticks, ends, strict=True)
        return [part for inner, its_start, its_end in pieces for part in scheduler_parts(inner, its_start, its_end)]
    if isinstance(scheduler, ChainedScheduler):
        return [part for inner in scheduler._schedulers for part in scheduler_parts(inner, start, end)]
    return [(scheduler, start, end)]


def version_of(tensor: Tensor) -> int:
    """Returns a number that grows with each change in place of a tensor, without waiting for its device.

    torch 2.6 to 2.15 (`torch/_C/_VariableFunctions.pyi`, `Tensor._version`): the notes on autograd speak of it, but it
    has no public name.
    """
    return tensor._version


def forget_hooks(module: nn.Module) -> None:
    """Removes all hooks of calls: torch 2.6 to 2.15 (`nn/modules/module.py`) lets only who registered a hook do it."""
    for part in module.modules():
        for hooks in (part._forward_hooks, part._forward_pre_hooks, part._backward_hooks, part._backward_pre_hooks):
            hooks.clear()


@contextmanager
def static_graphs(number: int) -> Iterator[list[float]]:
    """Lets `torch.compile` make this many graphs of a function, each for one size; collects the seconds of each.

    By itself it makes a second graph for all sizes to come, of which inductor does not find the end with 3D
    convolutions, and with more than 8 it warns and runs the function eagerly. `dynamic=True` of a script stays.

    torch 2.6 to 2.15 (`_dynamo/config.py`, `_dynamo/callback.py`): there is no public setting, and no public count. The
    names are those of 2.6, which later versions keep as aliases.
    """
    from torch._dynamo import config
    from torch._dynamo.callback import callback_handler

    seconds: list[float] = []
    started = 0.0

    def start(*_: Any) -> None:
        nonlocal started
        started = time.monotonic()

    def end(*_: Any) -> None:
        seconds.append(time.monotonic() - started)

    callback_handler.register_start_callback(start)
    callback_handler.register_end_callback(end)
    try:
        with config.patch(
            automatic_dynamic_shapes=False,
            cache_size_limit=max(number, config.cache_size_limit),
            accumulated_cache_size_limit=max(64 * number, config.accumulated_cache_size_limit),
        ):
            yield seconds
    finally:
        callback_handler.remove_start_callback(start)
        callback_handler.remove_end_callback(end)

"""What was tried: a run that continues with the same grids and the same module need not try them again."""

import hashlib
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import nn

from lightning_multigrid.schedule import MultigridSchedule


def what_was_tried(schedule: MultigridSchedule, module: nn.Module) -> str:
    """Returns a key that changes with the grids, with the parts of a module, and with the code of their classes."""
    parts = [(name, type(part)) for name, part in module.named_modules()]
    kinds = dict.fromkeys(kind for _, own in parts for kind in own.__mro__ if issubclass(kind, nn.Module))
    shapes = [(name, tuple(value.shape)) for name, value in module.named_parameters()]
    described: list[Any] = [torch.__version__, schedule.baseline.shape.clip, *(grid.clip for grid in schedule.grids)]
    described += [shapes, *((name, kind.__qualname__) for name, kind in parts)]
    described += [text for kind in kinds for function in vars(kind).values() for text in _code(function)]
    return hashlib.blake2b(repr(described).encode(), digest_size=8).hexdigest()


def _code(function: Any) -> Iterator[str]:
    function = getattr(function, "__func__", function)  # of a class or static method
    if isinstance(function, FunctionType):
        yield from _of(function.__code__)


def _of(code: CodeType) -> Iterator[str]:
    yield f"{code.co_name} {code.co_code.hex()} {code.co_names}"
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _of(constant)
        else:
            yield repr(constant)

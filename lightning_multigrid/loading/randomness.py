"""Random state as a pure function of seeds, so that no draw depends on workers, ranks or restarts."""

import hashlib
import os
import random
import struct
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
import torch


def derive_seed(*parts: int) -> int:
    """A seed in [0, 2^63) that depends on all parts and their order, the same on every machine and Python.

    >>> derive_seed(1, 2) == derive_seed(1, 2), derive_seed(1, 2) == derive_seed(2, 1)
    (True, False)
    """
    digest = hashlib.blake2b(struct.pack(f"<{len(parts)}q", *parts), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def reseed(seed: int) -> None:
    """Seeds torch (on every device), NumPy and Python."""
    # `torch.manual_seed` also notes the seed for devices that are missing or not in use. It takes a stack trace for
    # each, which takes a hundred times as long as all the rest.
    seed_host(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(seed)
    elif torch.accelerator.is_available() and not torch.cuda.is_available():
        torch.manual_seed(seed)


def seed_host(seed: int) -> None:
    """Seeds torch (on the CPU), NumPy and Python."""
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seeds torch (on the CPU), NumPy and Python, and restores their states at the end."""
    # Not `torch.manual_seed`: it would also reseed the GPUs, and so change the model's dropout.
    states = torch.default_generator.get_state(), np.random.get_state(), random.getstate()
    seed_host(seed)
    try:
        yield
    finally:
        torch.default_generator.set_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])


_GENERATORS = random.Random, np.random.Generator, np.random.RandomState, torch.Generator
LONG = 1000  # elements; those of longer containers are not looked at
_INDEX = 100  # and for generators: what is longer is an index of the data, such as lists of boxes by class


def held_by(value: Any, *but: type, longest: int = LONG) -> Iterator[Any]:
    """Everything that an object holds, itself included, except the elements of long containers, and what is a `but`."""
    seen, waiting = set[int](), [value]
    while waiting:
        value = waiting.pop()
        if id(value) not in seen and not isinstance(value, (type, ModuleType, *but)):
            seen.add(id(value))
            yield value
            waiting += _parts(value, longest)


def _parts(value: Any, longest: int) -> Iterable[Any]:
    if isinstance(value, (dict, list, tuple, set, deque)):
        parts = value.values() if isinstance(value, dict) else value
        return parts if len(value) <= longest else ()
    return () if isinstance(value, (torch.Tensor, np.ndarray)) else getattr(value, "__dict__", {}).values()


def own_generators(owner: Any) -> list[Any]:
    """Finds the random generators of Python, NumPy and torch that a dataset or a sampler, or a part of it, holds."""
    return [part for part in held_by(owner, longest=_INDEX) if isinstance(part, _GENERATORS)]


class OwnGenerators:
    """The random generators that a dataset holds, found again and again.

    Everything that a dataset holds, which may be an index of all boxes, is looked through only before the first two
    samples of a process: a dataset may make its generators when it is first read. Then the parts that hold one are
    looked at, as a script may replace a generator.
    """

    def __init__(self, owner: Any) -> None:
        self._owner, self._holders = owner, list[Any]()
        self._process, self._looks = 0, 0

    def find(self) -> list[Any]:
        if self._process != os.getpid():
            self._process, self._looks = os.getpid(), 0
        if self._looks < 2:
            self._looks += 1
            self._holders = [part for part in held_by(self._owner, longest=_INDEX) if _generators_in(part)]
        return [*{id(one): one for holder in self._holders for one in _generators_in(holder)}.values()]


def _generators_in(holder: Any) -> list[Any]:
    return [part for part in _parts(holder, _INDEX) if isinstance(part, _GENERATORS)]


def reseed_own(generators: list[Any], seed: int) -> None:
    """Seeds random generators, each differently; the first one by the seed itself."""
    for number, generator in enumerate(generators):
        own = derive_seed(seed, number) if number else seed
        if isinstance(generator, torch.Generator):
            generator.manual_seed(own)
        elif isinstance(generator, np.random.Generator):
            generator.bit_generator.state = type(generator.bit_generator)(own).state
        else:
            generator.seed(own % 2**32)

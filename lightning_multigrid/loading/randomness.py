"""Random state as a pure function of seeds, so that no draw depends on workers, ranks or restarts."""

import hashlib
import os
import random
import struct
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
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


def own_generators(owner: Any) -> list[Any]:
    """Finds the random generators of Python, NumPy and torch that a dataset or a sampler, or a part of it, holds."""
    return _generators_in(_holders(owner))


class OwnGenerators:
    """The random generators that a dataset holds, found again and again.

    Everything that a dataset holds, which may be an index of all boxes, is looked through only before the first two
    samples of a process: a dataset may make its generators when it is first read. Then attributes of the same objects
    are looked at, as a script may replace a generator.
    """

    def __init__(self, owner: Any) -> None:
        self._owner, self._holders = owner, list[Any]()
        self._process, self._looks = 0, 0

    def find(self) -> list[Any]:
        if self._process != os.getpid():
            self._process, self._looks = os.getpid(), 0
        if self._looks < 2:
            self._looks, self._holders = self._looks + 1, _holders(self._owner)
        return _generators_in(self._holders)


def _holders(owner: Any) -> list[Any]:
    """The attributes of an owner and of its parts, as dicts, and the containers among them that hold a generator."""
    holders, seen, left = list[Any](), dict[int, Any](), deque([(getattr(owner, "__dict__", {}), True)])
    while left:
        holder, attributes = left.popleft()
        if id(holder) in seen:
            continue
        seen[id(holder)] = holder  # kept, so that no other one gets its `id`
        parts = _values(holder)
        if attributes or any(isinstance(part, _GENERATORS) for part in parts):
            holders.append(holder)
        for part in parts:
            if isinstance(part, (list, tuple, dict)):
                if len(part) <= 100:
                    left.append((part, False))
            elif (callable(part) or hasattr(type(part), "__getitem__")) and not isinstance(part, type):
                left.append((getattr(part, "__dict__", {}), True))
    return holders


def _generators_in(holders: list[Any]) -> list[Any]:
    found = {id(part): part for holder in holders for part in _values(holder) if isinstance(part, _GENERATORS)}
    return [*found.values()]


def _values(holder: Any) -> list[Any]:
    return [*holder.values()] if isinstance(holder, dict) else [*holder]


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

"""Random state as a pure function of seeds, so that no draw depends on workers, ranks or restarts."""

import hashlib
import random
import struct
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


def own_generators(owner: Any) -> list[Any]:
    """Finds the random generators of Python, NumPy and torch that a dataset or a sampler, or a part of it, holds."""
    found, seen, left = [], set(), [*vars(owner).values()] if hasattr(owner, "__dict__") else []
    while left:
        part = left.pop(0)
        if id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)):
            found.append(part)
        elif isinstance(part, (list, tuple, dict)):
            if len(part) <= 100:
                left += part.values() if isinstance(part, dict) else part
        elif (callable(part) or hasattr(type(part), "__getitem__")) and not isinstance(part, type):
            left += getattr(part, "__dict__", {}).values()
    return found


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

"""Streams: iterable datasets, whose samples come in an order of their own and have no index.

Samples are taken whole and in the stream's order, and are brought to the grid in the worker. As in a plain
`DataLoader`, each worker has its own share of the stream, by the stream's own rule.
"""

import copy
import os
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import Any

from torch.utils.data import IterableDataset


class StreamSamples:
    """A stream as a map-style dataset of `clips` samples: any index gives the next sample of this process's share.

    A share that ends begins again as the next pass, of which a stream that has `set_epoch` is told. How many clips a
    pass has for the plan, the stream need not know. Before `begin`, every index gives the first sample: that of a copy
    of the stream, unless it can't be copied.
    """

    # No `__dict__`, which would be searched for random generators: the order of a stream is its own.
    __slots__ = ("_clips", "_first", "_pass", "_process", "_samples", "stream")

    def __init__(self, stream: IterableDataset[Any], clips: int) -> None:
        self.stream, self._clips = stream, clips
        self._first: list[Any] = []  # the first sample, after a look
        self._samples: Iterator[Any] | None = None
        self._pass = 0  # the one that `_samples` begin with
        self._process: int | None = None  # whose share `_samples` is

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        kept = {name: getattr(self, name) for name in self.__slots__}
        return None, kept | {"_samples": None, "_process": None if self._process is None else 0}

    def __len__(self) -> int:
        return self._clips

    def begin(self, number: int) -> None:
        self._pass, self._samples, self._process, self._first = number, None, 0, []

    def __getitem__(self, index: int) -> Any:
        if self._process is None:
            if not self._first:
                self._first.append(next(self._passes(self._copied())))
            return self._first[0]
        if self._samples is None or self._process != os.getpid():
            self._samples, self._process = self._passes(self.stream), os.getpid()
        return next(self._samples)

    @property
    def settings(self) -> dict[str, Any]:
        """The attributes of the stream that are numbers or texts, as a script may set when an epoch begins."""
        held = getattr(self.stream, "__dict__", {})
        return {name: value for name, value in held.items() if isinstance(value, (int, float, str))}

    def hear(self, make: Callable[[Any], Any], heard: tuple[dict[str, Any], Any]) -> Any:
        """Tells the stream of this process what the script has set, and returns what a function makes of requests."""
        settings, requests = heard
        for name, value in settings.items():
            setattr(self.stream, name, value)
        return make(requests)

    def _copied(self) -> IterableDataset[Any]:
        try:
            return copy.deepcopy(self.stream)
        except Exception:  # of what the stream holds
            return self.stream

    def _passes(self, stream: IterableDataset[Any]) -> Iterator[Any]:
        for number in count(self._pass):
            if hasattr(stream, "set_epoch"):
                stream.set_epoch(number)
            empty = True
            for sample in stream:
                empty = False
                yield sample
            if empty:
                raise ValueError(
                    f"{type(stream).__name__} gave no sample to a process that reads it. If it is cut into "
                    "shards, use at most as many workers (on all devices together) as there are shards."
                )


class ToldOfStream:
    """Yields what a sampler does in an epoch, with what a script has set of a stream until then.

    The workers of a stream live longer than an epoch, so they would not see what is set when one begins.
    """

    def __init__(self, sampler: Iterable[Any], samples: StreamSamples) -> None:
        self._sampler, self._samples, self._known = sampler, samples, samples.settings

    def __iter__(self) -> Iterator[tuple[dict[str, Any], Any]]:
        found = self._samples.settings
        changed = {name: value for name, value in found.items() if self._known.get(name) != value}
        self._known |= dict.fromkeys(changed)  # from then on they are always yielded, also when they are set back
        return ((changed, requests) for requests in self._sampler)


class CollateAtOnce:
    """A user's `collate_fn` for mini-batches that several workers read: it gets all samples, in the main process."""

    def __init__(self, collate_fn: Callable[[list[Any]], Any]) -> None:
        self.collate_fn = collate_fn

    def __call__(self, samples: list[Any]) -> list[Any]:
        return samples

    def join(self, pieces: list[list[Any]]) -> Any:
        return self.collate_fn([sample for piece in pieces for sample in piece])

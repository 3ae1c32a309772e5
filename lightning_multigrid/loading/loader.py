"""The loader that Lightning sees: it reads a sampler's mini-batches, in workers that know nothing of the schedule."""

import pickle
import threading
import time
from collections.abc import Callable, Iterator, Sized
from functools import partial
from itertools import count, islice
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from lightning_multigrid.loading.randomness import derive_seed, reseed, seeded
from lightning_multigrid.loading.requests import ClipDataset, Requests, length_of, read_clips
from lightning_multigrid.loading.sampler import MultigridSampler, baseline_sampler
from lightning_multigrid.loading.streams import CollateAtOnce, StreamSamples, ToldOfStream
from lightning_multigrid.schedule import Step

_SCRIPT = 3  # keeps what a script iterates apart from what is drawn for the run


class Loop(Protocol):
    """The training loop that a loader works for."""

    def begin(self) -> Step:
        """Begins the epoch, or the rest of it, as its first mini-batch is needed; returns its first step."""

    def timed(self, mini_batches: Iterator[Any]) -> Iterator[Any]:
        """Yields the mini-batches, and may note when each was asked for and handed over."""


def same_loader(loader: DataLoader[Any], **changes: Any) -> DataLoader[Any]:
    """Makes another loader with the arguments of a loader, but for changed ones."""
    return DataLoader(**_arguments(loader, **changes))


def stream_loader(loader: DataLoader[Any], clips: int) -> DataLoader[Any]:
    """Returns a loader of a stream as one that `MultigridLoader` understands; `clips` is a pass's on all devices."""
    # For a look; `MultigridLoader` keeps the workers of the training as long as the run.
    changes: dict[str, Any] = {"sampler": None, "generator": None, "persistent_workers": False}
    if loader.num_workers > 1 and not isinstance(loader.collate_fn, CollateAtOnce):
        # Samples would be pinned one by one, and mini-batches are copies of them.
        changes |= {"collate_fn": CollateAtOnce(loader.collate_fn), "pin_memory": False}
    return same_loader(loader, dataset=StreamSamples(loader.dataset, clips), **changes)  # type: ignore[arg-type]


def _arguments(loader: DataLoader[Any], **changes: Any) -> dict[str, Any]:
    names = "dataset batch_size sampler drop_last collate_fn num_workers prefetch_factor pin_memory timeout"
    names += " worker_init_fn multiprocessing_context persistent_workers generator"
    return {name: getattr(loader, name) for name in names.split()} | changes


def _arguments_to_make(loader: DataLoader[Any], user: Any, make: Callable[..., Any], **changes: Any) -> dict[str, Any]:
    """Arguments of a loader whose workers are like a loader's, but a function makes the mini-batches there."""
    user = user.stream if isinstance(user, StreamSamples) else user
    made: dict[str, Any] = {"dataset": _SeenAsUsers(user, make), "collate_fn": _as_is, "batch_size": None}
    # A generator of its own, else it would draw from torch's, more often with more workers, and change the dropout.
    return _arguments(loader, **made, drop_last=False, generator=torch.Generator(), **changes)


def in_worker(loader: DataLoader[Any], dataset: Any, job: Callable[[], Any]) -> Any:
    """Returns what a job that reads samples of a dataset returns in a worker of a loader; here, if that has none."""
    # A dataset may open a file at its first sample. If that is read here, the workers, as forks, share the open file,
    # and each takes bytes that another one asked for.
    if not loader.num_workers:
        return job()
    alone = {"num_workers": 1, "prefetch_factor": None, "persistent_workers": False, "pin_memory": False}
    [(result, error)] = DataLoader(**_arguments_to_make(loader, dataset, partial(_outcome, job), sampler=[0], **alone))
    if error is not None:
        raise error
    return result


class MultigridLoader(DataLoader[Any]):
    """Loads the mini-batches of a `MultigridSampler`.

    A worker reads a whole mini-batch, as in any `DataLoader`. Only of a stream all workers read each mini-batch
    together, one piece each, so that they go through their shares equally fast, and `CollateAtOnce` joins the pieces.
    `prefetch_factor` counts what one worker reads: mini-batches or pieces.

    The `collate_fn`, workers, pinning and so on are those of the loader `template`, but not its order and batch size.
    The training loop `loop` knows where it is; without one, the sampler does. Nothing of an epoch is read before it
    begins.
    """

    sampler: MultigridSampler

    def __init__(self, dataset: ClipDataset, sampler: MultigridSampler, template: DataLoader[Any]) -> None:
        self._join = template.collate_fn.join if isinstance(template.collate_fn, CollateAtOnce) else None
        self.pieces = max(1, template.num_workers) if self._join else 1  # the most that a mini-batch is read in
        # `template.timeout` is for the clips of a baseline mini-batch; a worker may have to read many times as many.
        schedule = sampler.plan.schedule
        most = max(shape.clips for shape in schedule.grids) / self.pieces
        timeout = template.timeout * max(1, most / schedule.baseline.shape.clips)
        self._make = partial(_mini_batches, dataset, template.collate_fn)
        self._arguments = _arguments_to_make(template, template.dataset, self._make, sampler=sampler, timeout=timeout)
        # The worker that is free takes the next mini-batch. By turns, one of three workers would get all the smallest
        # clips of a short cycle, of which a mini-batch has the most. Shares of a stream are read equally fast.
        self._arguments["in_order"] = self.pieces > 1
        super().__init__(**self._arguments)
        self.clip_dataset, self.template = dataset, template
        self.loop: Loop | None = None
        self._samples = length_of(template.dataset)
        self.noise = 0  # the number of the random state that steps have, which ranks may share
        self.reading = 0.0  # seconds that all workers together took for the samples that were read last
        self._stream: DataLoader[Any] | None = None  # its workers live as long as the run: passes begin in them
        self._last: Step | None = None  # whose mini-batch was yielded

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        # This is a generator, so nothing happens before the first `next`. Lightning calls `iter` twice an epoch; at the
        # first call it does not know its position yet when it resumes, and workers would decode in vain.
        self.sampler.pieces = self.pieces
        if self.loop is None:
            yield from self._mini_batches(super().__iter__())
            return
        first = self.loop.begin()
        self._refuse_other_length(first.place.epoch)
        self.sampler.seek(first.place)
        stream = self.template.dataset
        read = self._read(stream, first) if isinstance(stream, StreamSamples) else super().__iter__()
        yield from self.loop.timed(self._seeded(self._mini_batches(read)))

    def _read(self, stream: StreamSamples, first: Step) -> Iterator[Any]:
        """Reads a stream from a step on: where it is, or from the beginning of a pass."""
        if self._stream is None or self._last is None or self.sampler.plan.after(self._last) != first:
            stream.begin(*self.sampler.number_of(first))
            overrides: dict[str, Any] = {}
            if self.num_workers:  # else the stream is the script's own
                overrides["dataset"] = _SeenAsUsers(stream.stream, partial(stream.hear, self._make))
                overrides |= {"sampler": ToldOfStream(self.sampler, stream), "persistent_workers": True}
            self._stream = DataLoader(**self._arguments | overrides)
        return iter(self._stream)

    def close(self) -> None:
        """Ends the workers of a stream."""
        self._stream = None

    def _refuse_other_length(self, epoch: int) -> None:
        now = length_of(self.template.dataset)
        if now != self._samples:
            raise ValueError(
                f"{type(self.template.dataset).__name__} had {self._samples} samples when the training was planned, "
                f"and has {now} in epoch {epoch}. The plan needs one length. Let the dataset keep its length, or make "
                "it an `IterableDataset`, and give the callback `clips_per_epoch`."
            )

    def _seeded(self, mini_batches: Iterator[Any]) -> Iterator[Any]:
        for step, mini_batch in zip(self.sampler.steps, mini_batches, strict=False):
            # Augmentation on the device and dropout draw on this state. It is a function of the place, so no
            # checkpoint needs it, and neither validation nor a restart on other devices changes it. Ranks that the
            # script has given one seed share it: a module that draws which of its parts to run, runs the same ones.
            reseed(derive_seed(self.sampler.plan.seed, *step.place, self.noise))
            self._last = step
            yield mini_batch

    def _mini_batches(self, read: Iterator[Any]) -> Iterator[Any]:
        read = _by_number(read)
        for step in self.sampler.steps:
            parts = list(islice(read, min(self.pieces, step.shape.clips)))
            self.reading = sum(part.seconds for part in parts)
            if self._join is None:
                yield parts[0].made
            else:
                # A stream's `collate_fn` runs here, and may draw.
                with seeded(derive_seed(self.sampler.plan.seed, *step.place)):
                    mini_batch = self._join([part.made for part in parts])
                yield mini_batch

    # The training loop knows where it is. But Lightning warns of checkpoints of loaders without these methods.
    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class _SeenAs:
    """Has the attributes of `_user`, which its base class would set differently."""

    _user: Any

    def __getattr__(self, name: str) -> Any:
        if name == "_user" or name.startswith("__"):  # unpickling asks for these before there is a `_user`
            raise AttributeError(name)
        return getattr(self._user, name)


class ScriptLoader(_SeenAs, DataLoader[Any]):
    """The training loader that a script sees (`trainer.train_dataloader`) while Lightning iterates a `MultigridLoader`.

    Its attributes are those of the script's own loader, and can't be set; its length is that of the epoch. Who iterates
    it gets the mini-batches of a pass over the data, of the script's size and on the baseline's grid. A loader and
    workers of its own read them, so that nothing changes in the run. `step` returns the step that is under way, or the
    next one.
    """

    def __init__(self, user: DataLoader[Any], multigrid: MultigridLoader, step: Callable[[], Step]) -> None:
        # Not the base class's `__init__`: all attributes come from `user`.
        vars(self).update(_user=user, multigrid=multigrid, _step=step, _thread=threading.get_ident())

    def __setattr__(self, name: str, value: Any) -> None:
        if hasattr(self._user, name):
            raise AttributeError(
                f"MultigridCallback has read `{name}` of the training loader when `fit` began, so setting it now would "
                "change nothing. Set it before `fit`."
            )
        vars(self)[name] = value

    def __len__(self) -> int:
        return len(self.multigrid)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        template = self.multigrid.template
        if threading.get_ident() != self._thread or isinstance(template.dataset, StreamSamples):
            # Reading here would change the random state, which threads share; and a stream gives a sample only once.
            template = same_loader(template, num_workers=max(1, template.num_workers))
        sampler = self.multigrid.sampler
        number, seed = sampler.number_of(self._step()), derive_seed(sampler.plan.seed, _SCRIPT)
        own = baseline_sampler(sampler, sampler.plan.baseline_length.batches, number, seed)
        return iter(MultigridLoader(self.multigrid.clip_dataset, own, template))


class _SeenAsUsers(_SeenAs, Dataset[Any]):
    """A dataset whose items a function makes, in a worker.

    To a `worker_init_fn`, which may open files in `get_worker_info().dataset`, it looks like the user's dataset.
    """

    def __init__(self, user: Dataset[Any], item: Callable[[Any], Any]) -> None:
        vars(self).update(_user=user, _item=item)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """For `isinstance`: the user's in a worker; elsewhere its own, as torch tells streams by it."""
        return type(self) if get_worker_info() is None else type(self._user)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._user, name, value)

    def __len__(self) -> int:
        return len(cast("Sized", self._user))

    def __getitem__(self, index: Any) -> Any:
        try:
            return self._item(index)
        except StopIteration as error:  # torch's loader would end the epoch there, without a word
            raise RuntimeError(
                f"{type(self._user).__name__} raised StopIteration for an index: an iterator in it may have ended. The "
                "plan has more samples. Start that iterator again, or give the loader an `IterableDataset`, which "
                "starts again when it ends."
            ) from error


class _Read(NamedTuple):
    """A mini-batch, or a piece of one, that a worker has made, and the seconds that it took."""

    made: Any
    seconds: float
    number: int  # of the requests


def _by_number(read: Iterator[_Read]) -> Iterator[_Read]:
    """Yields what workers have read by the number of the requests, from 0."""
    early: dict[int, _Read] = {}
    for number in count():
        while number not in early:
            found = next(read, None)
            if found is None:
                return
            early[found.number] = found
        yield early.pop(number)


def _mini_batches(clips: ClipDataset, collate: Callable[[list[Any]], Any], requests: Requests) -> _Read:
    start, samples = time.perf_counter(), read_clips(clips, requests)
    # A `collate_fn` may draw as well (mixup); what it draws must not depend on the worker.
    with seeded(derive_seed(requests[0].seed, len(samples))):
        made = collate(samples)
    return _Read(made, time.perf_counter() - start, requests.number)


def _outcome(job: Callable[[], Any], _: int) -> tuple[Any, Exception | None]:
    try:
        return job(), None
    except Exception as error:  # of the user's dataset
        return None, sendable(error)


def sendable(error: Exception) -> Exception:
    """The error, or one that says the same if it can't leave a process."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _as_is(batch: Any) -> Any:
    return batch

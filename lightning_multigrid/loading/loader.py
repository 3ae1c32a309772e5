"""The loader that Lightning sees: it reads a sampler's mini-batches, in workers that know nothing of the schedule."""

import pickle
import threading
import time
from collections.abc import Callable, Iterator, Sized
from functools import partial
from math import ceil
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from lightning_multigrid.loading.randomness import derive_seed, reseed, seeded
from lightning_multigrid.loading.requests import ClipDataset, ClipRequest, length_of, read_clips
from lightning_multigrid.loading.sampler import MultigridSampler
from lightning_multigrid.loading.streams import CollateAtOnce, StreamSamples
from lightning_multigrid.schedule import Place, Step

_RANK_OF_ALL = 0  # whose random state all ranks have


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
    # Its workers live as long as the run anyway: `MultigridLoader` keeps their iterator.
    changes: dict[str, Any] = {"sampler": None, "generator": None, "persistent_workers": False}
    if loader.num_workers > 1 and not hasattr(loader.collate_fn, "join"):
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
    """Returns what a job that reads samples of a dataset returns in a worker of a loader; here, if that has none.

    A dataset may open a file at its first sample. If that is read here, the workers, as forks, share the open file, and
    each takes bytes that another one asked for.
    """
    if not loader.num_workers:
        return job()
    alone = {"num_workers": 1, "prefetch_factor": None, "persistent_workers": False, "pin_memory": False}
    [(result, error)] = DataLoader(**_arguments_to_make(loader, dataset, partial(_outcome, job), sampler=[0], **alone))
    if error is not None:
        raise error
    return result


class MultigridLoader(DataLoader[Any]):
    """Loads the mini-batches of a `MultigridSampler`.

    If the `collate_fn` has a method `join`, which makes one mini-batch of several, all workers read each mini-batch
    together, one piece each, so that only a few are buffered in total. Without `join` it may need all samples, so a
    single worker reads them. `prefetch_factor` counts what one worker reads: pieces or mini-batches.

    Of the loader `like`, the `collate_fn`, workers, pinning and so on are used; its order and batch size are not. The
    training loop `loop` knows where it is; None starts where the sampler says.
    """

    sampler: MultigridSampler

    def __init__(
        self, dataset: ClipDataset, sampler: MultigridSampler, like: DataLoader[Any], loop: Loop | None = None
    ) -> None:
        self._join: Callable[[list[Any]], Any] | None = getattr(like.collate_fn, "join", None)
        self.pieces = max(1, like.num_workers) if self._join else 1  # the most that a mini-batch is read in
        # `like.timeout` is for the clips of a baseline mini-batch; a worker may have to read many times as many.
        schedule = sampler.plan.schedule
        most = max(shape.clips for shape in schedule.grids) / self.pieces
        timeout = like.timeout * max(1, most / schedule.baseline.shape.clips)
        make = partial(_mini_batch, dataset, like.collate_fn)
        super().__init__(**_arguments_to_make(like, like.dataset, make, sampler=sampler, timeout=timeout))
        self.clip_dataset, self.loop, self.like = dataset, loop, like
        self._samples = length_of(like.dataset)
        self.reading = 0.0  # seconds that all workers together took to read the mini-batch that was handed over last
        self._reading: Iterator[Any] | None = None  # by workers that live as long as the run
        self._reaches: Place | None = None  # how far it has been read

    def __len__(self) -> int:
        return len(self.sampler)

    def clips_in_flight(self, clips: int) -> int:
        """The most clips that lie between workers and training at once, of mini-batches of so many."""
        return self.num_workers * (self.prefetch_factor or 0) * ceil(clips / self.pieces) + clips

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        # This is a generator, so nothing happens before the first `next`. Lightning calls `iter` twice an epoch; at the
        # first call it does not know its position yet when it resumes, and workers would decode in vain.
        if self.loop is None:
            yield from self._mini_batches(self._lists())
            return
        first = self.loop.begin()
        self._refuse_other_length(first.place.epoch)
        self.sampler.seek(first.place)
        yield from self.loop.timed(self._seeded(self._mini_batches(self._read(first))))

    def _read(self, first: Step) -> Iterator[Any]:
        """Reads what the workers make of the sampler's lists, from a step on."""
        stream = self.like.dataset if isinstance(self.like.dataset, StreamSamples) else None
        if stream is None and not self.persistent_workers:
            return self._lists()
        if self._reading is None or self._reaches != first.place:
            # One iterator, and one set of workers, for the whole run: the passes of a stream begin in them, and workers
            # that persist read the next epoch's first mini-batches during a validation.
            if stream is not None:
                stream.begin(self.sampler.current_pass(first))
            self.generator.manual_seed(derive_seed(self.sampler.plan.seed, *first.place))  # the workers' seeds
            self.sampler.seek(first.place, end=max(self.sampler.plan.epochs, first.place.epoch + 1))
            self._reading = self._lists()
            self.sampler.seek(first.place)
        return self._reading

    def _lists(self) -> Iterator[Any]:
        self.sampler.pieces = self.pieces
        return super().__iter__()

    def close(self) -> None:
        """Ends the reading, and the workers of a stream."""
        self._reading = None

    def _refuse_other_length(self, epoch: int) -> None:
        now = length_of(self.like.dataset)
        if now != self._samples:
            raise ValueError(
                f"{type(self.like.dataset).__name__} had {self._samples} samples when the training was planned, and "
                f"has {now} in epoch {epoch}, of which the plan knows nothing. Let the dataset keep its length, or "
                "make it an `IterableDataset`, and give the callback `clips_per_epoch`."
            )

    def _seeded(self, mini_batches: Iterator[Any]) -> Iterator[Any]:
        for step, mini_batch in zip(self.sampler.steps, mini_batches, strict=False):
            # Augmentation on the device and dropout draw on this state. It is a function of the place, so no
            # checkpoint needs it, and neither validation nor a restart on other devices changes it. It is the same on
            # all ranks, as after `seed_everything`: a module that draws which of its parts to run, runs the same ones.
            reseed(derive_seed(self.sampler.plan.seed, *step.place, _RANK_OF_ALL))
            self._reaches = self.sampler.plan.after(step).place
            yield mini_batch

    def _mini_batches(self, read: Iterator[Any]) -> Iterator[Any]:
        for step in self.sampler.steps:
            first: _Read = next(read)
            pieces, self.reading = [first.made], first.seconds
            if self._join is None or self.pieces == 1:
                yield pieces[0]
                continue
            while sum(map(len, pieces)) < step.shape.clips:
                more: _Read = next(read)
                pieces.append(more.made)
                self.reading += more.seconds
            # A stream's `collate_fn` runs here, and may draw.
            with seeded(derive_seed(self.sampler.plan.seed, *step.place)):
                mini_batch = self._join(pieces)
            yield mini_batch

    # The training loop knows where it is. But Lightning warns of checkpoints of loaders without these methods.
    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class _SeenAs:
    """Has the attributes of `_user`, which its base class would set otherwise."""

    _user: Any

    def __getattr__(self, name: str) -> Any:
        if name == "_user" or name.startswith("__"):  # unpickling asks for these before there is a `_user`
            raise AttributeError(name)
        return getattr(self._user, name)


class ScriptLoader(_SeenAs, DataLoader[Any]):
    """The training loader that a script sees (`trainer.train_dataloader`) while Lightning iterates a `MultigridLoader`.

    Its attributes are those of the script's own loader; its length and its mini-batches are those of the current epoch,
    from the first one on. Each pass reads them by a loader and workers of its own, so it changes nothing in the run.

    `epoch` returns the current epoch. Attributes of the script's loader can't be set.
    """

    def __init__(self, user: DataLoader[Any], multigrid: MultigridLoader, epoch: Callable[[], int]) -> None:
        # Not the base class's `__init__`: all attributes come from `user`.
        vars(self).update(_user=user, multigrid=multigrid, _epoch=epoch, _thread=threading.get_ident())

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
        like = self.multigrid.like
        if threading.get_ident() != self._thread or isinstance(like.dataset, StreamSamples):
            # Reading here would change the random state, which threads share; and a stream gives a sample only once.
            like = same_loader(like, num_workers=max(1, like.num_workers))
        return iter(MultigridLoader(self.multigrid.clip_dataset, self.multigrid.sampler.peek(self._epoch()), like))


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
                f"{type(self._user).__name__} raised StopIteration for an index, as an iterator in it does that has "
                "ended. The plan has more samples. Begin that iterator again, or give the loader an `IterableDataset`, "
                "which is begun again when it ends."
            ) from error


class _Read(NamedTuple):
    """A mini-batch or a piece of one, and the seconds that a worker took to read it."""

    made: Any
    seconds: float


def _mini_batch(clips: ClipDataset, collate: Callable[[list[Any]], Any], requests: list[ClipRequest]) -> _Read:
    """Turns requests into a mini-batch, or into a piece of one."""
    start = time.perf_counter()
    # A `collate_fn` may draw as well (mixup); what it draws must not depend on the worker.
    with seeded(derive_seed(requests[0].seed, len(requests))):
        made = collate(read_clips(clips, requests))
    return _Read(made, time.perf_counter() - start)


def _outcome(job: Callable[[], Any], _: int) -> tuple[Any, Exception | None]:
    """What a job returns, and the error that it raised."""
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

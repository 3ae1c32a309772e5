"""The loader that Lightning sees: the mini-batches that a sampler asks for, read by workers that know nothing of it.

Where the dataset's mini-batches can be joined, all workers read each of them together, a piece each: the first one of a
phase does not wait for one worker, and what lies ready is a few mini-batches, not a few of them for each worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sized
from typing import Any, Protocol, cast

import torch
from torch.utils.data import DataLoader, Dataset

from lightning_multigrid.loading.randomness import derive_seed, seeded
from lightning_multigrid.loading.requests import ClipDataset, ClipRequest, read_clips
from lightning_multigrid.loading.sampler import MultigridSampler

__all__ = ["Host", "MultigridLoader", "WorkerError"]


class _Batches(Dataset[Any]):
    """Turns the requests of a mini-batch, or of a piece of it, into that, in a worker.

    To everything but the loader it is the user's dataset: a `worker_init_fn` may open files in
    `get_worker_info().dataset`, and a script may ask for `len(trainer.train_dataloader.dataset)`.
    """

    def __init__(self, clips: ClipDataset, user: Dataset[Any], collate_fn: Callable[[list[Any]], Any]) -> None:
        vars(self).update(_clips=clips, _user=user, _collate_fn=collate_fn)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # also asked for while this is unpickled, when there is no `_user` yet
            raise AttributeError(name)
        return getattr(self._user, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._user, name, value)

    def __len__(self) -> int:
        return len(cast("Sized", self._user))

    def __getitem__(self, requests: list[ClipRequest]) -> Any:
        samples = read_clips(self._clips, requests)
        # A `collate_fn` may draw too (mixup); its state must not depend on which worker this is.
        with seeded(derive_seed(requests[0].seed, len(requests))):
            return self._collate_fn(samples)


class Host(Protocol):
    """The training loop that a loader works for."""

    def epoch(self) -> int:
        """The epoch whose length is asked for, from 0."""
        ...

    def start(self) -> tuple[int, int]:
        """The (epoch, batch), both from 0, at which an iteration starts; called when its first batch is asked for."""
        ...

    def follow(self, epoch: int, batch: int, mini_batches: Iterator[Any]) -> Iterator[Any]:
        """Yields the mini-batches from that position on, and may do something before and after each."""
        ...


class WorkerError(RuntimeError):
    """A process that loads data died."""


def _as_is(batch: Any) -> Any:
    return batch


class MultigridLoader(DataLoader[Any]):
    """Loads the mini-batches of a `MultigridSampler`.

    Workers know nothing of the shapes, so the same ones live through all epochs. If the `collate_fn` has a method
    `join`, which makes a mini-batch of mini-batches, all workers read each mini-batch together, a piece each. One
    without `join` may do anything to the samples of a mini-batch, so a single worker reads them. `prefetch_factor`
    counts what a worker reads.

    Args:
        dataset: The clips.
        sampler: The order and the shapes.
        like: A loader whose `collate_fn`, workers, pinning and the like are taken over; its order and size are not.
        host: Tells where the training is; None takes the sampler's own position.
    """

    sampler: MultigridSampler

    def __init__(
        self, dataset: ClipDataset, sampler: MultigridSampler, like: DataLoader[Any], host: Host | None = None
    ) -> None:
        # A worker reads a whole mini-batch, which may have many times the clips of the baseline's, or its share of it.
        most = max(shape.clips for shape in sampler.schedule.grids)
        self._join: Callable[[list[Any]], Any] | None = getattr(like.collate_fn, "join", None)
        sampler.pieces = max(1, like.num_workers) if self._join else 1
        super().__init__(
            _Batches(dataset, like.dataset, cast("Any", like.collate_fn)),
            batch_size=None,
            sampler=sampler,
            collate_fn=_as_is,
            num_workers=like.num_workers,
            pin_memory=like.pin_memory,
            timeout=like.timeout * max(1, most / sampler.pieces / sampler.baseline_clips),
            worker_init_fn=like.worker_init_fn,
            multiprocessing_context=like.multiprocessing_context,
            prefetch_factor=like.prefetch_factor,
            persistent_workers=like.num_workers > 0,
            # One of its own keeps the loader from drawing on torch's generator, whose state dropout depends on, as
            # often as the number of workers asks for.
            generator=torch.Generator(),
        )
        self.clips, self.host = dataset, host

    def __len__(self) -> int:
        return len(self.sampler.steps(self.host.epoch())) if self.host else len(self.sampler)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        # A generator, so that nothing happens before the first `next`: Lightning calls `iter` twice an epoch, and at
        # the first of them it does not know its position yet (when it resumes) and workers would decode in vain.
        if self.host is None:
            yield from self._mini_batches()
            return
        epoch, start = self.host.start()
        self.sampler.seek(epoch, start)
        yield from self.host.follow(epoch, start, self._mini_batches())

    def _mini_batches(self) -> Iterator[Any]:
        if self._join is None or self.sampler.pieces == 1:
            yield from _watched(super().__iter__())
            return
        steps = self.sampler.coming
        pieces = _watched(super().__iter__())
        for step in steps:
            found = [next(pieces)]
            while sum(map(len, found)) < step.shape.clips:
                found.append(next(pieces))
            yield self._join(found)

    # Lightning warns about mid-epoch checkpoints of loaders without these. There is nothing to save: see `Host`.
    def state_dict(self) -> dict[str, Any]:
        """Nothing: the position is the host's."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to load."""


def _watched(batches: Iterator[Any]) -> Iterator[Any]:
    """What a loader yields; the death of one of its processes is an error that says what to do."""
    try:
        yield from batches
    except RuntimeError as error:
        # torch has no type of its own for it. An error that a worker raised has another text.
        if not str(error).startswith("DataLoader worker (pid"):
            raise
        raise WorkerError(
            f"A process that loads data died ({str(error).strip()}). Most often the system has ended it because memory "
            "ran out: lower `num_workers` or `prefetch_factor`, or give the job more memory (in a container also more "
            "shared memory, `docker run --shm-size=8g`). Then resume from the last checkpoint."
        ) from error

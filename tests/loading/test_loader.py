import os
import time

import pytest
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset, get_worker_info

from lightning_multigrid.loading import CollateAtOnce, MultigridLoader, MultigridSampler, in_worker, shuffled_order
from lightning_multigrid.schedule import Baseline, BatchShape, MultigridSchedule, Place, Plan

DATA = TensorDataset(torch.arange(20))
SCHEDULE = MultigridSchedule(Baseline(BatchShape(2, 8, 32), epochs=4, milestones=(2, 3)))


def make():
    return MultigridSampler(Plan(SCHEDULE, 203), lambda number: shuffled_order(0, number, 203))


def requests_of(sampler, epoch=0):
    sampler.set_epoch(epoch)
    return list(sampler)


class Clips:
    """A dataset that answers with the request itself and the process that read it."""

    frames, size, stride = 8, 32, 1

    def __len__(self):
        return 203

    def read_clip(self, request):
        return request, os.getpid()


def loader_of(sampler, workers=0, loop=None, collate_fn=list):
    template = DataLoader(DATA, num_workers=workers, collate_fn=collate_fn, persistent_workers=workers > 0)
    loader = MultigridLoader(Clips(), sampler, template)
    loader.loop = loop
    return loader


def test_length_is_exact_in_every_epoch():
    sampler = make()
    loader = loader_of(sampler)
    for epoch in range(SCHEDULE.epochs + 1):
        sampler.set_epoch(epoch)
        assert len(loader) == len(list(loader)) == len(Plan(SCHEDULE, 203).epoch(epoch))


class Loop:
    def __init__(self):
        self.now, self.asked, self.handed, self.waited = Place(0, 0), 0, [], ()

    def begin(self):
        self.asked += 1
        return Plan(SCHEDULE, 203).step(self.now)

    def timed(self, mini_batches):
        for number, mini_batch in enumerate(mini_batches, self.now.batch):
            self.handed.append((self.now.epoch, number))
            yield mini_batch
            self.waited = (*self.waited, len(self.handed))


def test_loader_asks_for_its_position_only_when_the_first_batch_is_asked_for():
    loop = Loop()
    loader = loader_of(make(), loop=loop)
    iterator = iter(loader)
    iter(loader)
    assert loop.asked == 0
    loop.now = Place(2, 3)
    first = [request for request, _ in next(iterator)]
    assert loop.asked == 1
    assert first == requests_of(make(), 2)[3]
    assert len(loader) == len(Plan(SCHEDULE, 203).epoch(2))
    assert loop.handed == [(2, 3)]
    list(iterator)
    assert loop.handed == [(2, batch) for batch in range(3, len(loader))]
    assert loop.waited == tuple(range(1, len(loop.handed) + 1))  # after each one, whether there is another or not


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_live_through_every_change_of_shape_and_change_nothing(workers):
    sampler = make()
    loader = loader_of(sampler, workers)
    plain, processes = loader_of(sampler), set()
    for epoch in range(SCHEDULE.epochs):
        sampler.set_epoch(epoch)
        batches = list(loader)
        processes |= {pid for batch in batches for _, pid in batch}
        expected = [[request for request, _ in batch] for batch in plain]
        assert [[request for request, _ in batch] for batch in batches] == expected
    assert len(processes) == workers
    assert os.getpid() not in processes


def drawing(samples):
    return torch.rand(2).tolist()


@pytest.mark.parametrize("workers", [0, 1])
def test_an_iterator_that_ends_within_the_dataset_is_an_error(workers):
    """torch's loader ends the epoch there, without a word."""

    class Ends(Clips):
        def __init__(self):
            self.samples = iter(range(30))

        def read_clip(self, request):
            return next(self.samples)

    template = DataLoader(DATA, num_workers=workers, collate_fn=list)
    with pytest.raises(RuntimeError, match="TensorDataset raised StopIteration for an index"):
        list(MultigridLoader(Ends(), make(), template))


def test_what_a_collate_fn_draws_depends_on_the_mini_batch_alone():
    drawn = [list(loader_of(make(), workers, collate_fn=drawing)) for workers in (0, 1, 2)]
    assert drawn[0] == drawn[1] == drawn[2]
    assert len({tuple(values) for values in drawn[0]}) == len(drawn[0])


def test_options_of_the_users_loader_are_taken_over():
    user = DataLoader(DATA, num_workers=2, prefetch_factor=3, timeout=7, worker_init_fn=print)
    loader = MultigridLoader(Clips(), make(), user)
    assert (loader.num_workers, loader.prefetch_factor) == (2, 3)
    assert loader.timeout == 7 * 32 / 2  # for mini-batches of up to 32 clips instead of 2
    assert loader.worker_init_fn is print
    assert not loader.persistent_workers
    lasting = DataLoader(DATA, num_workers=2, persistent_workers=True)
    assert MultigridLoader(Clips(), make(), lasting).persistent_workers


def mark_innermost(_):
    dataset = get_worker_info().dataset
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    dataset.marked = True


def test_a_worker_init_fn_tells_the_users_dataset_by_its_class():
    data = TensorDataset(torch.arange(20))
    user = DataLoader(Subset(Subset(data, range(9)), range(4)), num_workers=1, worker_init_fn=mark_innermost)
    assert in_worker(user, user.dataset, lambda: data.marked)
    assert not hasattr(data, "marked")  # here


class Joined(list):
    """The samples of a mini-batch, and the number of pieces in which they were read."""

    def __init__(self, samples, pieces=1):
        super().__init__(samples)
        self.pieces = pieces

    def join(self, others):
        """A script's own, which no loader calls."""
        raise NotImplementedError


class Joining(CollateAtOnce):
    """Counts the pieces."""

    def __init__(self):
        super().__init__(Joined)

    def join(self, batches):
        return Joined([sample for batch in batches for sample in batch], len(batches))


def test_what_is_collated_at_once_is_read_in_pieces_by_all_workers():
    joined = list(loader_of(make(), workers=2, collate_fn=Joining()))
    whole = list(loader_of(make(), workers=2, collate_fn=Joined))
    assert [[request for request, _ in batch] for batch in joined] == requests_of(make())
    assert [[request for request, _ in batch] for batch in whole] == requests_of(make())
    for together, alone, step in zip(joined, whole, Plan(SCHEDULE, 203).epoch(0), strict=True):
        assert (together.pieces, alone.pieces) == (min(2, step.shape.clips), 1)
        assert len({pid for _, pid in together}) == together.pieces
        assert len({pid for _, pid in alone}) == 1


def test_loaders_of_one_sampler_cut_it_each_in_its_own_way():
    sampler = make()
    two, none = (loader_of(sampler, workers, collate_fn=Joining()) for workers in (2, 0))
    assert [next(iter(loader)).pieces for loader in (two, none, two)] == [2, 1, 2]


class Slow(Clips):
    """Takes as long for each clip, whatever its size, as a dataset does that is read whole."""

    def read_clip(self, request):
        time.sleep(0.002)
        return super().read_clip(request)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_the_worker_that_is_free_reads_the_next_mini_batch_and_they_come_in_order():
    """By turns, one of three workers would read all the smallest clips of the short cycle."""
    loader = MultigridLoader(Slow(), make(), DataLoader(DATA, num_workers=3, collate_fn=list))
    read = list(loader)
    assert [[request for request, _ in batch] for batch in read] == requests_of(make())
    smallest = {pid for batch in read for request, pid in batch if request.size == 16}
    assert len(smallest) > 1

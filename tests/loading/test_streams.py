"""Streams: whole samples in the stream's order, on the plan's grids, from balanced workers."""

import os
import pickle

import lightning as L
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate, get_worker_info

from lightning_multigrid import MultigridCallback
from lightning_multigrid.loading import StreamSamples
from tests.helpers.scripts import QUIET
from tests.helpers.small_scripts import CLIPS, Script, clip, label

pytestmark = pytest.mark.usefixtures("_unrehearsed")

LENGTH = {"clips_per_epoch": CLIPS}


class Stream(IterableDataset):
    """Each worker gives every W-th of the samples.

    They are a clip, its label, its number, the pass that the stream was told, and the process that reads.
    """

    def __init__(self, number=CLIPS):
        self.number, self.told = number, -1

    def set_epoch(self, number):
        self.told = number

    def __iter__(self):
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        for index in range(worker, self.number, workers):
            yield clip(index), label(index), index, self.told, os.getpid()


class Sized(Stream):
    def __len__(self):
        return self.number


class Recording(Script):
    def __init__(self):
        super().__init__(unpack=lambda batch: batch[:2])
        self.shapes = []
        self.seen = []  # (number, pass that the stream was told, process) of each sample

    def training_step(self, batch, batch_idx):
        if isinstance(self._trainer, L.Trainer):
            x, _, *rest = batch
            self.shapes.append((len(x), *x.shape[2:4]))
            self.seen += zip(*(one.tolist() for one in rest), strict=True)
        return self.loss(batch)

    @property
    def read(self):
        """Each sample's number and pass."""
        return [sample[:2] for sample in self.seen]


def shapes(steps):
    return [(step.shape.clips, step.shape.frames, step.shape.size) for step in steps]


def train(stream=None, callbacks=(), multigrid=LENGTH, workers=0, module=None, loading=(), ckpt_path=None, **arguments):
    module, callback = module or Recording(), MultigridCallback(**multigrid)
    L.seed_everything(0, verbose=False)
    trainer = L.Trainer(**QUIET | {"enable_checkpointing": False} | arguments, callbacks=[callback, *callbacks])
    arguments = {"batch_size": 2, "num_workers": workers, **dict(loading)}
    trainer.fit(module, DataLoader(Stream() if stream is None else stream, **arguments), ckpt_path=ckpt_path)
    module.plan = callback.run.plan
    return module


@pytest.fixture(scope="module")
def trained():
    """A training with 0, 1 and 2 workers, and how many samples its `collate_fn` got each time."""

    def run(workers):
        sizes = []

        def collate(samples):
            sizes.append(len(samples))  # in this process
            return default_collate(samples)

        return train(loading={"collate_fn": collate}, workers=workers), sizes

    return [run(workers) for workers in range(3)]


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_mini_batches_are_on_the_grids_of_the_plan(workers, trained):
    module, _ = trained[workers]
    assert module.shapes == shapes(step for epoch in range(module.plan.epochs) for step in module.plan.epoch(epoch))


@pytest.mark.parametrize("workers", [0, 1])
def test_samples_come_in_the_streams_order_one_pass_after_the_other(workers, trained):
    """The stream is told each pass as it begins, and the passes don't begin with the epochs."""
    read = trained[workers][0].read
    assert read == [(entry % CLIPS, entry // CLIPS) for entry in range(len(read))]
    assert len(read) > 2 * CLIPS


def test_each_worker_goes_through_its_share_pass_by_pass_and_equally_fast(trained):
    """A worker may be ahead of the other one by the rest of a division of each mini-batch, not by more."""
    module, half = trained[2][0], CLIPS // 2
    for share in (0, 1):
        read = [(number, told) for number, told in module.read if number % 2 == share]
        assert read == [(2 * (entry % half) + share, entry // half) for entry in range(len(read))]
    ahead, first = 0, 0
    for clips, *_ in module.shapes:
        of_step = module.seen[first : first + clips]
        ahead += sum(1 if number % 2 else -1 for number, *_ in of_step)
        assert abs(ahead) <= 2
        first += clips


@pytest.mark.parametrize("workers", [1, 2])
def test_one_set_of_workers_reads_the_whole_training(workers, trained):
    processes = {process for *_, process in trained[workers][0].seen}
    assert len(processes) == workers
    assert os.getpid() not in processes


def test_the_collate_fn_gets_all_samples_of_a_mini_batch(trained):
    module, sizes = trained[2]
    planned = [clips for clips, *_ in module.shapes]
    assert sizes[-len(planned) :] == planned


class Drawn(Stream):
    """Draws from the global random state."""

    def __iter__(self):
        for sample in super().__iter__():
            yield sample[0] + torch.rand(()), *sample[1:]


class Ranged(IterableDataset):
    """A stream that knows nothing of workers, and has public and private attributes of any name."""

    def __init__(self, start, end):
        self.start, self._end, self.stream = start, end, None

    def __iter__(self):
        return ((clip(index), label(index), index, 0, os.getpid()) for index in range(self.start, self._end))


def give_share(worker):
    """Torch's documented way to cut a stream among its workers."""
    info = get_worker_info()
    assert isinstance(info.dataset, Ranged)
    share = (info.dataset._end - info.dataset.start) // info.num_workers
    info.dataset.start += worker * share
    info.dataset._end = info.dataset.start + share
    info.dataset.stream = "opened"


def test_a_worker_init_fn_cuts_a_stream_by_its_attributes():
    stream, shares = Ranged(0, CLIPS), {}
    for number, _, process in train(stream, loading={"worker_init_fn": give_share}, workers=2).seen:
        shares.setdefault(process, set()).add(number)
    assert sorted(map(sorted, shares.values())) == [[*range(CLIPS // 2)], [*range(CLIPS // 2, CLIPS)]]
    assert (stream.start, stream._end, stream.stream) == (0, CLIPS, None)


def test_two_runs_are_the_same():
    states = [train(Drawn(), workers=1, max_epochs=1).state_dict() for _ in range(2)]
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


def test_a_share_that_ends_begins_again_as_the_next_pass():
    """Whatever the plan takes for the clips of a pass."""
    read = train(Stream(40)).read
    assert read == [(entry % 40, entry // 40) for entry in range(len(read))]


class Skipping(Recording):
    def on_train_batch_start(self, batch, batch_idx):
        return -1 if batch_idx == 2 else None


@pytest.mark.parametrize("workers", [0, 1])
def test_after_a_skipped_rest_of_an_epoch_the_stream_begins_with_the_pass_of_the_next(workers):
    module = train(module=Skipping(), workers=workers, max_epochs=3)
    plan = module.plan
    of_epochs = [plan.epoch(epoch) for epoch in range(3)]
    assert module.shapes == shapes(step for steps in of_epochs for step in steps[:2])
    first = 0
    for steps in of_epochs:
        clips = sum(step.shape.clips for step in steps[:2])
        current = steps[0].offset // CLIPS
        expected = [(entry % CLIPS, current + entry // CLIPS) for entry in range(clips)]
        assert module.read[first : first + clips] == expected
        first += clips
    assert first == len(module.read)


class Peek(L.Callback):
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if batch_idx == 1:
            x, *_ = next(iter(trainer.train_dataloader))
            assert x.ndim == 5
            assert isinstance(trainer.train_dataloader.dataset, Stream)


def test_who_looks_at_the_loader_takes_no_sample(trained):
    assert trained[0][0].seen == train(callbacks=[Peek()]).seen


# --- The length of a pass ---


@pytest.mark.parametrize(
    ("stream", "multigrid", "arguments", "expected"),
    [
        (Sized(), {}, {}, CLIPS),
        (Stream(), {}, {"limit_train_batches": 40}, 80),
        (Sized(200), {"clips_per_epoch": 100}, {}, 100),
        (Sized(200), {"clips_per_epoch": 100}, {"limit_train_batches": 0.8}, 80),
    ],
)
def test_length(stream, multigrid, arguments, expected):
    host = L.Trainer(**QUIET | {"enable_checkpointing": False} | arguments)
    plan = MultigridCallback(**multigrid).plan(host, Recording(), DataLoader(stream, batch_size=2))
    assert plan.clips == expected


def test_fast_dev_run_needs_no_length():
    assert len(train(multigrid={}, fast_dev_run=True).shapes) == 1


def test_refusals():
    with pytest.raises(ValueError, match=r"Stream does not say how many samples.*clips_per_epoch.*limit_train_batches"):
        train(multigrid={})
    with pytest.raises(ValueError, match="Stream gave no sample.*as many workers"):
        train(Stream(0))
    with pytest.raises(Exception, match="`precise_bn_batches` reads clips of the pass again"):
        train(multigrid={**LENGTH, "precise_bn_batches": 2})
    with pytest.raises(TypeError, match="batch_size=None"):
        train(loading={"batch_size": None})


@pytest.mark.parametrize("workers", [0, 1])
def test_a_resumed_run_has_the_same_steps_and_begins_the_stream_with_the_current_pass(workers, tmp_path, caplog):
    keep = L.pytorch.callbacks.ModelCheckpoint(tmp_path, every_n_train_steps=10, save_top_k=-1)
    whole = train(callbacks=[keep], enable_checkpointing=True)
    done = sum(clips for clips, *_ in whole.shapes[:10])
    assert done // CLIPS == 1  # in the middle of the second pass
    with pytest.warns(UserWarning, match="callbacks used to create the checkpoint"):
        rest = train(workers=workers, ckpt_path=next(tmp_path.glob("*step=10.ckpt")))
    assert rest.shapes == whole.shapes[10:]
    assert rest.read == [(entry % CLIPS, 1 + entry // CLIPS) for entry in range(len(rest.read))]
    assert "Stream begins with pass 1 over the data (the first is 0)" in caplog.text


# --- `StreamSamples` ---


def test_before_the_first_pass_there_is_only_the_first_sample():
    samples = StreamSamples(Stream(), CLIPS)
    assert [samples[index][2] for index in (0, 3, 7)] == [0, 0, 0]
    samples.begin(0)
    assert [samples[index][2] for index in (0, 3, 7)] == [0, 1, 2]
    again = pickle.loads(pickle.dumps(samples))
    assert again[0][2] == 0  # another process begins its own share
    assert samples[0][2] == 3


@pytest.mark.parametrize("copied", [True, False])
def test_a_stream_that_counts_its_passes_itself_does_not_count_a_look_at_it_if_it_can_be_copied(copied):
    class Counting(IterableDataset):
        passes = 0

        def __iter__(self):
            self.passes += 1
            return iter(range(10 * self.passes, 10 * self.passes + 3))

    stream = Counting()
    stream.source = None if copied else (number for number in ())  # which can't be copied
    samples, first = StreamSamples(stream, CLIPS), 10 if copied else 20
    assert [samples[0], samples[0]] == [10, 10]
    samples.begin(0)
    assert [samples[index] for index in range(4)] == [first, first + 1, first + 2, first + 10]


def test_it_goes_on_from_the_pass_that_it_begins_with():
    samples = StreamSamples(Stream(2), CLIPS)
    for first in (5, 3):  # the second one as after a skipped rest of an epoch
        samples.begin(first)
        assert [samples[index][2:4] for index in range(5)] == [
            (0, first), (1, first), (0, first + 1), (1, first + 1), (0, first + 2)
        ]  # fmt: skip

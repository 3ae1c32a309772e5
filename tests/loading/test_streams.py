"""Streams: whole samples in the stream's order, on the plan's grids, from balanced workers."""

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
    """Each worker gives every W-th of the samples: a clip, its label, its number, and the epoch that it was told."""

    def __init__(self, number=CLIPS):
        self.number, self.epoch = number, -1

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        for index in range(worker, self.number, workers):
            yield clip(index), label(index), index, self.epoch


class Sized(Stream):
    def __len__(self):
        return self.number


class Recording(Script):
    def __init__(self):
        super().__init__(unpack=lambda batch: batch[:2])
        self.seen = []  # (epoch, shape, numbers, epochs that the stream was told)

    def training_step(self, batch, batch_idx):
        if isinstance(self._trainer, L.Trainer):
            x, _, numbers, epochs = batch
            self.seen.append((self.current_epoch, (len(x), *x.shape[2:4]), numbers.tolist(), set(epochs.tolist())))
        return self.loss(batch)


def train(stream=None, callbacks=(), loader=DataLoader, multigrid=LENGTH, collate_fn=None, workers=0, **arguments):
    module, callback = Recording(), MultigridCallback(**multigrid)
    L.seed_everything(0, verbose=False)
    trainer = L.Trainer(**QUIET | {"enable_checkpointing": False} | arguments, callbacks=[callback, *callbacks])
    stream = Stream() if stream is None else stream
    trainer.fit(module, loader(stream, batch_size=2, num_workers=workers, collate_fn=collate_fn))
    sampler = callback.run.plan
    steps = [step for epoch in range(sampler.schedule.epochs) for step in sampler.epoch(epoch)]
    assert [shape for _, shape, *_ in module.seen] == [(s.shape.clips, s.shape.frames, s.shape.size) for s in steps]
    return module


def numbers(module, epoch):
    return [number for at, _, found, _ in module.seen if at == epoch for number in found]


@pytest.fixture(scope="module")
def trained():
    """A training with 0, 1 and 2 workers, and how many samples its `collate_fn` got each time."""

    def run(workers):
        sizes = []

        def collate(samples):
            sizes.append(len(samples))  # in this process
            return default_collate(samples)

        return train(collate_fn=collate, workers=workers), sizes

    return [run(workers) for workers in range(3)]


@pytest.mark.parametrize("workers", [0, 1])
def test_samples_come_in_the_streams_order(workers, trained):
    for epoch in range(3):
        assert numbers(trained[workers][0], epoch) == list(range(CLIPS))


def test_workers_go_through_their_shares_equally_fast(trained):
    for epoch in range(3):
        assert sorted(numbers(trained[2][0], epoch)) == list(range(CLIPS))


def test_a_stream_that_has_set_epoch_is_told_the_epoch(trained):
    assert all(told == {epoch} for epoch, _, _, told in trained[1][0].seen)


def test_the_collate_fn_gets_all_samples_of_a_mini_batch(trained):
    module, sizes = trained[2]
    planned = [shape[0] for _, shape, *_ in module.seen]
    assert sizes[-len(planned) :] == planned


class Drawn(Stream):
    """Draws from the global random state."""

    def __iter__(self):
        for sample in super().__iter__():
            yield sample[0] + torch.rand(()), *sample[1:]


def test_two_runs_are_the_same():
    states = [train(Drawn(), workers=1, max_epochs=1).state_dict() for _ in range(2)]
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


def test_a_share_that_ends_begins_again():
    assert numbers(train(Stream(40)), 0) == [*range(40), *range(40), *range(16)]


class Peek(L.Callback):
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if batch_idx == 1:
            x, *_ = next(iter(trainer.train_dataloader))
            assert x.ndim == 5
            assert isinstance(trainer.train_dataloader.dataset, Stream)


def test_who_looks_at_the_loader_takes_no_sample(trained):
    assert trained[0][0].seen == train(callbacks=[Peek()]).seen


# --- The length of an epoch ---


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
    module = train(stream, multigrid=multigrid, **arguments)
    assert [len(numbers(module, epoch)) for epoch in range(3)] == [expected] * 3


def test_a_stream_without_a_length_is_refused():
    with pytest.raises(ValueError, match=r"Stream does not say how many samples.*clips_per_epoch.*limit_train_batches"):
        train(multigrid={})


def test_fast_dev_run_needs_no_length():
    train_once = Recording()
    trainer = L.Trainer(**QUIET, fast_dev_run=True, callbacks=[MultigridCallback()])
    trainer.fit(train_once, DataLoader(Stream(), batch_size=2))
    assert len(train_once.seen) == 1


def test_refusals():
    with pytest.raises(ValueError, match="Stream gave no sample.*as many workers"):
        train(Stream(0))
    with pytest.raises(Exception, match="`precise_bn_batches` reads clips of the epoch again"):
        train(multigrid={**LENGTH, "precise_bn_batches": 2})
    trainer = L.Trainer(**QUIET, callbacks=[MultigridCallback(**LENGTH)])
    with pytest.raises(TypeError, match="batch_size=None"):
        trainer.fit(Recording(), DataLoader(Stream(), batch_size=None))


# --- Resume ---


def test_a_resumed_run_has_the_same_steps(tmp_path):
    keep = L.pytorch.callbacks.ModelCheckpoint(tmp_path, every_n_train_steps=10, save_top_k=-1)
    whole = train(callbacks=[keep], enable_checkpointing=True)
    module = Recording()
    trainer = L.Trainer(**QUIET, enable_checkpointing=False, callbacks=[MultigridCallback(**LENGTH)])
    with pytest.warns(UserWarning, match="callbacks used to create the checkpoint"):
        trainer.fit(module, DataLoader(Stream(), batch_size=2), ckpt_path=next(tmp_path.glob("*step=10.ckpt")))
    assert [seen[:2] for seen in module.seen] == [seen[:2] for seen in whole.seen[10:]]


# --- `StreamSamples` ---


def test_before_the_first_epoch_there_is_only_the_first_sample():
    samples = StreamSamples(Stream(), CLIPS)
    assert [samples[index][2] for index in (0, 3, 7)] == [0, 0, 0]
    samples.begin(0)
    assert [samples[index][2] for index in (0, 3, 7)] == [0, 1, 2]
    again = pickle.loads(pickle.dumps(samples))
    assert again[0][2] == 0  # another process begins its own share
    assert samples[0][2] == 3
    assert samples.number == CLIPS  # a `worker_init_fn` may ask

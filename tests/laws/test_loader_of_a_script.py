"""What a script may do with its training loader while multigrid training runs, and what it sees there."""

import multiprocessing
import random
import threading
import time
import warnings
from itertools import product

import lightning as L
import numpy as np
import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import LambdaCallback, ModelCheckpoint
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, SubsetRandomSampler, get_worker_info

from lightning_multigrid import LongCycle, MultigridCallback, ShortCycle
from lightning_multigrid.loading import FixedClips
from tests.helpers.sampling import sampled
from tests.helpers.tiny import Module, clips, fit, loader

pytestmark = pytest.mark.usefixtures("_unrehearsed")

NUMBER = 40
SMALL = {"long_cycle": LongCycle(((0.5, 0.5), (1, 1))), "short_cycle": ShortCycle((1,)), "milestones": [1]}


def multigrid(**arguments):
    return MultigridCallback(**SMALL | {"seed": 3} | arguments)


def state_of(module, callback, host):
    weights = [tensor.numpy().tobytes() for tensor in module.state_dict().values()]
    steps = [(row.shape, row.total.steps, row.total.clips) for row in callback.report.times.rows]
    rng = torch.random.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()
    return module.seen, weights, steps, rng, host.global_step


# --- Looking at it changes nothing ---


def first(loader):
    return next(iter(loader))


def broken_off(loader):
    for number, _ in enumerate(loader):
        if number == 1:
            break


def left_open(loader):
    left_open.kept = iter(loader)
    next(left_open.kept)


def in_a_thread(loader):
    thread = threading.Thread(target=list, args=(loader,))
    thread.start()
    thread.join()


HOOKS = ("on_train_start", "on_train_epoch_start", "on_train_batch_end", "on_validation_epoch_start")
HOOKS += ("on_before_optimizer_step",)  # in the middle of a step


class Peeking(Callback):
    def __init__(self, hook, peek):
        self.peeked = 0

        def peeks(trainer, *_, **__):
            if trainer.train_dataloader is not None and not trainer.sanity_checking:
                peek(trainer.train_dataloader)
                self.peeked += 1

        setattr(self, hook, peeks)


def drawing(samples):
    """Collates, with a bit of noise."""
    x, y = torch.utils.data.default_collate(samples)
    return x + 0.1 * torch.randn(()) + random.random() * np.random.rand(), y


def trained(peeking=(), workers=0, persistent=False):
    module, callback = Module(), multigrid()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of forking in a process with threads
        train = loader(2, number=NUMBER, num_workers=workers, persistent_workers=persistent, collate_fn=drawing)
        val = loader(8, shuffle=False, number=8)
        host = fit(module, *peeking, callback, train=train, val=val, max_epochs=2)
    return state_of(module, callback, host)


@pytest.fixture(scope="module")
def unwatched():
    return trained()


PEEKS = (first, broken_off, list, left_open, in_a_thread)
ORDINARY = [*zip(HOOKS, (left_open, list, broken_off, first, first), strict=True), (HOOKS[1], in_a_thread)]


@pytest.mark.parametrize(("hook", "peek"), sampled([*product(HOOKS, PEEKS)], *ORDINARY))
def test_a_pass_of_a_script_changes_nothing_in_the_run(unwatched, hook, peek):
    peeking = Peeking(hook, peek)
    assert trained([peeking]) == unwatched
    assert peeking.peeked


@pytest.mark.parametrize("persistent", sampled([False, True], True))
def test_nor_does_it_with_workers(unwatched, persistent):
    for hook, peek in (("on_train_start", left_open), ("on_train_epoch_start", list)):
        assert trained([Peeking(hook, peek)], workers=1, persistent=persistent) == unwatched


def test_a_thread_beside_the_training_changes_nothing(unwatched):
    threads = []

    def peek(loader):
        threads.append(threading.Thread(target=list, args=(loader,)))
        threads[-1].start()

    assert trained([Peeking("on_train_epoch_start", peek)]) == unwatched
    for thread in threads:
        thread.join()


class Keeping(Module):
    """Keeps the mini-batches of passes of its own, in the first step of each epoch and at its end."""

    def __init__(self):
        super().__init__()
        self.passes = []

    def training_step(self, batch, batch_idx):
        if isinstance(self._trainer, L.Trainer) and batch_idx == 0:
            self.passes.append([*self.trainer.train_dataloader])
        return super().training_step(batch, batch_idx)

    def on_train_epoch_end(self):
        self.passes.append([*self.trainer.train_dataloader])


class Long:
    """A dataset or a sampler of all clips."""

    def __len__(self):
        return NUMBER


class Counting(Long, Sampler):
    """Has a state that no seed sets."""

    drawn = 0

    def __iter__(self):
        self.drawn += 1
        return iter([(self.drawn + index) % NUMBER for index in range(NUMBER)])


def keeping(sampler):
    module = Keeping()
    train = DataLoader(clips(NUMBER), 2, sampler=sampler and sampler(), shuffle=None if sampler else True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit(module, multigrid(), train=train, max_epochs=2)
    return module


@pytest.mark.parametrize("sampler", [None, Counting])
def test_it_gives_the_scripts_mini_batches_of_all_clips(sampler):
    """As a script needs them for prototypes, nearest neighbours or BatchNorm's statistics."""
    known = {x.numpy().tobytes() for x, _ in clips(NUMBER)}
    passes = keeping(sampler).passes
    assert len(passes) == 4
    for mini_batches in passes:
        assert [x.shape for x, _ in mini_batches] == [(2, 3, 8, 32, 32)] * (NUMBER // 2)
        assert {x.numpy().tobytes() for mini_batch, _ in mini_batches for x in mini_batch} == known


# --- What a script sets when an epoch begins ---


class Filled(Long, Dataset):
    """Clips that are what a function makes of their index, and of an epoch that the script tells."""

    def __init__(self, value=lambda index, epoch: epoch, epoch=-1):
        self.value, self.epoch = value, epoch

    def __getitem__(self, index):
        return torch.full((3, 8, 32, 32), float(self.value(index, self.epoch))), index % 4


def shared():
    """Told in shared memory."""
    return Filled(lambda index, epoch: epoch.value, multiprocessing.Value("i", -1))


class Stage(Long, Sampler):
    """Gives the indices of a stage that the script sets, in an order drawn anew."""

    stage = 0

    def __iter__(self):
        of_stage = [10 * self.stage + index for index in range(10)]
        return iter(random.choices(of_stage, k=NUMBER))


class Stream(IterableDataset):
    """Clips that are an attribute of the stream."""

    epoch = -1

    def __init__(self):
        self.epoch = -1

    def __iter__(self):
        for _ in range(NUMBER):
            yield torch.full((3, 8, 32, 32), float(self.epoch)), 0


class Setting(Module):
    """Sets something when an epoch begins, and notes the values of the clips of the epoch."""

    def __init__(self, setting):
        super().__init__()
        self.setting, self.values = setting, []

    def on_train_epoch_start(self):
        self.setting(self.trainer.train_dataloader, self.current_epoch)
        self.values.append(set())

    def training_step(self, batch, batch_idx):
        if isinstance(self._trainer, L.Trainer):
            self.values[-1] |= {int(x[0, 0, 0, 0]) for x in batch[0]}
        return super().training_step(batch, batch_idx)


def set_shared(loader, epoch):
    loader.dataset.epoch.value = epoch


def set_epoch(loader, epoch):
    loader.dataset.epoch = epoch


def set_stage(loader, epoch):
    loader.sampler.stage = epoch


@pytest.mark.parametrize(
    ("make", "workers", "arguments"),
    sampled(
        list(product((shared, Stream), ("none", "new", "persistent"), ({}, {"epoch_factor": 1}))),
        *((shared, "none", {"epoch_factor": 1}), (shared, "new", {}), (shared, "persistent", {"epoch_factor": 1})),
        *((Stream, "none", {}), (Stream, "persistent", {})),
    ),
)
def test_what_a_script_sets_when_an_epoch_begins_holds_in_it(make, workers, arguments):
    """Also in workers that live longer: through memory that they share, and as an attribute of a stream."""
    given = {"clips_per_epoch": NUMBER} if make is Stream else {}
    module = Setting(set_epoch if make is Stream else set_shared)
    train = DataLoader(make(), 2, num_workers=int(workers != "none"), persistent_workers=workers == "persistent")
    fit(module, multigrid(**given, **arguments), train=train, max_epochs=4)
    assert module.values == [{0}, {1}, {2}, {3}]


@pytest.mark.parametrize(
    ("workers", "arguments"),
    sampled(list(product((0, 1), ({}, {"epoch_factor": 1}))), (1, {}), (0, {"epoch_factor": 1})),
)
def test_a_sampler_is_asked_anew_when_an_epoch_begins(workers, arguments):
    """As for a curriculum, or weights of hard examples."""
    module = Setting(set_stage)
    train = DataLoader(Filled(lambda index, _: index), 2, sampler=Stage(), num_workers=workers)
    fit(module, multigrid(**arguments), train=train, max_epochs=4)
    assert [{index // 10 for index in values} for values in module.values] == [{0}, {1}, {2}, {3}]


# --- What its attributes are ---


def public_attributes(loader):
    names = {name for name in {*dir(loader)} if not name.startswith("_")}
    return names | set(DataLoader.__annotations__) - {"_iterator"}


class Mine(DataLoader):
    views = 3

    def describe(self):
        return f"{self.batch_size} clips"


def test_all_public_attributes_are_those_of_the_scripts_loader():
    train = Mine(clips(NUMBER), 2, True, num_workers=1, timeout=60, drop_last=True, prefetch_factor=3)
    asked = {}

    class Asking(Callback):
        def on_train_epoch_start(self, trainer, pl_module):
            ours = trainer.train_dataloader
            asked.update({name: getattr(ours, name) for name in public_attributes(train)})
            asked["is one"] = isinstance(ours, DataLoader)
            asked["sample"] = ours.dataset[3][1]
            asked["product"] = ours.batch_size * len(ours)
            ours.check_worker_number_rationality()
            ours.mine = 4
            assert ours.mine == 4
            for name in ("num_workers", "collate_fn", "dataset"):
                with pytest.raises(AttributeError, match=f"has read `{name}` of the training loader when `fit` began"):
                    setattr(ours, name, None)

    host = fit(Module(), multigrid(), Asking(), train=train, max_epochs=2)
    assert asked.pop("is one")
    assert asked.pop("sample") == train.dataset[3][1]
    assert 0 < asked.pop("product") <= NUMBER
    assert asked.pop("describe")() == "2 clips"
    assert asked.pop("check_worker_number_rationality")
    assert {"batch_size", "sampler", "batch_sampler", "dataset", "drop_last", "collate_fn", "views"} <= set(asked)
    assert asked == {name: getattr(train, name) for name in asked}
    assert host.train_dataloader is train  # afterwards


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (1, False), (1, True)])
def test_workers_see_the_dataset_as_it_is_when_they_start(workers, persistent):
    module = Setting(set_epoch)
    train = DataLoader(Filled(), 2, num_workers=workers, persistent_workers=persistent)
    fit(module, multigrid(), train=train, max_epochs=2)
    assert module.values == [{0}, {0 if persistent else 1}]


class Counted(Filled):
    """Counts its reads, in all processes."""

    def __init__(self):
        super().__init__()
        self.reads = multiprocessing.Value("i", 0)

    def __getitem__(self, index):
        with self.reads.get_lock():
            self.reads.value += 1
        return super().__getitem__(index)[0], index


class Indices(Module):
    """Notes the indices of each step, and leaves out the end of an epoch."""

    def __init__(self, skips):
        super().__init__()
        self.skips, self.indices = skips, []

    def on_train_batch_start(self, batch, batch_idx):
        return -1 if self.skips and (self.current_epoch, batch_idx) == (0, 3) else None

    def training_step(self, batch, batch_idx):
        if isinstance(self._trainer, L.Trainer):
            self.indices.append((self.current_epoch, *batch[1].tolist()))
        return super().training_step((batch[0], batch[1] % 4), batch_idx)


@pytest.mark.parametrize("skips", [False, True])
def test_workers_that_persist_give_the_same_clips_and_read_nothing_of_an_epoch_before_it_begins(skips):
    seen, read = [], []

    def note(*_):
        read.append(dataset.reads.value)

    def wait(*_):
        time.sleep(0.3)  # time enough to read more
        note()

    for workers in (0, 1):
        dataset, module = Counted(), Indices(skips)
        train = DataLoader(dataset, 2, shuffle=True, num_workers=workers, persistent_workers=workers > 0)
        notes = LambdaCallback(on_train_epoch_end=wait, on_train_epoch_start=note)
        fit(module, multigrid(), notes, train=train, max_epochs=2)
        seen.append(module.indices)
        _, end, start, _ = read[-4:]
        assert end == start
    assert seen[0] == seen[1]
    assert {epoch for epoch, *_ in seen[0]} == {0, 1}


@pytest.mark.rehearsed
def test_workers_alone_read_so_what_a_dataset_opens_at_its_first_sample_is_theirs():
    """A file of HDF5 or LMDB can't be shared with a process that is forked later."""

    def value(index, _):
        assert get_worker_info() is not None
        return index

    module = Setting(lambda *_: None)
    fit(module, multigrid(), train=DataLoader(Filled(value), 2, num_workers=1), max_epochs=2)
    assert set().union(*module.values) == {*range(NUMBER)}


# --- Random generators of their own ---


class Private(Long, Dataset):
    """Flips, brightens and shifts by generators of its own, one of them in a transform."""

    def __init__(self):
        self.clips = clips(NUMBER)
        self.python, self.numpy = random.Random(5), np.random.default_rng(5)
        self.transforms = [Shift()]

    def __getitem__(self, index):
        x, y = self.clips[index]
        return self.transforms[0](x * self.python.random() + float(self.numpy.random())), y


class Shift:
    def __init__(self):
        self.torch, self.old = torch.Generator(), np.random.RandomState(5)

    def __call__(self, x):
        return x + torch.rand(1, generator=self.torch) + self.old.rand()


class PrivateOrder(Long, Sampler):
    def __init__(self):
        self.random = random.Random(9)

    def __iter__(self):
        return iter(self.random.sample(range(NUMBER), NUMBER))


class ToldOrder(PrivateOrder):
    """As torch's `DistributedSampler`: an order by the epoch that it is told."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter(random.Random(self.epoch).sample(range(NUMBER), NUMBER))


@pytest.mark.parametrize("order", [PrivateOrder, ToldOrder])
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_generators_of_a_dataset_or_a_sampler_resume_exactly(order, workers, tmp_path):
    def run(folder, **arguments):
        module, train = Module(), DataLoader(Private(), 2, sampler=order(), num_workers=workers)
        save = ModelCheckpoint(tmp_path / folder, filename="{step}", every_n_train_steps=3, save_top_k=-1)
        host = fit(module, multigrid(), save, train=train, max_epochs=2, enable_checkpointing=True, **arguments)
        return module.seen, [p.tolist() for p in host.lightning_module.parameters()]

    whole, weights = run("whole")
    for done in (3, 9):
        assert run(f"from {done}", ckpt_path=tmp_path / f"whole/step={done}.ckpt") == (whole[done:], weights)


# --- Samples that are None ---


class Broken(Long, Dataset):
    def __init__(self, broken):
        self.clips, self.broken = clips(NUMBER), broken

    def __getitem__(self, index):
        return None if index in self.broken else self.clips[index]


def without_broken(samples):
    return torch.utils.data.default_collate([sample for sample in samples if sample is not None])


def test_a_first_sample_that_is_none_is_passed_over():
    module = Module()
    train = DataLoader(Broken([0, 1, 7]), 2, shuffle=True, collate_fn=without_broken)
    callback = multigrid(precise_bn_batches=1)
    fit(module, callback, train=train, max_epochs=2)
    planned = sum(step.shape.clips for epoch in range(2) for step in callback.run.plan.epoch(epoch))
    passes, rest = divmod(planned, NUMBER)
    assert 0 <= planned - 3 * passes - sum(shape[0] for *_, shape, _, _ in module.seen) <= min(3, rest)
    with pytest.raises(ValueError, match="Broken: A sample must hold a clip.*; got NoneType. Let"):
        FixedClips(Broken(range(NUMBER)))


@pytest.mark.parametrize("workers", [0, 1])
def test_no_sample_is_read_that_the_sampler_leaves_out(workers):
    """Such as damaged videos, or those of other folds."""

    def value(index, _):
        if index % 4 != 3:
            raise OSError("This one is damaged.")
        return index

    kept = [index for index in range(NUMBER) if index % 4 == 3]
    module = Setting(lambda *_: None)
    train = DataLoader(Filled(value), 2, sampler=SubsetRandomSampler(kept), num_workers=workers)
    fit(module, multigrid(), train=train, max_epochs=2)
    assert set().union(*module.values) <= {*kept}

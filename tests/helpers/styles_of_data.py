"""Ways to write the data of a script: rows of `tests/helpers/script_styles.py`."""

import random
import warnings
from collections import namedtuple
from typing import Any

import lightning as L
import numpy as np
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
    random_split,
)

from lightning_multigrid.schedule import BatchShape
from tests.helpers.scripts import Rows
from tests.helpers.small_scripts import (
    BATCH,
    CLASSES,
    CLIPS,
    FRAMES,
    SIZE,
    Clips,
    Script,
    WithValidation,
    clip,
    label,
    loader,
    net,
    of,
    unpacked,
)

row = Rows()


# --- Datasets ---

DATASETS = "Datasets and samples"


def tensors():
    return TensorDataset(torch.stack([clip(i) for i in range(CLIPS)]), torch.tensor([label(i) for i in range(CLIPS)]))


class Fetched(Clips):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


class Whole(Clips):
    def __getitems__(self, indices):
        x, y = default_collate([self[index] for index in indices])
        return {"video": x, "label": y}


class Augmented(Clips):
    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        x = x + 0.1 * torch.randn(()) + 0.1 * float(np.random.rand()) + 0.1 * random.random()
        return (x.flip(-1) if torch.rand(()) < 0.5 else x), y


Pair = namedtuple("Pair", ["clip", "label"])

row(DATASETS, "`TensorDataset`", data=lambda: loader(tensors()))
row(DATASETS, "your own `Dataset`", data=lambda: loader(Clips()))
row(DATASETS, "`Subset`", data=lambda: loader(Subset(Clips(number=110), range(7, 7 + CLIPS))))
row(DATASETS, "`random_split`", data=lambda: loader(random_split(Clips(number=100), [CLIPS, 4])[0]))
row(DATASETS, "`ConcatDataset`", data=lambda: loader(ConcatDataset([Clips(number=40), Clips(number=56)])))
row(DATASETS, "a list", data=lambda: loader([(clip(i), label(i)) for i in range(CLIPS)]))
row(DATASETS, "`__getitems__`", data=lambda: loader(Fetched()))
row(DATASETS, "random augmentation by torch, NumPy and `random`", data=lambda: loader(Augmented()))
row(DATASETS, "a dict", data=of(lambda x, y: {"video": x, "label": y}),
    module=unpacked(lambda batch: (batch["video"], batch["label"])))  # fmt: skip
row(DATASETS, "a named tuple", data=of(Pair), module=unpacked(lambda batch: (batch.clip, batch.label)))
row(DATASETS, "names of files beside the clip", data=of(lambda x, y: (x, y, f"{y}.mp4")),
    module=unpacked(lambda batch: batch[:2]))  # fmt: skip
row(DATASETS, "NumPy arrays", data=of(lambda x, y: (x.numpy(), y)))
row(DATASETS, "uint8, scaled in the module", data=of(lambda x, y: ((x * 255).to(torch.uint8), y)),
    module=unpacked(lambda batch: (batch[0] / 255, batch[1])))  # fmt: skip
row(DATASETS, "float16", data=of(lambda x, y: (x.half(), y)), module=unpacked(lambda b: (b[0].float(), b[1])))
row(DATASETS, "T x C x H x W", data=of(lambda x, y: (x.transpose(0, 1).contiguous(), y)), axes="NTCHW",
    module=unpacked(lambda b: (b[0].transpose(1, 2), b[1])))  # fmt: skip
row(DATASETS, "T x H x W x C", data=of(lambda x, y: (x.permute(1, 2, 3, 0).contiguous(), y)), axes="NTHWC",
    module=unpacked(lambda b: (b[0].permute(0, 4, 1, 2, 3), b[1])))  # fmt: skip
row(DATASETS, "two channels", data=of(lambda x, y: (x[:2], y)), multigrid={"layout": "CTHW"},
    module=lambda: Script(model=lambda: net(channels=2)))  # fmt: skip
row(DATASETS, "rectangular clips", data=of(lambda x, y: (x, y), height=36, width=48),
    shape=BatchShape(BATCH, FRAMES, 36))  # fmt: skip
row(DATASETS, "images (T = 1)", data=of(lambda x, y: (x[:, 0], y)), axes="NCHW", shape=BatchShape(BATCH, 1, SIZE),
    module=unpacked(lambda b: (b[0].unsqueeze(2), b[1])))  # fmt: skip
row(DATASETS, "a key frame beside the clip", data=of(lambda x, y: (x, x[:, 0], y)),
    module=unpacked(lambda batch: (batch[0], batch[2])))  # fmt: skip
row(DATASETS, "features beside the clip", data=of(lambda x, y: (x, x.mean(dim=(1, 2, 3)), y)),
    module=unpacked(lambda batch: (batch[0], batch[2])))  # fmt: skip
row(DATASETS, "soft labels", data=of(lambda x, y: (x, nn.functional.one_hot(torch.tensor(y), CLASSES).float())))
row(DATASETS, "several labels", data=of(lambda x, y: (x, {"verb": y, "noun": (y + 1) % CLASSES})),
    module=unpacked(lambda b: (b[0], b[1]["verb"])))  # fmt: skip
row(DATASETS, "clips alone (self-supervision)", data=of(lambda x, y: x),
    module=unpacked(lambda b: (b, torch.zeros(len(b), dtype=torch.long))))  # fmt: skip


class Told(Clips):
    """Gives other clips in each epoch, which it is told."""

    epoch = 0

    def __getitem__(self, index):
        return super().__getitem__((index + 7 * self.epoch) % self.number)


class Tells(Script):
    def on_train_epoch_start(self):
        self.trainer.train_dataloader.dataset.epoch = self.current_epoch


class TellsAtOnce(Tells):
    def on_train_start(self):
        self.on_train_epoch_start()


class Private(Clips):
    def __init__(self, generator, draw):
        super().__init__()
        self.generator, self.draw = generator, draw

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return x + 0.1 * self.draw(self.generator), y


HIDDEN = random.Random(0)  # which nobody finds


class Stream(IterableDataset[Any]):
    def __iter__(self):
        return iter(Clips())


def first_for_none(samples):
    there = [sample for sample in samples if sample is not None]
    return default_collate([there[0] if sample is None else sample for sample in samples])


row(DATASETS, "samples that are None, replaced in `collate_fn`",
    data=lambda: loader(Clips(lambda x, y: (x, y) if y else None), shuffle=False,
                        collate_fn=first_for_none))  # fmt: skip
row(DATASETS, "the dataset is told the epoch in `on_train_epoch_start`", module=Tells, data=lambda: loader(Told()),
    resumes=False, outcome="Lightning calls this hook only at the start of an epoch")  # fmt: skip
row(DATASETS, "the dataset is told the epoch in `on_train_start`, too", module=TellsAtOnce,
    data=lambda: loader(Told()))  # fmt: skip
row(DATASETS, "its own NumPy generator",
    data=lambda: loader(Private(np.random.default_rng(1), lambda generator: generator.random())))  # fmt: skip
row(DATASETS, "draws that no seed sets", resumes=False,
    data=lambda: loader(Private(None, lambda _: HIDDEN.random())))  # fmt: skip
row(DATASETS, "a dataset whose `__getitems__` returns a mini-batch, as a `TensorDict` does",
    data=lambda: loader(Whole(), collate_fn=lambda batch: batch), refused="must return a list of samples",
    module=unpacked(lambda batch: (batch["video"], batch["label"])),
    outcome="a mini-batch can't come to other grids clip by clip; leave `__getitems__` out, and use a `collate_fn`"
)  # fmt: skip
row(DATASETS, "clips that may be skeletons or landmarks: at most 32 pixels in height or width, and not square",
    data=of(lambda x, y: (x[..., :2], y)), refused="may be joints or landmarks",
    outcome="joints can't be resized; give `layout` if they have pixels, and [name the axes]("
    "script.md#several-tensors-per-sample) of joints")  # fmt: skip
row(DATASETS, "clips with no axis of 1 or 3 channels", data=of(lambda x, y: (x[:2], y)),
    refused="no axis of 1 or 3 channels tells its layout", module=lambda: Script(model=lambda: net(channels=2)),
    outcome="the axes can't be told apart; give `layout`")  # fmt: skip
row(DATASETS, "clips of int64", data=of(lambda x, y: ((255 * x).long(), y)), refused="only uint8 and floating point",
    module=unpacked(lambda b: (b[0] / 255, b[1])), outcome="integers can't be resized; convert them")  # fmt: skip
row(DATASETS, "frames folded into the channels", data=of(lambda x, y: (x.flatten(0, 1), y)),
    module=unpacked(lambda b: (b[0].unflatten(1, (3, FRAMES)), b[1])),
    refused="may be an image or the frames of a clip",
    outcome="frames and channels can't be told apart; fold them in the module")  # fmt: skip
row(DATASETS, "a clip of two axes", data=of(lambda x, y: (x.flatten(1), y)), refused="must hold a clip",
    module=unpacked(lambda b: (b[0].unflatten(2, (FRAMES, SIZE, SIZE)), b[1])),
    outcome="it has no frames or pixels; return C x T x H x W")  # fmt: skip
row(DATASETS, "an `IterableDataset` with `limit_train_batches`", data=lambda: DataLoader(Stream(), batch_size=BATCH),
    trainer={"limit_train_batches": CLIPS // BATCH}, resumes=False)  # fmt: skip
row(DATASETS, "an `IterableDataset` without a length", data=lambda: DataLoader(Stream(), batch_size=BATCH),
    refused="clips_per_epoch", outcome="the plan needs one; give `clips_per_epoch`")  # fmt: skip
row(DATASETS, "an `IterableDataset` and `clips_per_epoch`", data=lambda: DataLoader(Stream(), batch_size=BATCH),
    multigrid={"clips_per_epoch": CLIPS}, resumes=False)  # fmt: skip

# --- Loaders ---

LOADERS = "Loaders and samplers"


class Own(Sampler[int]):
    """Goes through the data in an order that depends on the epoch."""

    def __init__(self, number):
        self.number, self.epoch = number, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.number

    def __iter__(self):
        return iter([(index + 5 * self.epoch) % self.number for index in range(self.number)])


def as_dict(samples):
    clips, labels = default_collate(samples)
    return {"x": clips, "y": labels}


def mixed(samples):
    clips, labels = default_collate(samples)
    share = float(torch.rand(()))
    return share * clips + (1 - share) * clips.flip(0), labels


def pathways(samples):
    clips, labels = default_collate(samples)
    return [clips[:, :, :1], clips], labels


class Alternating(BatchSampler):
    """Pairs clips of the two halves of the data."""

    def __init__(self, number):
        super().__init__(range(number), BATCH, drop_last=True)

    def __iter__(self):
        return iter([[index, index + CLIPS // 2] for index in range(CLIPS // 2)])


class Balanced(Sampler[int]):
    """Each stretch of as many clips as there are classes has one of each."""

    def __len__(self):
        return CLIPS

    def __iter__(self):
        columns = [torch.randperm(CLIPS // CLASSES) * CLASSES + number for number in range(CLASSES)]
        return iter(torch.stack(columns, dim=1).flatten().tolist())


class Prefetching(DataLoader[Any]):
    def __iter__(self):
        yield from super().__iter__()


def stateful():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what its import says of torch
        from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(Clips(), batch_size=BATCH)


def batches():
    return DataLoader([(clip(i)[None], torch.tensor([label(i)])) for i in range(CLIPS)], batch_size=None)


def resized(samples):
    clips, labels = default_collate(samples)
    return nn.functional.interpolate(clips, (FRAMES, SIZE, SIZE)), labels


row(LOADERS, "`shuffle=True`", data=lambda: loader(shuffle=True))
row(LOADERS, "in order", data=lambda: loader(shuffle=False))
row(LOADERS, "`drop_last=True`", data=lambda: loader(Clips(number=97), drop_last=True))
row(LOADERS, "a last mini-batch that is smaller", data=lambda: loader(Clips(number=97)), clips=97)
row(LOADERS, "`WeightedRandomSampler`",
    data=lambda: loader(shuffle=None, sampler=WeightedRandomSampler([1.0, 2.0] * (CLIPS // 2), CLIPS)))  # fmt: skip
row(LOADERS, "`RandomSampler` with replacement",
    data=lambda: loader(shuffle=None, sampler=RandomSampler(Clips(), replacement=True, num_samples=CLIPS)))  # fmt: skip
row(LOADERS, "`SubsetRandomSampler`",
    data=lambda: loader(Clips(number=110), shuffle=None, sampler=SubsetRandomSampler(range(3, 3 + CLIPS))))  # fmt: skip
row(LOADERS, "your own sampler with `set_epoch`", data=lambda: loader(shuffle=None, sampler=Own(CLIPS)))
row(LOADERS, "`generator=`", data=lambda: loader(generator=torch.Generator().manual_seed(5)))
row(LOADERS, "one worker", data=lambda: loader(num_workers=1))
row(LOADERS, "persistent workers", data=lambda: loader(num_workers=1, persistent_workers=True, prefetch_factor=3))
row(LOADERS, "a `collate_fn` that returns a dict", data=lambda: loader(collate_fn=as_dict),
    module=unpacked(lambda b: (b["x"], b["y"])))  # fmt: skip
row(LOADERS, "mixup in `collate_fn`", data=lambda: loader(collate_fn=mixed))
row(LOADERS, "SlowFast's pathways made in `collate_fn`", data=lambda: loader(collate_fn=pathways), axes="NCTHW",
    module=unpacked(lambda b: (b[0][1], b[1])), refused=None)  # fmt: skip
row(LOADERS, "`batch_size=1`", data=lambda: loader(batch_size=1), shape=BatchShape(1, FRAMES, SIZE))
row(LOADERS, "`batch_sampler=BatchSampler(...)`",
    data=lambda: DataLoader(Clips(), batch_sampler=BatchSampler(RandomSampler(Clips()), BATCH, False)))  # fmt: skip
row(LOADERS, "your own `BatchSampler`", data=lambda: DataLoader(Clips(), batch_sampler=Alternating(CLIPS)),
    refused="has batches of its own",
    outcome="the plan decides how many clips a mini-batch has; use a `sampler`")  # fmt: skip
row(LOADERS, "a list of batches",
    data=lambda: DataLoader(Clips(), batch_sampler=[[i, i + 1] for i in range(0, CLIPS, 2)]),
    refused="has batches of its own",
    outcome="the plan decides how many clips a mini-batch has; use a `sampler`")  # fmt: skip
row(LOADERS, "a sampler with more clips than the data", clips=144,
    data=lambda: loader(shuffle=None, sampler=RandomSampler(Clips(), num_samples=144)))  # fmt: skip
row(LOADERS, "a balanced sampler", data=lambda: loader(shuffle=None, sampler=Balanced()))
row(LOADERS, "a `DistributedSampler`",
    data=lambda: loader(shuffle=None, sampler=DistributedSampler(Clips(), num_replicas=1, rank=0)))  # fmt: skip
row(LOADERS, "a `DataLoader` with its own `__iter__`", data=lambda: Prefetching(Clips(), batch_size=BATCH),
    refused="iterates in its own way", outcome="its work would be lost; use a hook or `collate_fn`")  # fmt: skip
row(LOADERS, "torchdata's `StatefulDataLoader`", data=stateful, needs="torchdata")
row(LOADERS, "resizes in `collate_fn`", data=lambda: loader(collate_fn=resized), refused="collate_fn",
    outcome="that undoes the grid; resize in the dataset")  # fmt: skip
row(LOADERS, "mini-batches made by the dataset (`batch_size=None`)", data=batches, refused="batch_size=None",
    outcome="a mini-batch can't change its number of clips; return one clip")  # fmt: skip

# --- Where the data come from ---

SOURCES = "Where the loader comes from"


class Data(L.LightningDataModule):
    def train_dataloader(self):
        return loader()


class Moved(Data):
    def on_after_batch_transfer(self, batch, dataloader_idx):
        clips, labels = batch
        return (clips - 0.5) / 0.25, labels


class Complete(Script):
    """Has its own loader, made from what the Trainer knows."""

    def train_dataloader(self):
        return loader()


row(SOURCES, "given to `fit`")
row(SOURCES, "a data module", data=Data)
row(SOURCES, "a hook of the data module normalises on the device", data=Moved)
row(SOURCES, "the module's `train_dataloader`", module=Complete, data=None)
row(SOURCES, "validation data", module=WithValidation)
row(SOURCES, "a dict of loaders", data=lambda: {"a": loader(), "b": loader()}, refused="needs one",
    outcome="one plan cuts one dataset; use `ConcatDataset`",
    module=lambda: Script(unpack=lambda b: b["a"] if isinstance(b, dict) else b))  # fmt: skip

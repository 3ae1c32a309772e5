"""Small mini-batches of the script's dataset: whatever its `collate_fn` makes of the samples."""

from collections.abc import Mapping

import pytest
import torch
from lightning.pytorch.callbacks import LambdaCallback
from torch import nn
from torch.utils.data import DataLoader, Dataset, default_collate

from lightning_multigrid import LongCycle, MultigridCallback
from tests.helpers.tiny import CLASSES, Module, begin, clips, fit

HALF = LongCycle(((0.5, 1), (1, 1)))


def folded(samples):
    """The frames of all clips in one axis, and how many each of them has."""
    return {"frames": torch.cat([x.transpose(0, 1) for x, _ in samples]), "lengths": [x.shape[1] for x, _ in samples],
            "labels": torch.tensor([y for _, y in samples])}  # fmt: skip


class Own:
    """A mini-batch that is no collection."""

    def __init__(self, samples):
        self.clips, self.labels = default_collate(samples)


class Table(Mapping):
    """A mapping that can't be made of pairs, as a `TensorDict` can't without its batch size."""

    def __init__(self, samples):
        self.parts = dict(zip(("clips", "labels"), default_collate(samples), strict=True))

    def __getitem__(self, name):
        return self.parts[name]

    def __iter__(self):
        return iter(self.parts)

    def __len__(self):
        return len(self.parts)

    def to(self, device, **_):  # so that Lightning leaves the transfer to it
        return self


UNPACKED = {
    "a mapping of their own": (Table, lambda batch: (batch["clips"], batch["labels"])),
    "folded": (folded, lambda b: (b["frames"].unflatten(0, (len(b["lengths"]), -1)).transpose(1, 2), b["labels"])),
    "of their own": (Own, lambda batch: (batch.clips, batch.labels)),
}


class Script(Module):
    def __init__(self, unpack, net):
        super().__init__()
        self.unpack, self.net = unpack, net

    def training_step(self, batch, batch_idx):
        x, y = self.unpack(batch)
        return nn.functional.cross_entropy(self.net(x), y)


class ByConstant(nn.Module):
    """Takes the clips' frames for those of clips of a constant length: of two short ones it makes one."""

    def __init__(self, frames=None):
        super().__init__()
        self.frames, self.head = frames, nn.Linear(3, CLASSES)

    def forward(self, x):
        frames = x.mean((3, 4)).transpose(1, 2).flatten(0, 1).unflatten(0, (-1, self.frames or x.shape[2]))
        return self.head(frames + frames.mean(1, keepdim=True)).flatten(0, 1).unflatten(0, (len(x), -1)).mean(1)


@pytest.mark.parametrize(("kind", "workers"), [(kind, int(kind == "folded")) for kind in UNPACKED])
def test_grids_are_tried_on_any_kind_of_mini_batch(kind, workers):
    collate, unpack = UNPACKED[kind]
    train = DataLoader(clips(), 4, collate_fn=collate, num_workers=workers)
    begin(Script(unpack, ByConstant()), MultigridCallback(long_cycle=HALF), train=train)
    with pytest.raises(ValueError, match="Script cannot take clips of 4 x"):
        fit(Script(unpack, ByConstant(8)), MultigridCallback(long_cycle=HALF), train=train)


def test_datasets_are_read_once_on_each_grid_and_hooks_see_whole_mini_batches():
    read = []

    class Counted(Dataset):
        def __len__(self):
            return 100

        def __getitem__(self, index):
            read.append(index)
            return clips()[index]

    class Hooked(Module):
        def on_after_batch_transfer(self, batch, dataloader_idx):
            if not self.trainer.global_step and not self.seen:
                arrived.append(batch[0].shape[2:])
            return batch

    arrived, found = [], []
    look = LambdaCallback(on_train_start=lambda *_: found.extend([{*map(tuple, arrived)}, len(read)]))
    begin(Hooked(), MultigridCallback(), look, train=DataLoader(Counted(), 4), max_epochs=1)
    grids, reads = found
    assert len(grids) == 8
    assert reads <= 2 + 8 + 2 + 3  # a look at the first, each grid, whether it draws, the first mini-batches


def test_samples_that_are_views_of_all_data_are_copied_by_themselves():
    sizes = []

    def collate(samples):
        sizes.append((len(samples), max(x.untyped_storage().nbytes() for x, _ in samples)))
        return default_collate(samples)

    tried = []
    look = LambdaCallback(on_train_start=lambda *_: tried.extend(size for number, size in sizes if number > 1))
    fit(Module(), MultigridCallback(), look, train=DataLoader(clips(), 4, collate_fn=collate), fast_dev_run=True)
    assert max(tried) == 3 * 8 * 32 * 32 * 4  # a clip of float32

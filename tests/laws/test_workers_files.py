"""A dataset is read by its workers alone, so what it opens at its first sample is theirs."""

import os

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from lightning_multigrid.training.callback import MultigridCallback
from tests.helpers.tiny import FRAMES, SIZE, Module, fit

NUMBER = 64


class FileOfClips(Dataset):
    """Clips in a file, which is opened at the first sample, as many datasets of HDF5 or LMDB do; labels are indices."""

    def __init__(self, path):
        self.path, self.file, self.opened_by = path, None, []
        path.write_bytes(b"".join(bytes([index]) * (FRAMES * SIZE * SIZE) for index in range(NUMBER)))

    def __len__(self):
        return NUMBER

    def __getitem__(self, index):
        if self.file is None:
            self.file = self.path.open("rb", buffering=0)
            self.opened_by.append(os.getpid())
        size = FRAMES * SIZE * SIZE
        self.file.seek(index * size)
        os.sched_yield()  # a good moment for another process
        clip = torch.frombuffer(bytearray(self.file.read(size)), dtype=torch.uint8).view(1, FRAMES, SIZE, SIZE)
        return clip.expand(3, -1, -1, -1).float(), index


class Reads(Module):
    def training_step(self, batch, batch_idx):
        clips, indices = batch
        self.read = [*getattr(self, "read", []), *zip(clips.flatten(1).mean(1).tolist(), indices.tolist(), strict=True)]
        return super().training_step((clips, indices % 4), batch_idx)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_file_that_is_opened_at_the_first_sample_is_not_shared(tmp_path, workers):
    dataset, module = FileOfClips(tmp_path / "clips"), Reads()
    fit(module, MultigridCallback(), train=DataLoader(dataset, 4, num_workers=workers), max_epochs=2)
    assert len(module.read) >= 2 * NUMBER
    assert all(round(pixels) == index for pixels, index in module.read)
    assert bool(dataset.opened_by) is (workers == 0)
    if dataset.file is not None:
        dataset.file.close()

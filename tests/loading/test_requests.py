import torch
from torch.utils.data import TensorDataset

from lightning_multigrid.loading.fixed_clips import FixedClips
from lightning_multigrid.loading.requests import ClipDataset


class Clips:
    frames, size, stride = 8, 32, 1

    def __len__(self):
        return 203

    def read_clip(self, request):
        return request


def test_fixed_clips_are_a_clip_dataset():
    assert isinstance(FixedClips(TensorDataset(torch.zeros(2, 3, 4, 8, 8))), ClipDataset)
    assert isinstance(Clips(), ClipDataset)
    assert not isinstance(TensorDataset(torch.arange(20)), ClipDataset)

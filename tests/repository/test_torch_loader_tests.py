"""A sample of what torch's own tests ask of a loader; the script that runs them all says where it looks."""

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from tests.helpers.torch_loader_tests import Ours, main


class Stream(IterableDataset):
    def __len__(self):
        return 12

    def __iter__(self):
        return iter(range(12))


DATASETS = {
    "numbers": range(12),
    "texts": [(letter, index) for index, letter in enumerate("abcdefghijkl")],
    "dicts": [{"tensor": torch.full((4, 2), index), "nested": {"number": index}} for index in range(12)],
    "stream": Stream(),
}


@pytest.mark.parametrize("dataset", DATASETS.values(), ids=DATASETS)
@pytest.mark.parametrize("workers", [0, 1])
def test_samples_of_any_kind_come_as_from_torchs_loader(dataset, workers):
    theirs, ours = (kind(dataset, batch_size=3, num_workers=workers) for kind in (DataLoader, Ours))
    assert len(ours) == len(theirs)
    for _ in range(2):
        assert str([*ours]) == str([*theirs])


def test_the_script_says_where_it_looks(tmp_path):
    with pytest.raises(SystemExit, match=r"test_dataloader.py isn't there. Give a folder with the sources of the inst"):
        main([str(tmp_path)])

"""Whether the memory in which workers hand mini-batches over is large enough, said before the first step."""

import shutil
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader, default_collate

from lightning_multigrid import LongCycle, MultigridCallback, ShortCycle
from lightning_multigrid.loading import CollateAtOnce
from lightning_multigrid.training.rehearsal import shared_memory
from tests.helpers.tiny import Module, begin, clips

pytestmark = pytest.mark.rehearsed
# Two workers read two mini-batches each ahead, and one is in use. The coarse ones have 8 clips, and the bytes of the
# baseline's 4, beside the labels.
NEEDED = (2 * 2 + 1) * (4 * 3 * 8 * 32 * 32 * 4 + 8 * 8)


def told(monkeypatch, tmp_path, free, share_reads=False, **arguments):
    """What a `fit` says of a folder with so many bytes free."""
    monkeypatch.setattr(shared_memory, "_FOLDER", str(tmp_path))
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=free))
    cycles = {"long_cycle": LongCycle(((0.5, 1), (1, 1))), "short_cycle": ShortCycle((1,))}
    callback = MultigridCallback(**cycles, share_reads=share_reads)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        begin(Module(), callback, train=DataLoader(clips(), 4, **{"num_workers": 2, **arguments}))
    return [text for text in (str(one.message) for one in caught) if "hand mini-batches over" in text]


def test_too_little_is_said_once_with_what_is_needed(monkeypatch, tmp_path):
    [text] = told(monkeypatch, tmp_path, NEEDED - 1)
    assert "which has 2 MiB free. At 8 x 4 x 32, training needs about 2 MiB there, as up to 40 clips of" in text
    assert "`--shm-size=1g`, or give the loader a smaller `num_workers` or `prefetch_factor`." in text


def test_enough_is_not_mentioned(monkeypatch, tmp_path):
    assert told(monkeypatch, tmp_path, NEEDED) == []


def test_mini_batches_that_share_a_read_are_made_together_and_wait(monkeypatch, tmp_path):
    needed = NEEDED // 5 * (2 * 2 * 2 + 1 + 2)  # two for each that is read ahead, the one in use, and two that wait
    assert told(monkeypatch, tmp_path, needed, share_reads=True) == []
    assert len(told(monkeypatch, tmp_path, needed - 1, share_reads=True)) == 1


def test_what_all_workers_read_together_is_read_ahead_once(monkeypatch, tmp_path):
    arguments = {"num_workers": 4, "prefetch_factor": 3, "collate_fn": CollateAtOnce(default_collate)}
    needed = NEEDED * (3 + 1) // 5
    assert told(monkeypatch, tmp_path, needed, **arguments) == []
    [text] = told(monkeypatch, tmp_path, needed - 1, **arguments)
    assert text.endswith("give the loader a smaller `prefetch_factor`.")


@pytest.mark.parametrize("folder", ["missing", "."])
def test_without_workers_or_such_a_folder_nothing_is_read_for_it(monkeypatch, tmp_path, folder):
    monkeypatch.setattr(shared_memory, "bytes_of_clips", lambda *_: pytest.fail("A sample was read."))
    assert told(monkeypatch, tmp_path / folder, 0, num_workers=2 if folder == "missing" else 0) == []


def test_a_run_that_is_not_rehearsed_reads_nothing_for_it(monkeypatch, tmp_path):
    monkeypatch.setattr(shared_memory, "bytes_of_clips", lambda *_: pytest.fail("A sample was read."))
    monkeypatch.setattr(shared_memory, "_FOLDER", str(tmp_path))
    begin(Module(), MultigridCallback(rehearse=False), train=DataLoader(clips(), 4, num_workers=2))


def test_what_goes_through_pipes_does_not_count(monkeypatch, tmp_path):
    arguments = {"collate_fn": lambda samples: [part.numpy() for part in default_collate(samples)]}
    monkeypatch.setattr(Module, "on_before_batch_transfer", lambda self, batch, _: [*map(torch.from_numpy, batch)])
    assert told(monkeypatch, tmp_path, 0, **arguments) == []

"""Datasets that are read whole: a sample that is read gives clips to several mini-batches."""

import multiprocessing
from collections import defaultdict
from itertools import pairwise
from types import SimpleNamespace

import lightning as L
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from lightning_multigrid import MultigridCallback
from lightning_multigrid.loading import FixedClips
from lightning_multigrid.loading.requests import ClipRequest
from tests.helpers.sampling import sampled
from tests.helpers.tiny import Module, trainer

pytestmark = pytest.mark.usefixtures("_unrehearsed")

VIDEOS, FRAMES = 120, 16


class Counting(Dataset):
    """Clips that say their video, their frames, and what was drawn when they were read; it counts its reads."""

    def __init__(self, length=VIDEOS):
        self.length, self.reads = length, multiprocessing.Value("q", 0)

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        with self.reads.get_lock():
            self.reads.value += 1
        clip = torch.zeros(3, FRAMES, 16, 16)
        clip[0], clip[1], clip[2] = index, torch.arange(FRAMES)[:, None, None], torch.rand(())
        return clip, index % 4


class Noting(Module):
    """Notes video, frames and draw of each clip of each mini-batch."""

    def __init__(self):
        super().__init__()
        self.batches = []

    def on_train_start(self):
        counting = getattr(self.trainer.train_dataloader.dataset, "videos", self.trainer.train_dataloader.dataset)
        counting.reads.value = 0  # after the looks at the first sample

    def training_step(self, batch, batch_idx):
        x, _ = batch
        corner = x[..., 0, 0]
        self.batches.append(
            [(round(c[0, 0].item()), tuple(c[1].round().int().tolist()), round(c[2, 0].item(), 5)) for c in corner]
        )
        return super().training_step(batch, batch_idx)


def train(dataset, workers=0, ckpt_path=None, callbacks=(), max_epochs=4, **arguments):
    L.seed_everything(1, verbose=False)
    module, data = Noting(), DataLoader(dataset, batch_size=2, shuffle=True, num_workers=workers)
    callback = MultigridCallback(**{"share_reads": True} | arguments)
    host = trainer(callback, *callbacks, max_epochs=max_epochs, enable_checkpointing=bool(callbacks))
    host.fit(module, data, ckpt_path=ckpt_path)
    return module, callback.run.plan


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run with the line: its mini-batches and plan, its reads, and a checkpoint of each step."""
    folder, dataset = tmp_path_factory.mktemp("whole"), Counting()
    keep = L.pytorch.callbacks.ModelCheckpoint(folder, "{step}", every_n_train_steps=1, save_top_k=-1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lightning_multigrid.training.begin.check_grids", lambda *_: None)
        module, plan = train(dataset, callbacks=[keep])
    return SimpleNamespace(batches=module.batches, plan=plan, reads=dataset.reads.value, folder=folder)


def test_a_dataset_is_read_no_more_often_with_the_line_than_without(whole):
    script, single, plan = Counting(), Counting(), whole.plan
    trainer(max_epochs=4).fit(Noting(), DataLoader(script, batch_size=2, shuffle=True))
    _, without = train(single, share_reads=False)
    assert script.reads.value == plan.baseline_reads == 4 * VIDEOS
    assert whole.reads == plan.reads
    assert single.reads.value == without.reads
    assert plan.reads < script.reads.value < without.reads
    assert sum(map(len, whole.batches)) == without.reads  # as many clips


def test_clips_of_a_read_are_in_different_mini_batches_and_have_other_frames(whole):
    plan = whole.plan
    steps = [step for epoch in range(plan.epochs) for step in plan.epoch(epoch)]
    of_read = defaultdict(list)
    for number, (step, clips) in enumerate(zip(steps, whole.batches, strict=True)):
        assert len(clips) == step.shape.clips
        for video, frames, drawn in clips:
            of_read[step.place.epoch, step.offset, video, drawn].append((number, frames))
    sharing = [uses for uses in of_read.values() if len(uses) > 1]
    assert {len(uses) for uses in sharing} == {2, 3, 4}  # 3 where an epoch or a phase ends
    for uses in sharing:
        numbers = [number for number, _ in uses]
        assert len(numbers) == len(set(numbers))
        strides = {after - before for _, frames in uses for before, after in pairwise(frames)}
        assert len(strides) == 1  # of a read


def test_four_moments_of_a_sample_share_no_frame():
    clips = FixedClips(Counting())
    for seed in range(60):
        moments = [clips.read_clip(ClipRequest(3, 4, 16, seed, moment=moment))[0][1, :, 0, 0] for moment in range(4)]
        assert sorted(int(frame) for frames in moments for frame in frames) == [*range(16)]


@pytest.mark.parametrize("workers", sampled([1, 2], 2))
def test_neither_reads_nor_mini_batches_depend_on_the_workers(whole, workers):
    several = Counting()
    assert train(several, workers=workers)[0].batches == whole.batches
    assert several.reads.value == whole.reads


def test_a_run_that_continues_in_an_epoch_has_the_same_mini_batches(whole):
    for done in (3, whole.plan.batches_per_epoch + 2):
        rest, _ = train(Counting(), ckpt_path=whole.folder / f"step={done}.ckpt")
        assert rest.batches == whole.batches[done:]


def test_a_checkpoint_of_shared_reads_is_refused_without(whole):
    with pytest.raises(Exception, match="`share_reads=True`, and this run has .* `share_reads=False`"):
        train(Counting(), ckpt_path=whole.folder / "step=3.ckpt", share_reads=False)


def test_samples_of_none_and_followers_of_each_frame():
    """A sample that is left out is left out of all its mini-batches; what belongs to frames follows those of a clip."""

    class Labelled(Counting):
        def __getitem__(self, index):
            clip, label = super().__getitem__(index)
            return None if index % 8 == 5 else {"clip": clip, "label": label, "of_frames": torch.arange(FRAMES)}

    def collate(samples):
        kept = torch.utils.data.default_collate([sample for sample in samples if sample is not None])
        assert torch.equal(kept["clip"][:, 1, :, 0, 0].long(), kept["of_frames"])
        return kept["clip"], kept["label"]

    L.seed_everything(1, verbose=False)
    module, data = Noting(), DataLoader(Labelled(), 8, shuffle=True, collate_fn=collate)
    trainer(MultigridCallback(follow={"of_frames": "T"}, share_reads=True), max_epochs=4).fit(module, data)
    assert all(video % 8 != 5 for batch in module.batches for video, *_ in batch)
    assert {len(frames) for batch in module.batches for _, frames, _ in batch} == {4, 8, 16}


class Stream(IterableDataset):
    def __init__(self, videos):
        self.videos = videos

    def __iter__(self):
        return (self.videos[index] for index in range(len(self.videos)))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_is_shared_too(workers):
    L.seed_everything(1, verbose=False)
    videos, module = Counting(), Noting()
    callback = MultigridCallback(clips_per_epoch=VIDEOS, share_reads=True)
    trainer(callback, max_epochs=4).fit(module, DataLoader(Stream(videos), batch_size=2, num_workers=workers))
    plan = callback.run.plan
    assert [len(batch) for batch in module.batches] == [s.shape.clips for e in range(4) for s in plan.epoch(e)]
    assert videos.reads.value == plan.reads - (workers == 0)  # one sample was read before


def test_with_whole_span_nothing_is_shared():
    data = DataLoader(Counting(), batch_size=2)
    assert not MultigridCallback(share_reads=True, whole_span=True).plan(trainer(), Noting(), data).shares_reads

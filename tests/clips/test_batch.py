from dataclasses import replace

import pytest
import torch

from lightning_multigrid.clips.batch import BrokenVideo, Clip, collate_clips
from lightning_multigrid.pixels.yuv import YuvFormat


def clip(side, *labels, index=0, frames=2, size=4, broken=0):
    crop = torch.full((frames, side, side + 1, 3), side, dtype=torch.uint8)
    return Clip(crop, size, side % 2 == 1, labels, index, tuple(BrokenVideo(f"{i}.mp4", "cut") for i in range(broken)))


def test_a_mini_batch_gives_the_crops_back():
    yuv = Clip(YuvFormat(2, 4, 4).view(torch.arange(48, dtype=torch.uint8)), 4, True, (9,), 6)
    clips = [clip(5, 7, index=3), clip(8, 1, index=4), yuv, clip(2, 0, index=9)]
    batch = collate_clips(clips)
    assert batch.data.shape == (2 * 3 * (5 * 6 + 8 * 9 + 2 * 3) + 48,)
    for crops in (batch.crops(), batch.to("cpu").crops()):
        first, second, planes, last = crops
        assert all(map(torch.equal, (first, second, last), (one.crop for one in clips if one is not yuv)))
        assert (planes.format, planes.data.tolist()) == (yuv.crop.format, list(range(48)))
    assert (len(batch), batch.formats[0].frames, batch.size) == (4, 2, 4)
    assert (batch.flips, batch.indices) == ((True, False, True, False), (3, 4, 6, 9))
    assert (batch.labels, batch.class_ids().tolist()) == (((7,), (1,), (9,), (0,)), [7, 1, 9, 0])


def test_a_mini_batch_carries_the_seed_of_each_clip():
    batch = collate_clips([replace(clip(5, 7), seed=2**63 - 1), clip(8, 1), replace(clip(2, 0), seed=5)])
    assert batch.to("meta").seeds == (2**63 - 1, 0, 5)


def test_labels_of_several_classes_are_ones():
    batch = collate_clips([clip(5, 0, 2), clip(5), clip(5, 1)])
    assert batch.multi_hot(3).tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0]]


def test_a_mini_batch_moves_as_a_whole_and_the_original_stays():
    batch = collate_clips([clip(5, 1), clip(8, 2)])
    moved = batch.to("meta")
    assert moved.device.type == "meta"
    assert [crop.shape for crop in moved.crops()] == [(2, 5, 6, 3), (2, 8, 9, 3)]
    assert batch.device.type == "cpu"


@pytest.mark.cuda
def test_a_pinned_mini_batch_arrives_on_the_gpu():
    clips = [clip(5, 1), clip(8, 2)]
    pinned = collate_clips(clips).pin_memory()
    assert pinned.data.is_pinned()
    moved = pinned.to("cuda")
    assert all(torch.equal(crop.cpu(), c.crop) for crop, c in zip(moved.crops(), clips, strict=True))
    assert moved.class_ids().device.type == "cuda"

import errno
import os
import pickle
import random
import re
from bisect import bisect_right
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

import lightning_multigrid.decode.reader
from lightning_multigrid.clips import CENTRE, BrokenVideo, ClipSampling, VideoDataset, ViewDataset, Views, cut_out
from lightning_multigrid.decode import BrokenVideosError, read_frames
from lightning_multigrid.files import InputFile
from lightning_multigrid.loading.requests import ClipRequest
from lightning_multigrid.pixels import YuvClip, resample_clips
from lightning_multigrid.pixels.augment import draw_rectangle
from lightning_multigrid.sources.builder import ManifestBuilder
from lightning_multigrid.sources.video_list import VideoList
from tests.helpers.preparing import add_table
from tests.helpers.videos import write_video


def gray_video(path, frames=30, height=36, width=48, **arguments):
    """Frame i is a flat gray of level 8 i."""
    levels = (np.full((height, width, 3), 8 * number, np.uint8) for number in range(frames))
    if write_video(path, levels, **arguments).suffix == ".mp4":
        add_table(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Videos a to d of labels 0 to 3, of which b is an empty file, c is missing, and d differs in size and length."""
    folder = tmp_path_factory.mktemp("videos")
    gray_video(folder / "a.mp4")
    (folder / "b.mp4").touch()
    gray_video(folder / "d.mp4", frames=20, height=64, width=40)
    (folder / "all.csv").write_text("a.mp4 0\nb.mp4 1\nc.mp4 2\nd.mp4 3\n")
    (folder / "good.csv").write_text("a.mp4 0\nd.mp4 3\n")
    (folder / "bad.csv").write_text("b.mp4 1\nc.mp4 2\n")
    return folder


SMALL = ClipSampling(frames=8, size=16, stride=2)


def dataset(folder, name, sampling=SMALL):
    return VideoDataset(VideoList(folder / name).read(), sampling)


def viewed(folder, name, views=CENTRE, sampling=SMALL):
    return ViewDataset(VideoList(folder / name).read(), sampling, views)


def levels(crop):
    """The frames of a gray video that a crop shows."""
    return [round(level / 8) for level in crop.float().mean(dim=(1, 2, 3)).tolist()]


def test_a_clip_shows_the_frames_and_pixels_of_its_grid(folder):
    request = ClipRequest(index=0, frames=4, size=12, seed=5)
    clip = dataset(folder, "good.csv").read_clip(request)
    grid = SMALL.draw(length=30, height=36, width=48, frames=4, size=12, rng=random.Random(5))
    top, left, side, _ = grid.box
    whole = read_frames(folder / "a.mp4", grid.indices)
    assert torch.equal(clip.crop, whole[:, top : top + side, left : left + side])
    assert levels(clip.crop) == list(grid.indices)
    assert (clip.size, clip.flip, clip.labels, clip.index, clip.broken) == (12, grid.flip, (0,), 0, ())


def test_what_is_drawn_for_a_clip_on_the_device_does_not_follow_its_stride(folder):
    """It would, if both were drawn from one seed: one in four clips is erased, of those of any stride."""
    data, erased = dataset(folder, "good.csv"), {False: [], True: []}
    for seed in range(240):
        clip = data.read_clip(ClipRequest(0, frames=4, size=12, seed=seed))
        first, second, *_ = levels(clip.crop)
        top, bottom, *_ = draw_rectangle(random.Random(clip.seed), 0.25, size=100)
        erased[second - first > 2].append(top < bottom)
    assert all(len(each) > 50 and 0.1 < np.mean(each) < 0.4 for each in erased.values())


def test_a_video_is_decoded_once_for_all_its_views(folder, monkeypatch):
    reads = []

    class Counting(lightning_multigrid.decode.reader.VideoReader):
        def read(self, indices, box=None):
            reads.append(list(indices))
            return super().read(indices, box)

    monkeypatch.setattr(lightning_multigrid.decode.reader, "VideoReader", Counting)
    views = Views(clips=10, crops=3)
    video = viewed(folder, "good.csv", views)[0]
    # The last of 10 clips starts at 14 * 9 / 10 and takes every other frame up to 12 + 14.
    assert reads == [list(range(27))]
    assert video.crop.shape == (27, 36, 48, 3)
    whole = read_frames(folder / "a.mp4", range(30))
    grids = views.grids(SMALL, 30, 36, 48)
    assert len(video.views) == len(grids) == 30
    for view, grid in zip(video.views, grids, strict=True):
        top, left, side, _ = grid.box
        assert torch.equal(cut_out(video.crop, view), whole[list(grid.indices), top : top + side, left : left + side])


def test_a_clip_is_a_function_of_its_request(folder):
    data = dataset(folder, "all.csv")
    copied = pickle.loads(pickle.dumps(data))  # as a spawned worker gets it
    requests = [ClipRequest(index, 4, 12, seed) for seed in range(6) for index in range(4)]
    assert all(same(data.read_clip(request), copied.read_clip(request)) for request in requests)


def same(a, b):
    rest = [(c.size, c.flip, c.labels, c.index, c.broken) for c in (a, b)]
    return torch.equal(a.crop, b.crop) and rest[0] == rest[1]


def test_items_of_an_ordinary_loader_follow_the_random_state_of_torch(folder):
    data = dataset(folder, "good.csv")
    torch.manual_seed(1)
    first = [data[0] for _ in range(8)]
    torch.manual_seed(1)
    assert all(same(a, data[0]) for a in first)
    assert len({(tuple(levels(clip.crop)), clip.crop.shape) for clip in first}) > 1


# --- broken videos ---


def test_a_broken_video_is_replaced_by_a_readable_one_and_in_evaluation_always_by_the_same(folder):
    data, evaluation = dataset(folder, "all.csv"), viewed(folder, "all.csv")
    clips = [data.read_clip(ClipRequest(index=1, frames=8, size=12, seed=seed)) for seed in range(20)]
    videos = [evaluation[1] for _ in range(5)]
    assert {clip.index for clip in clips} == {0, 3}
    assert len({video.index for video in videos}) == 1
    for clip in (*clips, *videos):
        assert (clip.index, clip.labels) in [(0, (0,)), (3, (3,))]
        assert clip.crop.shape[0] == 8
        assert clip.broken[0].path == str(folder / "b.mp4")
        assert {video.path for video in clip.broken} <= {str(folder / "b.mp4"), str(folder / "c.mp4")}
        assert all(video.reason for video in clip.broken)


def test_one_readable_video_among_a_few_is_found(tmp_path):
    gray_video(tmp_path / "good.mp4")
    (tmp_path / "list.csv").write_text("".join(f"missing{i}.mp4 0\n" for i in range(10)) + "good.mp4 1\n")
    data = dataset(tmp_path, "list.csv")
    assert {data.read_clip(ClipRequest(i, 8, 16, seed=i)).index for i in range(11)} == {10}


def test_without_a_readable_video_the_error_names_the_first(folder):
    with pytest.raises(BrokenVideosError, match=r"None of 2 videos of 2 can be read.*`root`.*The first: .*c\.mp4: \S+"):
        dataset(folder, "bad.csv").read_clip(ClipRequest(index=1, frames=4, size=12, seed=0))


def test_whatever_one_video_does_breaks_that_video_only(folder, monkeypatch):
    class Greedy(lightning_multigrid.decode.reader.VideoReader):
        def __init__(self, path, index):
            if path.endswith("a.mp4"):
                raise MemoryError("8 TB")
            super().__init__(path)

    monkeypatch.setattr(lightning_multigrid.decode.reader, "VideoReader", Greedy)
    clip = dataset(folder, "good.csv").read_clip(ClipRequest(index=0, frames=4, size=12, seed=0))
    assert (clip.broken, clip.labels) == ((BrokenVideo(str(folder / "a.mp4"), "MemoryError: 8 TB"),), (3,))


def test_an_index_beyond_the_dataset_is_an_error_of_the_caller(folder):
    with pytest.raises(IndexError):
        dataset(folder, "good.csv").read_clip(ClipRequest(index=2, frames=4, size=12, seed=0))


# --- Labels that do not hold all the time ---


@pytest.fixture
def actions(folder):
    """Video a, of 30 frames a second, shows class 0 in the frames 0 to 9, class 1 in 10 to 19, and 2 in 15 to 29."""
    builder = ManifestBuilder(folder / "actions.csv", multi_label=True)
    builder.add("a.mp4", [0, 1, 2], where="line 1", spans=[(0, 1 / 3), (1 / 3, 2 / 3), (0.5, 1)])
    return builder.build()


def test_a_training_clip_has_the_labels_of_its_span_and_evaluation_those_of_the_video(actions):
    data, found = VideoDataset(actions, ClipSampling(frames=3, size=16, stride=2)), set()
    for seed in range(120):
        clip = data.read_clip(ClipRequest(0, frames=3, size=16, seed=seed))
        # The gray of a frame is its number; between the frames of a clip, the action goes on.
        first, *_, last = levels(clip.crop)
        shown = range(first, last + 1)
        expected = [0] * (first < 10) + [1] * any(10 <= i < 20 for i in shown) + [2] * (last >= 15)
        assert clip.labels == tuple(expected)
        found.add(clip.labels)
    assert found == {(0,), (0, 1), (1,), (1, 2), (2,)}
    assert ViewDataset(actions, SMALL, CENTRE)[0].labels == (0, 1, 2)


def test_a_stretch_that_ends_before_the_video_begins_has_its_label(tmp_path):
    """Its clips show the first frame; the sound begins 0.6 s before."""
    gray_video(tmp_path / "late.mp4", pts=range(18, 48), audio=True)
    (tmp_path / "list.csv").write_text("path,label,start,end\nlate.mp4,1,0,0.5\nlate.mp4,0,0.5,1.5\n")
    data = dataset(tmp_path, "list.csv")
    assert [data.read_clip(ClipRequest(row, 4, 12, seed=1)).labels for row in range(2)] == [(1,), (0,)]


def test_a_clip_of_a_video_of_unknown_rate_is_described_by_its_frames(tmp_path):
    gray_video(tmp_path / "a.ts", frames=1)
    (tmp_path / "list.csv").write_text("a.ts 0\n")
    told = dataset(tmp_path, "list.csv").describe(ClipRequest(0, 4, 12, seed=1))
    assert re.fullmatch(r".*a\.ts, frames 0 0 0 0(, mirrored)?", told)


def test_frames_that_are_shown_for_unequal_times_have_the_labels_of_those_times(tmp_path):
    """Ten frames in the first second, as of a phone in the dark, and twenty in half of the next. A clip is of three."""
    gray_video(tmp_path / "a.mp4", rate=40, pts=[*range(0, 40, 4), *range(40, 60)])
    builder = ManifestBuilder(tmp_path / "list", multi_label=True)
    builder.add("a.mp4", [0, 1], where="line 1", spans=[(0, 0.99), (0.99, 2)])
    data, seen = VideoDataset(builder.build(), ClipSampling(frames=3, size=16, stride=1)), set()
    for seed in range(60):
        clip = data.read_clip(ClipRequest(0, 3, 16, seed))
        first, *_ = levels(clip.crop)
        assert clip.labels == ((0,) if first + 3 <= 9 else (0, 1) if first <= 9 else (1,))
        seen.add(clip.labels)
    assert seen == {(0,), (0, 1), (1,)}


def of_unknown_rate(monkeypatch):
    """Makes the rate of videos of 30 frames unknown."""

    class Unknown(lightning_multigrid.decode.reader.VideoReader):
        def __init__(self, path, index):
            super().__init__(path, index)
            self.rate *= len(self) != 30

    monkeypatch.setattr(lightning_multigrid.decode.reader, "VideoReader", Unknown)


def test_a_video_of_unknown_rate_has_all_its_labels(actions, monkeypatch):
    of_unknown_rate(monkeypatch)
    data = VideoDataset(actions, ClipSampling(frames=2, size=16, stride=1))
    assert {data.read_clip(ClipRequest(0, 2, 16, seed)).labels for seed in range(20)} == {(0, 1, 2)}


# --- stretches of videos ---


def stretched(folder, *stretches, **arguments):
    """Rows of the video a, which has 30 frames in a second."""
    builder = ManifestBuilder(folder / "stretches.csv", multi_label=True)
    for stretch in stretches:
        builder.add("a.mp4", **({"labels": [0]} | arguments), where="row", stretch=stretch)
    return builder.build()


CHANGES = [{}, {"mode": "segments"}, {"frame_rate": 60}, {"frame_rate": 15, "frames": 4}]


@pytest.mark.parametrize("sampling", [replace(SMALL, **change) for change in CHANGES])
def test_clips_and_views_of_a_stretch_lie_in_it(folder, sampling):
    stretches = {(0, 1 / 3): range(10), (0.34, 0.8): range(10, 24), (0.5, 0.51): range(15, 16), (0.9, 5): range(27, 30)}
    manifest = stretched(folder, *stretches)
    data, views = VideoDataset(manifest, sampling), ViewDataset(manifest, sampling, Views(clips=4))
    for row, within in enumerate(stretches.values()):
        requests = [ClipRequest(row, 4, 16, seed, visit) for seed in range(12) for visit in (None, 3)]
        shown = {level for clip in data.read_clips(requests) for level in levels(clip.crop)}
        assert shown <= set(within)
        assert set(levels(views[row].crop)) <= set(within)
        assert len(shown) > 1 or len(within) < 9


def test_a_clip_of_a_stretch_is_one_of_a_video_that_was_cut_out(folder, tmp_path):
    frames = read_frames(folder / "a.mp4", range(6, 24)).numpy()
    write_video(tmp_path / "a.mp4", frames, codec="ffv1", format="matroska", pix_fmt="bgr0")
    (tmp_path / "one.csv").write_text("a.mp4 0\n")
    for sampling in (SMALL, replace(SMALL, frame_rate=30)):
        stretch = VideoDataset(stretched(folder, (0.2, 0.8)), sampling)
        cut = dataset(tmp_path, "one.csv", sampling)
        for seed in range(10):
            request = ClipRequest(0, 4, 16, seed)
            assert levels(stretch.read_clip(request).crop) == levels(cut.read_clip(request).crop)


def test_labels_of_clips_and_views_of_a_stretch(folder):
    """The spans of labels count from the beginning of the video; what lies outside of the stretch is not seen."""
    actions = {"labels": [0, 1, 2, 3], "spans": [(0, 0.2), (0.2, 0.5), (0.4, 0.8), (0.85, 1)]}
    manifest = stretched(folder, (0.3, 0.8), **actions)
    data, found = VideoDataset(manifest, ClipSampling(frames=3, size=16, stride=1)), set()
    for seed in range(40):
        clip = data.read_clip(ClipRequest(0, 3, 16, seed))
        first, *_, last = levels(clip.crop)
        assert clip.labels == (1,) * (first < 15) + (2,) * (last >= 12)
        found.add(clip.labels)
    assert found == {(1,), (1, 2), (2,)}
    assert ViewDataset(manifest, SMALL, CENTRE)[0].labels == (1, 2)


def test_a_stretch_after_the_end_of_its_video_is_a_broken_video(folder):
    clip = VideoDataset(stretched(folder, (1.0, 2.0), (0.5, 0.6)), SMALL).read_clip(ClipRequest(0, 4, 16, 0))
    assert clip.index == 1
    [tried] = clip.broken
    assert tried == BrokenVideo(str(folder / "a.mp4"), "ends at 1 s, before its stretch from 1 to 2 s begins")


# --- at a frame rate ---


def test_at_its_own_frame_rate_a_video_has_the_clips_that_it_has_without(folder):
    at_its_own = replace(SMALL, frame_rate=30)
    for seed in range(10):
        request = ClipRequest(0, 4, 12, seed)
        clip, own = (dataset(folder, "good.csv", each).read_clip(request) for each in (at_its_own, SMALL))
        assert same(clip, own)
    for views in (CENTRE, Views(clips=3)):
        video, own_video = (viewed(folder, "good.csv", views, each)[0] for each in (at_its_own, SMALL))
        assert torch.equal(video.crop, own_video.crop)
        assert video.views == own_video.views


def test_frames_of_a_variable_rate_are_those_that_are_shown_at_the_times(tmp_path):
    shown = [0, 1, 2, 10, 11, 12, 20, 21, 29]  # in 1/30 s; the last frame lasts as long as the mean of the others
    gray_video(tmp_path / "a.mp4", frames=9, rate=30, pts=shown)
    (tmp_path / "one.csv").write_text("a.mp4 0\n")
    sampling = ClipSampling(frames=4, size=16, stride=3, frame_rate=30)
    at = [bisect_right(shown, tick) - 1 for tick in range(33)]  # the frame on the screen in each 1/30 s
    for seed in range(10):
        start = sampling.draw(length=33, height=36, width=48, frames=4, size=16, rng=random.Random(seed)).indices[0]
        clip = dataset(tmp_path, "one.csv", sampling).read_clip(ClipRequest(0, 4, 16, seed))
        assert levels(clip.crop) == [at[start + 3 * point] for point in range(4)]


def test_clips_of_one_visit_and_views_are_at_the_rate_too(tmp_path):
    gray_video(tmp_path / "a.mp4", rate=60)
    (tmp_path / "one.csv").write_text("a.mp4 0\n")
    manifest, sampling = VideoList(tmp_path / "one.csv").read(), replace(SMALL, frames=4, stride=2, frame_rate=30)
    clips = VideoDataset(manifest, sampling).read_clips([ClipRequest(0, 4, 16, seed, visit=7) for seed in range(3)])
    assert {b - a for clip in clips for a, b in pairwise(levels(clip.crop))} == {4}
    # 15 frames at 30 per second: 3 before a span of 8; source frame 2k + 1 is shown in the middle of each.
    assert levels(ViewDataset(manifest, sampling, CENTRE)[0].crop) == [7, 11, 15, 19]


def test_a_video_of_unknown_rate_is_broken_where_the_rate_is_needed(folder, monkeypatch):
    of_unknown_rate(monkeypatch)
    request = ClipRequest(0, 4, 12, 5)
    assert not dataset(folder, "good.csv").read_clip(request).broken
    clip = dataset(folder, "good.csv", replace(SMALL, frame_rate=30)).read_clip(request)
    assert clip.index == 1
    assert [tried.reason for tried in clip.broken] == ["has no known frame rate, which `frame_rate=30` needs"]


def test_views_of_yuv_planes_are_those_of_rgb(folder):
    """As training on a GPU does, evaluation reads half the bytes; their colours are those of RGB within 3 of 255."""
    views, crops = Views(clips=2, crops=3), {}
    manifest = VideoList(folder / "good.csv").read()
    for pixels in ("rgb", "yuv"):
        data = ViewDataset(manifest, SMALL, views, pixels)
        cuts = [cut_out(video.crop, view) for video in (data[0], data[1]) for view in video.views]
        crops[pixels] = resample_clips(cuts, 16, mean=(0, 0, 0), std=(1, 1, 1))
        assert {type(cut) for cut in cuts} == {YuvClip if pixels == "yuv" else torch.Tensor}
    assert crops["rgb"].shape == crops["yuv"].shape
    assert (crops["rgb"] - crops["yuv"]).abs().max() <= 3.5 / 255


@pytest.mark.parametrize("failures", [1, 2])
@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT])
def test_a_read_that_fails_for_a_moment_is_tried_again(folder, monkeypatch, failures, code):
    """Once: a second failure in a row makes a broken video."""
    data, request, left, own = dataset(folder, "good.csv"), ClipRequest(0, 4, 16, 1), [failures], InputFile.read
    right = data.read_clip(request)

    def read(self, position, size):
        if left[0]:
            left[0] -= 1
            raise OSError(code, os.strerror(code))
        return own(self, position, size)

    monkeypatch.setattr(InputFile, "read", read)
    clip = data.read_clip(request)
    assert left == [0]
    if failures == 1:
        assert (clip.index, clip.broken) == (0, ())
        assert torch.equal(clip.crop, right.crop)
    else:
        [failed] = [video for video in clip.broken if not video.used_anyway]
        assert (failed.index, os.strerror(code) in failed.reason) == (0, True)

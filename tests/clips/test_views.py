import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from lightning_multigrid import VideoClassifier, VideoDataModule, resample_clips
from lightning_multigrid.clips.batch import BrokenVideo, Clip
from lightning_multigrid.clips.sampling import ClipSampling, SourceGrid
from lightning_multigrid.clips.views import CENTRE, VideoBatch, Views, collate_views, share_frames
from lightning_multigrid.decode import Box, read_frames
from tests.helpers.recorder import TINY, Recorder
from tests.helpers.tiny import trainer
from tests.helpers.videos import write_video

KINETICS = ClipSampling(frames=32, size=224, stride=2)
CHARADES = ClipSampling(frames=64, size=224, stride=2)
BORDERED = Views(clips=1, crops=3, size=224, short_side=256)
SEGMENTS = ClipSampling(frames=4, size=224, stride=7, mode="segments")


def starts(views, sampling, length):
    """First frames of the clips, whose other frames follow at the stride."""
    grids = views.grids(sampling, length, 256, 340)
    for grid in grids:
        assert grid.indices == tuple(range(grid.indices[0], grid.indices[0] + 2 * sampling.frames, 2))
    return [grid.indices[0] for grid in grids]


# --- in time ---


@pytest.mark.parametrize(
    ("positions", "sampling", "expected"),
    [
        # 300 frames and a span of 64 leave 236 before the last start: 236 i / 10, cut off, never reaches the end.
        ("kinetics", KINETICS, [0, 23, 47, 70, 94, 118, 141, 165, 188, 212]),
        # Equally far apart: 236 / 9 is 26.2.
        ("offset", KINETICS, [0, 26, 52, 78, 104, 130, 156, 182, 208, 234]),
        # 64 frames at stride 2 reach over 127, and the last clip to the last frame: 173 i / 9, rounded.
        ("charades", CHARADES, [0, 19, 38, 58, 77, 96, 115, 135, 154, 173]),
    ],
)
def test_ten_clips_of_the_protocols(positions, sampling, expected):
    assert starts(Views(positions=positions), sampling, 300) == expected


@pytest.mark.parametrize("positions", ["kinetics", "offset", "charades"])
def test_a_single_clip_is_the_centre(positions):
    assert starts(Views(clips=1, positions=positions), KINETICS, 300) == [118]  # 118 before a span of 64, 118 after it


@pytest.mark.parametrize("positions", ["kinetics", "offset", "charades"])
def test_clips_of_a_short_video_repeat_its_last_frame(positions):
    grids = Views(clips=3, positions=positions).grids(ClipSampling(4, 16, 2), 5, 20, 20)
    assert [grid.indices for grid in grids] == [(0, 2, 4, 4)] * 3


@pytest.mark.parametrize(
    ("length", "frames", "expected"),
    [(40, 4, (5, 15, 25, 35)), (9, 3, (1, 4, 7)), (3, 6, (0, 0, 1, 1, 2, 2)), (1, 3, (0, 0, 0))],
)
def test_a_clip_of_segments_takes_the_centre_of_each(length, frames, expected):
    sampling = ClipSampling(frames=frames, size=224, stride=7, mode="segments")
    assert [grid.indices for grid in Views(clips=1, crops=3).grids(sampling, length, 256, 340)] == [expected] * 3
    # Of two clips each takes the middles of its halves.
    grids = Views(clips=2).grids(SEGMENTS, 40, 256, 340)
    assert [grid.indices for grid in grids] == [(2, 12, 22, 32), (7, 17, 27, 37)]


# --- in space ---


@pytest.mark.parametrize(
    ("views", "frame", "boxes"),
    [
        # Short side 256, 224 in the centre: 16 rows above and below, 58 columns left and right.
        (Views(clips=1), (256, 340), [(16, 58, 224, 224)]),
        # The same part of a frame of half the size.
        (Views(clips=1), (128, 170), [(8, 29, 112, 112)]),
        # Models of 320: short side 352.
        (Views(clips=1, size=320, short_side=352), (352, 468), [(16, 74, 320, 320)]),
        # The whole short side, three times.
        (Views(clips=1, crops=3, size=256), (256, 340), [(0, 0, 256, 256), (0, 42, 256, 256), (0, 84, 256, 256)]),
        (Views(clips=1, crops=3, size=256), (340, 256), [(0, 0, 256, 256), (42, 0, 256, 256), (84, 0, 256, 256)]),
        (Views(clips=1, crops=3, size=256), (512, 680), [(0, 0, 512, 512), (0, 84, 512, 512), (0, 168, 512, 512)]),
        # With a border, as training has it.
        (BORDERED, (256, 340), [(16, 0, 224, 224), (16, 58, 224, 224), (16, 116, 224, 224)]),
        # A square has a left and a right.
        (BORDERED, (256, 256), [(16, 0, 224, 224), (16, 16, 224, 224), (16, 32, 224, 224)]),
    ],
)
def test_crops_of_the_protocols(views, frame, boxes):
    assert [tuple(grid.box) for grid in views.grids(KINETICS, 100, *frame)] == boxes


def test_a_given_short_side_of_training_is_that_of_the_centre():
    sampling = ClipSampling(32, 224, 2, short_side=(280, 320))
    assert CENTRE.pixels(sampling) == (224, 280)
    assert Views(crops=3).pixels(sampling) == (224, 224)


VIEWS = st.builds(
    Views,
    clips=st.integers(1, 12),
    crops=st.sampled_from([1, 3]),
    size=st.sampled_from([None, 112, 256]),
    short_side=st.sampled_from([None, 256, 300.5]),
    positions=st.sampled_from(["kinetics", "offset", "charades"]),
)
LENGTHS, SIDES = st.integers(1, 400), st.integers(1, 600)


@given(views=VIEWS, sampling=st.sampled_from([KINETICS, SEGMENTS]), length=LENGTHS, height=SIDES, width=SIDES)
def test_views_lie_within_their_video(views, sampling, length, height, width):
    grids = views.grids(sampling, length, height, width)
    assert len(grids) == views.per_video == views.clips * views.crops
    assert [grid.indices[0] for grid in grids] == sorted(grid.indices[0] for grid in grids)
    for grid in grids:
        assert len(grid.indices) == sampling.frames
        assert list(grid.indices) == sorted(grid.indices)
        assert 0 <= grid.indices[0] <= grid.indices[-1] < length
        top, left, side, side_too = grid.box
        assert 1 <= side == side_too <= min(height, width)
        assert 0 <= top <= height - side
        assert 0 <= left <= width - side
        assert not grid.flip


@given(views=VIEWS, length=LENGTHS, height=st.integers(1, 40), width=st.integers(1, 40))
def test_shared_frames_hold_every_view(views, length, height, width):
    number, row, column = np.ogrid[:length, :height, :width]
    video = (number * height + row) * width + column  # every pixel has a value of its own
    grids = views.grids(KINETICS, length, height, width)
    frames, box, moved = share_frames(grids)
    assert frames == sorted({index for grid in grids for index in grid.indices})
    shared = cut(video, SourceGrid(tuple(frames), box, flip=False))
    for grid, there in zip(grids, moved, strict=True):
        assert (cut(video, grid) == cut(shared, there)).all()


def cut(video, grid):
    top, left, height, width = grid.box
    return video[list(grid.indices), top : top + height, left : left + width]


# --- Mini-batches ---


def video_views(index=0, views=2, height=5, frames=4, broken=0):
    generator = torch.Generator().manual_seed(index)
    pixels = torch.randint(0, 256, (frames, height, 7, 3), generator=generator, dtype=torch.uint8)
    grids = tuple(SourceGrid((0, frames - 1 - view % frames), Box(1, view % 3, 4, 4), False) for view in range(views))
    tried = tuple(BrokenVideo(f"{index}-{i}.mp4", "cut") for i in range(broken))
    return Clip(pixels, 6, False, (index + 10,), index, tried, views=grids)


def video_batch(videos, labels=None, most=8):
    paths = [f"{video.index}.mp4" for video in videos]
    whole = [(0.0, math.inf)] * len(paths)
    return VideoBatch(collate_views(videos), resample_clips, labels, paths, whole, (), most, {})


def test_a_mini_batch_gives_the_views_back():
    videos = [video_views(3), video_views(8, height=9, frames=5)]
    batch = collate_views(videos)
    expected = [cut(video.crop, view) for video in videos for view in video.views]
    assert torch.equal(video_batch(videos)[0], resample_clips(expected, 6))
    assert (len(batch), batch.size, batch.indices, batch.labels) == (2, 6, (3, 8), ((13,), (18,)))


def test_substitutes_are_left_out_and_the_broken_videos_are_kept():
    batch = collate_views([video_views(0), video_views(1, broken=2), video_views(2, broken=1), video_views(3)])
    assert batch.indices == (0, 3)
    assert [video.path for video in batch.broken] == ["1-0.mp4", "1-1.mp4", "2-0.mp4"]
    left = collate_views([video_views(4, broken=1), video_views(5, broken=1)])  # one stays
    assert (left.indices, len(left.broken)) == ((4,), 2)


@pytest.mark.parametrize("most", [1, 4, 6, 100])
def test_chunks_are_the_clips_of_all_views_in_order(most):
    batch = video_batch([video_views(index, views=3) for index in range(2)], torch.tensor([4, 5]), most)
    chunks = list(batch.chunks())
    assert all(len(chunk) <= most for chunk in chunks)
    assert len(chunks) == -(-6 // most)
    assert torch.equal(torch.cat(chunks), batch[0])
    assert batch[0].shape == (6, 3, 2, 6, 6)


def test_a_mini_batch_is_a_pair_of_clips_and_their_labels():
    videos = [video_views(7, views=2), video_views(9, views=2)]
    clips, labels = batch = video_batch(videos, torch.tensor([4, 5]))
    assert (len(clips), labels.tolist(), batch.indices.tolist(), batch.per_video) == (4, [4, 4, 5, 5], [7, 9], 2)
    _, several = video_batch(videos, torch.tensor([[0, 1], [1, 1]]))
    assert several.tolist() == [[0, 1], [0, 1], [1, 1], [1, 1]]
    _, paths = video_batch(videos)
    assert paths == ["7.mp4", "7.mp4", "9.mp4", "9.mp4"]


# --- From a video to its views ---

LENGTH, HEIGHT, WIDTH = 24, 48, 64


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Wide and tall videos that say where a pixel is from: red is 3 x column, green 3 x row, blue 8 x frame."""
    folder, lines = tmp_path_factory.mktemp("views"), []
    for label, (height, width) in enumerate([(HEIGHT, WIDTH), (WIDTH, HEIGHT)]):
        row, column = np.mgrid[:height, :width]
        places = 3 * column, 3 * row
        frames = [np.stack([*places, np.full_like(row, 8 * number)], axis=-1) for number in range(LENGTH)]
        write_video(folder / f"{label}.mp4", np.uint8(frames), pix_fmt="yuv444p", options={"crf": "4"})
        lines.append(f"{label}.mp4 {label}\n")
    (folder / "list.csv").write_text("".join(lines))
    return folder


def test_views_show_the_frames_and_the_pixels_of_the_protocol(folder):
    views, module = Views(clips=10, crops=3), Recorder()
    trainer().test(module, VideoDataModule(test=folder / "list.csv", test_views=views, **TINY), verbose=False)
    for (clips, labels), (height, width) in zip(module.seen["test"], [(HEIGHT, WIDTH), (WIDTH, HEIGHT)], strict=True):
        assert clips.shape == (30, 3, 4, 16, 16)
        assert len(set(labels.tolist())) == 1
        values = (clips * 0.225 + 0.45) * 255
        # A span of 8 leaves 16 frames before the last start.
        expected = [[16 * clip // 10 + 2 * i for i in range(4)] for clip in range(10) for _ in range(3)]
        shown = (values[:, 2].mean(dim=(2, 3)) / 8).round().int()
        assert shown.tolist() == expected
        # 48 x 48 pixels become 16 x 16: the first point lies 1.5 source pixels from the edge, in the middle of pixel 1.
        left = values[:, 0, :, :, 0].mean(dim=(1, 2)) / 3
        top = values[:, 1, :, 0, :].mean(dim=(1, 2)) / 3
        spare = torch.tensor([0.0, 8.0, 16.0] * 10)
        still = torch.zeros(30)
        assert left.sub(1).allclose(spare if width > height else still, atol=0.7)
        assert top.sub(1).allclose(spare if height > width else still, atol=0.7)


def test_validation_keeps_the_single_centre_view(folder):
    module = Recorder()
    data = VideoDataModule(val=folder / "list.csv", test=folder / "list.csv", **TINY)
    trainer().test(module, data, verbose=False)  # which without views is validation
    data.test_views = Views(crops=3, size=48)
    trainer().validate(module, data, verbose=False)
    seen = [*module.seen["test"], *module.seen["val"]]
    for clips, labels in seen:
        assert clips.shape == (2, 3, 4, 16, 16)
        assert labels.tolist() == [0, 1]
    assert torch.equal(seen[0][0], seen[1][0])
    # 24 frames: 8 before a span of 8, 8 after it.
    blue = (seen[0][0][:, 2].mean(dim=(2, 3)) * 0.225 + 0.45) * 255 / 8
    assert blue.round().tolist() == [[8, 10, 12, 14]] * 2


@pytest.mark.parametrize(("batch_size", "views", "videos"), [(4, 1, 4), (8, 3, 2), (12, 3, 4), (8, 30, 1)])
def test_a_mini_batch_holds_as_many_videos_as_make_batch_size_views(folder, batch_size, views, videos):
    crops = 3 if views % 3 == 0 else 1
    test = {"test": folder / "list.csv", "test_views": Views(clips=views // crops, crops=crops)}
    data = VideoDataModule(folder / "list.csv", **test, **{**TINY, "batch_size": batch_size})
    data.setup("test")
    assert data.test_dataloader().batch_size == videos


# --- The scores of a video ---


class TinyModel(nn.Module):
    """Sees frames, places and channels apart, so that no two views score alike."""

    def __init__(self, classes=7):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.conv = nn.Conv3d(3, 8, 3, padding=1)
            self.head = nn.Linear(8 * 2 * 2 * 2, classes)
        self.clips = []

    def forward(self, clips):
        self.clips.append(len(clips))
        pooled = nn.functional.adaptive_avg_pool3d(self.conv(clips).relu(), 2)
        return 3 * self.head(pooled.flatten(1))


def by_hand(path, views, sampling):
    """Logits of each view, one after the other, without any of the code between the grids and the model."""
    length = 24
    height, width = read_frames(path, [0]).shape[1:3]
    rows = []
    for grid in views.grids(sampling, length, height, width):
        clip = resample_clips([cut(read_frames(path, range(length)), grid)], size=views.size or sampling.size)
        with torch.no_grad():
            rows.append(TinyModel()(clip)[0])
    return torch.stack(rows)


def predict(folder, views, **options):
    model = TinyModel()
    data = VideoDataModule(predict=folder / "list.csv", test_views=views, **TINY)
    return torch.cat(trainer().predict(VideoClassifier(model, 7, **options), data)), model


@pytest.mark.parametrize(
    ("views", "options"),
    [
        (Views(clips=10, crops=3, size=24), {}),
        (Views(clips=10, crops=3, size=24, positions="charades"), {"loss": "bce", "view_fusion": "max"}),
        (Views(clips=1), {"loss": "bce"}),
    ],
)
def test_the_score_of_a_video_is_that_of_a_loop_over_its_views(folder, views, options):
    got, _ = predict(folder, views, **options)
    for row, name in zip(got, ("0.mp4", "1.mp4"), strict=True):
        logits = by_hand(folder / name, views, ClipSampling(4, 16, 2))
        if len(logits) > 1:
            assert (logits.std(dim=0) > 0.01).all()  # else any view would do
        scores = logits.sigmoid() if "loss" in options else logits.softmax(dim=1)
        fused = scores.max(dim=0).values if "view_fusion" in options else scores.mean(dim=0)
        torch.testing.assert_close(row, fused, rtol=1e-5, atol=1e-6)


def test_the_test_of_a_video_is_that_of_its_fused_scores(folder):
    views = Views(clips=10, crops=3)
    data = VideoDataModule(test=folder / "list.csv", test_views=views, num_classes=7, **TINY)
    model = TinyModel()
    [logged] = trainer().test(VideoClassifier(model, 7), data, verbose=False)
    assert model.clips == 2 * [*[4] * 7, 2]  # as many at once as a training takes clips
    losses, places = [], []
    for label in (0, 1):
        logits = by_hand(folder / f"{label}.mp4", views, ClipSampling(4, 16, 2)).double().numpy()
        scores = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        losses.append(-np.log(scores[:, label]).mean())
        fused = scores.mean(axis=0)
        places.append((fused > fused[label]).sum())
    ranks = {f"test/top{most}": np.mean([place < most for place in places]) for most in (1, 5)}
    assert logged == {"test/loss": pytest.approx(np.mean(losses), rel=1e-5)} | ranks


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"crops": 2}, r"`crops` must be 1 \(centre\) or 3 \(left, centre and right\), got 2"),
        ({"clips": 0}, "`clips` must be at least 1, got 0"),
        ({"clips": -2}, "`clips` must be at least 1, got -2"),
        ({"size": 0}, "`size` must be at least 1 pixel, or None, got 0"),
        ({"positions": "random"}, "`positions` must be 'kinetics', 'offset' or 'charades', got 'random'"),
    ],
)
def test_bad_views(arguments, message):
    with pytest.raises(ValueError, match=message):
        Views(**arguments)

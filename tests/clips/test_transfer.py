"""From the worker to the device: mini-batches, and several clips of a visit."""

from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset

from lightning_multigrid import MultigridCallback, VideoDataModule
from lightning_multigrid.clips import ClipSampling, VideoDataset, collate_clips
from lightning_multigrid.clips.orders import RepeatedOrder, repeat_sampler
from lightning_multigrid.decode.reader import VideoReader
from lightning_multigrid.loading import CollateAtOnce, MultigridLoader, MultigridSampler, clip_dataset, shuffled_order
from lightning_multigrid.loading.requests import ClipRequest, read_clips
from lightning_multigrid.schedule import Baseline, BatchShape, MultigridSchedule, Place, Plan
from lightning_multigrid.sources.video_list import VideoList
from tests.helpers.preparing import add_table
from tests.helpers.recorder import TINY, Recorder
from tests.helpers.sampling import sampled
from tests.helpers.tiny import trainer
from tests.helpers.videos import numbered_frames, write_video

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create .* worker processes")

VIDEOS, FRAMES = 11, 24
SCHEDULE = MultigridSchedule(Baseline(BatchShape(2, 8, 32), epochs=4, milestones=(2, 3)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Eleven videos of classes 0 to 2; one of them cannot be read, and one is not YUV 4:2:0."""
    folder = tmp_path_factory.mktemp("videos")
    for number in range(VIDEOS):
        options = {"pix_fmt": "yuv444p"} if number == 4 else {}
        add_table(write_video(folder / f"{number}.mp4", numbered_frames(FRAMES, first=number), **options))
    (folder / "7.mp4").write_text("no video")
    # Each six times, so that there are enough for the coarse mini-batches.
    lines = [f"{number}.mp4 {number % 3}\n" for number in range(VIDEOS)]
    (folder / "list.csv").write_text("".join(lines) * 6)
    (folder / "good.csv").write_text("".join(lines[:7] + lines[8:]) * 4)
    return folder


def videos(folder, pixels="yuv"):
    return VideoDataset(VideoList(folder / "list.csv").read(), ClipSampling(frames=8, size=32, stride=2), pixels)


def loader_of(data, workers, repeats, collate_fn=collate_clips):
    order = RepeatedOrder(0, len(data), repeats)
    sampler = MultigridSampler(Plan(SCHEDULE, repeats * len(data)), order)
    return MultigridLoader(data, sampler, DataLoader(data, num_workers=workers, collate_fn=collate_fn))


def contents(batch):
    return batch.data.numpy().tobytes(), {**vars(batch), "data": None}


# --- Mini-batches ---


@pytest.mark.parametrize(
    ("repeats", "workers"),
    sampled([(1, (0, 2)), (3, (0, 2)), (1, (0, 1, 2, 4)), (3, (0, 1, 2, 4))], (1, (0, 2)), (3, (0, 2))),
)
def test_mini_batches_are_the_same_for_any_number_of_workers(folder, repeats, workers):
    loaders = [loader_of(videos(folder), number, repeats) for number in workers]
    for epoch in (0, 3) if repeats == 1 else (3,):
        for loader in loaders:
            loader.sampler.set_epoch(epoch)
        for step, *batches in zip(Plan(SCHEDULE, repeats * 6 * VIDEOS).epoch(epoch), *loaders, strict=True):
            alone = contents(batches[0])
            assert all(contents(batch) == alone for batch in batches[1:])
            found = len(batches[0]), batches[0].formats[0].frames, batches[0].size
            assert found == (step.shape.clips, step.shape.frames, step.shape.size)


def test_pieces_are_nearly_equal_and_part_no_visit():
    sampler = MultigridSampler(Plan(SCHEDULE, 203), lambda number: shuffled_order(0, number, 203))
    whole = list(sampler)
    for pieces in (2, 3, 5):
        sampler.pieces = pieces
        found = iter(list(sampler))
        for step, expected in zip(sampler.plan.epoch(0), whole, strict=True):
            parts = [next(found) for _ in range(min(pieces, step.shape.clips))]
            assert [request for part in parts for request in part] == expected
            assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_a_timeout_is_for_what_a_worker_reads():
    # Mini-batches have up to 32 clips, the baseline's 2.
    data, sampler = TensorDataset(torch.zeros(1)), MultigridSampler(Plan(SCHEDULE, 203), range)
    stream = CollateAtOnce(list)
    for workers, collate_fn, times in ((2, list, 16), (2, collate_clips, 16), (2, stream, 8), (32, stream, 1)):
        like = DataLoader(data, num_workers=workers, timeout=7, collate_fn=collate_fn)
        assert MultigridLoader(data, sampler, like).timeout == 7 * times


def test_workers_hand_over_bytes_in_shared_memory(folder):
    [batch, *_] = loader_of(videos(folder), workers=2, repeats=1)
    assert batch.data.is_shared()


# --- Repeats ---


@given(st.integers(1, 40), st.integers(1, 5), st.integers(0, 3))
@settings(max_examples=30, deadline=None)
def test_a_pass_visits_every_video_once(length, repeats, number):
    order = RepeatedOrder(5, length, repeats)(number)
    assert Counter(order) == dict.fromkeys(range(length), repeats)
    for clip in range(repeats):  # the clips of a visit are in one place, and videos in the order without repeats
        assert order[clip::repeats] == shuffled_order(5, number, length)


def requests_of_passes(order, clips, passes):
    """The requests of the first passes, a list for each."""
    sampler = MultigridSampler(Plan(SCHEDULE, clips), order)
    requests = list[ClipRequest]()
    for epoch in range(SCHEDULE.epochs):
        sampler.seek(Place(epoch, 0))
        requests += [request for batch in sampler for request in batch]
    return [requests[clips * number : clips * (number + 1)] for number in range(passes)]


def test_clips_of_a_visit_have_seeds_of_their_own_and_one_for_the_span():
    repeated = requests_of_passes(RepeatedOrder(0, 201, 2), 402, passes=5)
    alone = requests_of_passes(lambda number: shuffled_order(0, number, 201), 201, passes=5)
    for number, (requests, of_alone) in enumerate(zip(repeated, alone, strict=True)):
        assert [r.index for r in requests] == RepeatedOrder(0, 201, 2)(number)
        assert len({r.seed for r in requests}) == 402
        pairs = list(zip(requests[::2], requests[1::2], strict=True))
        assert len(pairs) == len({a.visit for a, _ in pairs}) == 201
        assert all(a.visit == b.visit and a.index == b.index for a, b in pairs)
        assert {r.visit for r in of_alone} == {None}  # clips without repeats have no span in common with others


@pytest.mark.parametrize("pixels", ["rgb", "yuv"])
@pytest.mark.parametrize("mode", ["stride", "segments"])
def test_a_visit_decodes_once_and_gives_what_each_request_gives(folder, monkeypatch, pixels, mode):
    manifest = VideoList(folder / "list.csv").read()
    data = VideoDataset(manifest, ClipSampling(frames=8, size=32, stride=2, mode=mode), pixels)
    for index in (0, 4, 7):  # YUV, 4:4:4, and broken: another video takes its place
        requests = [ClipRequest(index, 4, 22, seed, visit=77) for seed in range(4)]
        requests.append(ClipRequest(index, 4, 22, seed=4))
        alone = [data.read_clip(request) for request in requests]
        together = data.read_clips(requests)
        assert contents(collate_clips(together)) == contents(collate_clips(alone))
    opened = opened_videos(monkeypatch)
    data.read_clips([ClipRequest(0, 4, 22, seed, visit=5) for seed in range(4)])
    assert len(opened) == 1


def opened_videos(monkeypatch):
    """The paths of the videos that are opened from now on."""
    opened, own = [], VideoReader.__init__
    monkeypatch.setattr(VideoReader, "__init__", lambda *given: opened.append(given[1]) or own(*given))
    return opened


def test_clips_of_a_visit_lie_in_a_span_of_the_length_of_a_baseline_clip(folder, monkeypatch):
    sampling = ClipSampling(frames=8, size=32, stride=1)
    data = VideoDataset(VideoList(folder / "list.csv").read(), sampling)
    video = SimpleNamespace(height=48, width=64)
    monkeypatch.setattr(ClipSampling, "length", lambda sampling, video: FRAMES)
    starts, strides = set(), set()
    for visit in range(30):
        grids = [data._grid(ClipRequest(0, 2, 22, seed, visit), video) for seed in range(6)]
        frames = [index for grid in grids for index in grid.indices]
        assert max(frames) - min(frames) < 8
        starts.add(min(frames))
        strides |= {grid.indices[1] - grid.indices[0] for grid in grids}
        assert len({grid.box for grid in grids}) > 1
    assert (min(starts), max(starts)) == (0, 16)
    assert strides == {1, 2, 3, 4}


def test_parts_and_joins_of_datasets_pass_visits_and_single_clips_on(folder):
    data = videos(folder)
    joined = clip_dataset(ConcatDataset([Subset(data, [3, 5]), data]))
    assert joined is not None
    requests = [ClipRequest(i, 4, 22, seed, visit=9) for i in (1, 2 + 5) for seed in (0, 1)]
    expected = data.read_clips([ClipRequest(5, 4, 22, seed, visit=9) for seed in (0, 1)] * 2)
    assert contents(collate_clips(read_clips(joined, requests))) == contents(collate_clips(expected))
    assert (len(joined), len(clip_dataset(Subset(data, [3, 5])))) == (2 + len(data), 2)
    for place, index in ((0, 3), (1, 5), (2, 0), (2 + 5, 5)):
        found, alone = (one.read_clip(ClipRequest(at, 4, 22, seed=7)) for one, at in ((joined, place), (data, index)))
        assert contents(collate_clips([found])) == contents(collate_clips([alone]))


def test_a_loader_of_the_baseline_decodes_a_visit_once(folder, monkeypatch):
    data = VideoDataset(VideoList(folder / "good.csv").read(), ClipSampling(frames=8, size=32, stride=2))
    opened = opened_videos(monkeypatch)
    batches = list(DataLoader(data, 4, sampler=repeat_sampler(40, 2), collate_fn=collate_clips))
    assert [len(batch) for batch in batches] == [4] * 20
    assert [index for batch in batches for index in batch.indices] == RepeatedOrder(0, 40, 2)(0)
    assert len({seed for batch in batches for seed in batch.seeds}) == 2 * len(opened) == 2 * 40


# --- In a training ---


def trained(folder, callbacks, **arguments):
    torch.manual_seed(0)
    module = Recorder()
    data = VideoDataModule(folder / "good.csv", **{**TINY, "batch_size": 1} | arguments)
    trainer(*callbacks, max_epochs=2).fit(module, datamodule=data)
    return module


def test_yuv_trains_on_what_rgb_trains_on(folder):
    rgb, yuv, auto = (trained(folder, [MultigridCallback(seed=5)], pixels=pixels) for pixels in ("rgb", "yuv", "auto"))
    for (a, _), (b, _), (c, _) in zip(*(module.seen["train"] for module in (rgb, yuv, auto)), strict=True):
        torch.testing.assert_close(a, b, atol=3.01 / 255 / 0.225, rtol=0)
        assert torch.equal(a, c)  # on a CPU
        assert not torch.equal(a, b)


def test_a_pass_has_so_many_clips_of_each_video_with_the_callback_and_without(folder):
    for callbacks in ([], [MultigridCallback.baseline(seed=5)]):
        module = trained(folder, callbacks, repeats=2, batch_size=16)
        assert [len(labels) for _, labels in module.seen["train"]] == [16] * 5 * 2
    multigrid = trained(folder, [callback := MultigridCallback(seed=5)], repeats=2)
    assert callback.run.plan.clips == 40 * 2
    labels = torch.cat([labels for _, labels in multigrid.seen["train"]])
    # 1.5 passes for each of 2 epochs, up to the rounding of an epoch's steps.
    assert len(labels) == pytest.approx(3 * 40 * 2, rel=0.1)
    for number in range(3):  # 4 videos of each line of `good.csv`: 4 of class 0, and 3 of the others
        assert labels[80 * number : 80 * (number + 1)].bincount().tolist() == [2 * 4 * 4, 2 * 4 * 3, 2 * 4 * 3]

import pickle
import re
import warnings

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset, default_collate
from torchvision.transforms import v2

import lightning_multigrid.decode.reader
from lightning_multigrid import MultigridCallback, VideoClips, VideoDataModule
from lightning_multigrid.loading import ClipDataset, ClipRequest, clip_dataset
from lightning_multigrid.pixels import MEAN, STD
from lightning_multigrid.prepare.prepare_videos import prepare
from lightning_multigrid.sources import ManifestError, VideoList
from lightning_multigrid.video.broken_videos import BrokenVideoWarning, DamagedVideoWarning
from tests.helpers.codings import damage
from tests.helpers.preparing import FAST
from tests.helpers.recorder import Recorder, quiet_trainer
from tests.helpers.tiny import trainer
from tests.helpers.videos import decode_all, number_of, numbered_frames, write_video

SIDE, LENGTH = 40, 30  # pixels and frames of the videos
WHOLE = {"size": SIDE, "short_side": (SIDE, SIDE), "flip": False, "dtype": torch.uint8}  # each pixel as it is


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """16 videos of the classes `jump` and `run`, a broken one, and lists of them."""
    folder = tmp_path_factory.mktemp("videos")
    for number in range(16):
        kind = ("jump", "run")[number % 2]
        (folder / "all" / kind).mkdir(parents=True, exist_ok=True)
        write_video(folder / "all" / kind / f"{number:02d}.mp4", numbered_frames(LENGTH, SIDE, SIDE, first=5 * number))
    rows = [f"all/{path.parent.name}/{path.name},{path.parent.name}\n" for path in sorted(folder.glob("all/*/*.mp4"))]
    (folder / "train.csv").write_text("".join(rows))
    (folder / "val.csv").write_text(rows[-1])  # of the class `run` alone
    (folder / "numbers.csv").write_text("".join(row.replace("jump\n", "0\n").replace("run\n", "1\n") for row in rows))
    (folder / "unlabelled.csv").write_text("".join(row.split(",")[0] + "\n" for row in rows))
    (folder / "broken.mp4").write_text("not a video\n" * 100)
    (folder / "one_broken.csv").write_text("broken.mp4,jump\n" + "".join(rows))
    return folder


def decoded(clips, index):
    """The frames of a video C x T x H x W, by PyAV alone."""
    return torch.from_numpy(decode_all(clips.manifest.path(index))).permute(3, 0, 1, 2)


# --- Which frames and pixels ---


@pytest.mark.parametrize("kept", [True, False], ids=["by its table", "from the beginning"])
def test_a_training_clip_is_frames_at_the_stride_from_a_random_start(folder, tmp_path, kept):
    clips = VideoClips(folder / "train.csv", frames=4, stride=3, index=kept and str(tmp_path / "tables"), **WHOLE)
    assert (tmp_path / "tables").exists() == kept
    firsts = set()
    for index in (0, 15, 15, 15, 15):
        clip, label = clips[index]
        numbers = [number_of(frame) for frame in clip.permute(1, 2, 3, 0).numpy()]
        first = numbers[0] - number_of(decoded(clips, index)[:, 0].permute(1, 2, 0).numpy())
        assert torch.equal(clip, decoded(clips, index)[:, first : first + 12 : 3])
        assert 0 <= first <= LENGTH - 12
        firsts.add(first)
        assert label == (index >= 8)  # the list has all of `jump` first
    assert len(firsts) > 2
    assert clips.classes == ("jump", "run")
    assert (len(clips), clips.num_classes) == (16, 2)


def test_without_training_a_clip_is_the_centre_and_on_a_coarse_grid_spans_as_much(folder):
    clips = VideoClips(folder / "train.csv", frames=4, stride=3, train=False, classes=("jump", "run"), **WHOLE)
    whole = decoded(clips, 2)
    for _ in range(2):
        assert torch.equal(clips[2][0], whole[:, 9:21:3])  # (30 - 12) / 2
    coarse, label = clips.read_clip(ClipRequest(index=2, frames=2, size=SIDE, seed=7))
    assert torch.equal(coarse, whole[:, 9:21:6])
    assert label == 0
    small, _ = clips.read_clip(ClipRequest(index=2, frames=2, size=SIDE // 2, seed=7))
    halved = torch.nn.functional.interpolate(coarse.transpose(0, 1).float(), scale_factor=0.5, mode="bilinear")
    assert (small.transpose(0, 1) - halved).abs().max() <= 0.5  # rounded


def test_validation_clips_are_those_of_the_data_module(folder):
    shape = {"frames": 4, "size": 16, "stride": 2}
    clips = VideoClips(folder / "train.csv", **shape, train=False, classes=("jump", "run"))
    module = Recorder()
    data = VideoDataModule(val=folder / "numbers.csv", batch_size=4, **shape, mean=(0, 0, 0), std=(1, 1, 1))
    quiet_trainer().validate(module, datamodule=data, verbose=False)
    loader = DataLoader(clips, batch_size=4)
    for (ours, labels), (theirs, same) in zip(loader, module.seen["val"], strict=True):
        assert torch.equal(ours, theirs)
        assert torch.equal(labels, same)


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8])
def test_values_are_from_0_to_1_or_bytes(folder, dtype):
    clips = VideoClips(folder / "train.csv", frames=4, size=16, dtype=dtype)
    clip, _ = clips.read_clip(ClipRequest(0, 4, 16, seed=3))
    exact, _ = VideoClips(folder / "train.csv", frames=4, size=16).read_clip(ClipRequest(0, 4, 16, seed=3))
    assert clip.dtype == dtype
    assert (clip.shape, exact.min() >= 0, exact.max() <= 1) == ((3, 4, 16, 16), True, True)
    assert (clip / (255 if dtype == torch.uint8 else 1) - exact).abs().max() <= 0.501 / 255


# --- In a loader ---


@pytest.mark.parametrize("start_method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_an_ordinary_loader_draws_by_the_random_state_of_torch(folder, start_method):
    clips = VideoClips(folder / "train.csv", frames=4, size=16, stride=2, transform=v2.RandomErasing(0.5))
    loader = DataLoader(clips, batch_size=5, shuffle=True, num_workers=2, multiprocessing_context=start_method)
    epochs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        epochs.append([torch.cat(part) for part in zip(*loader, strict=True)])
    assert sorted(epochs[0][1].tolist()) == [0] * 8 + [1] * 8
    assert epochs[0][0].shape == (16, 3, 4, 16, 16)
    assert all(map(torch.equal, epochs[0], epochs[1]))
    assert not torch.equal(epochs[0][0], epochs[2][0])


def fit(loader=None, data=None):
    module = Recorder()
    torch.manual_seed(0)
    host = trainer(MultigridCallback(seed=5), max_epochs=2)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*some come twice in it")
        host.fit(module, loader, datamodule=data)
    return module.seen["train"]


@pytest.mark.parametrize("workers", [0, 2])
def test_with_the_callback_its_mini_batches_are_those_of_the_data_module(folder, workers):
    shape = {"frames": 8, "size": 32, "stride": 2}
    clips = VideoClips(folder / "train.csv", **shape)
    ours = fit(DataLoader(clips, batch_size=2, shuffle=True, num_workers=workers))
    data = VideoDataModule(folder / "train.csv", batch_size=2, **shape, mean=(0, 0, 0), std=(1, 1, 1))
    theirs = fit(data=data)
    assert len({batch.shape[1:] for batch, _ in ours}) > 2  # grids
    for (batch, labels), (same, its_labels) in zip(ours, theirs, strict=True):
        assert torch.equal(batch, same)
        assert torch.equal(labels, its_labels)


def test_it_decodes_what_a_request_needs(folder, monkeypatch):
    reads = []

    class Counting(lightning_multigrid.decode.reader.VideoReader):
        def read(self, indices, box=None):
            reads.append((len(indices), box.height))
            return super().read(indices, box)

    monkeypatch.setattr(lightning_multigrid.decode.reader, "VideoReader", Counting)
    clips = VideoClips(folder / "train.csv", frames=8, size=32, short_side=(SIDE, SIDE))
    assert isinstance(clips, ClipDataset)
    for dataset in (clips, Subset(clips, range(4))):
        known = clip_dataset(dataset)
        shapes = [known.read_clip(ClipRequest(1, frames, 16, seed=0))[0].shape for frames in (2, 8)]
        assert shapes == [(3, 2, 16, 16), (3, 8, 16, 16)]
        assert [frames for frames, _ in reads] == [2, 8]
        assert all(height < SIDE for _, height in reads)
        reads.clear()


# --- What is done to clips ---


def test_a_transform_sees_frames_first_and_its_draws_follow_the_request(folder):
    shape = {"frames": 4, "size": 16, "stride": 2}
    plain = VideoClips(folder / "train.csv", **shape)
    request = ClipRequest(3, 4, 16, seed=9)
    clip, label = plain.read_clip(request)
    normalised, same = VideoClips(folder / "train.csv", **shape, transform=v2.Normalize(MEAN, STD)).read_clip(request)
    mean, std = (torch.tensor(values).view(3, 1, 1, 1) for values in (MEAN, STD))
    assert torch.allclose(normalised, (clip - mean) / std, atol=1e-5)
    assert same == label

    noisy = VideoClips(folder / "train.csv", **shape, transform=lambda clip: clip + torch.rand(()) + np.random.rand())
    state = torch.get_rng_state()
    first, again = noisy.read_clip(request)[0], noisy.read_clip(request)[0]
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(first, again)
    others = [noisy.read_clip(ClipRequest(3, 4, 16, seed))[0] - plain.read_clip(ClipRequest(3, 4, 16, seed))[0]
              for seed in range(5)]  # fmt: skip
    assert len({round(other.mean().item(), 4) for other in others}) == 5


def kept(transform, dtype):
    return pytest.param(transform, dtype, id=type(transform).__name__)


@pytest.mark.parametrize(
    ("transform", "dtype"),
    [
        kept(v2.ColorJitter(0.4, 0.4, 0.4, 0.1), torch.float32),
        kept(v2.RandAugment(), torch.uint8),
        kept(v2.TrivialAugmentWide(), torch.uint8),
        kept(v2.RandomPerspective(p=1), torch.float32),
        kept(v2.GaussianBlur(3), torch.float32),
        kept(v2.RandomGrayscale(p=1), torch.uint8),
        kept(v2.RandomAdjustSharpness(2, p=1), torch.float32),
        kept(v2.RandomEqualize(p=1), torch.uint8),
        kept(v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]), torch.uint8),
    ],
)
def test_transforms_of_torchvision_take_its_clips(folder, transform, dtype):
    clips = VideoClips(folder / "train.csv", frames=4, size=16, transform=transform, dtype=dtype)
    batch, _ = default_collate([clips[0], clips[9]])
    assert batch.shape == (2, 3, 4, 16, 16)


@pytest.mark.parametrize(
    ("transform", "made"),
    [
        (v2.CenterCrop(8), r"\(4, 3, 8, 8\)"),
        (v2.Lambda(lambda clip: clip.transpose(0, 1)), r"\(3, 4, 16, 16\)"),
        (v2.UniformTemporalSubsample(2), r"\(2, 3, 16, 16\)"),
        (v2.Lambda(lambda clip: {"clip": clip}), "a dict"),
    ],
)
def test_a_transform_that_changes_the_grid_is_refused(folder, transform, made):
    clips = VideoClips(folder / "train.csv", frames=4, size=16, transform=transform)
    with pytest.raises(ValueError, match=f"`transform` must keep frames, height .* made {made} of .4, 3, 16, 16"):
        clips[0]


@pytest.mark.rehearsed
def test_a_transform_to_the_size_of_the_baseline_is_refused_before_the_first_step(folder):
    clips = VideoClips(folder / "train.csv", frames=8, size=32, transform=v2.Resize((32, 32)))
    with pytest.raises(ValueError, match=r"cannot take clips of .* fails with .*`transform` must keep frames"):
        fit(DataLoader(clips, batch_size=2, shuffle=True))


# --- Labels ---


def test_a_split_has_the_classes_that_it_is_given(folder):
    train = VideoClips(folder / "all", frames=2, size=16)
    val = VideoClips(folder / "val.csv", frames=2, size=16, train=False, classes=train.classes)
    assert val.classes == train.classes == ("jump", "run")
    assert val[0][1] == 1
    (folder / "classes.txt").write_text("run\njump\n")
    turned = VideoClips(folder / "val.csv", frames=2, size=16, train=False, classes=folder / "classes.txt")
    assert (turned.classes, turned[0][1]) == (("run", "jump"), 0)
    numbered = VideoClips(folder / "numbers.csv", frames=2, size=16, train=False)
    assert (numbered.classes, numbered.num_classes, numbered[15][1]) == ((), 2, 1)


def test_several_labels_are_zeros_and_ones(folder, tmp_path):
    video = folder / "all" / "jump" / "00.mp4"
    (tmp_path / "list.csv").write_text(f"{video},0;2\n{video},\n{video},3\n")
    clips = VideoClips(VideoList(tmp_path / "list.csv", multi_label=True), frames=2, size=16)
    assert [clips[row][1].tolist() for row in range(3)] == [[1, 0, 1, 0], [0, 0, 0, 0], [0, 0, 0, 1]]


def test_a_manifest_and_what_prepare_wrote_are_sources(folder, tmp_path):
    given = VideoList(folder / "val.csv").read(("jump", "run"))
    assert VideoClips(given, frames=2, size=16)[0][1] == 1
    prepare(given, tmp_path / "out", encoding=FAST, workers=0)
    clips = VideoClips(tmp_path / "out", frames=2, size=16, index=str(tmp_path / "tables"))
    assert clips[0][1] == 1
    assert clips.classes == ("jump", "run")
    assert not (tmp_path / "tables").exists()
    with pytest.raises(ValueError, match=r"has 2 classes of its own that are not the 2 of `classes`, or not in their"):
        VideoClips(tmp_path / "out", frames=2, size=16, train=False, classes=("run", "jump"))


@pytest.mark.parametrize(
    ("source", "given", "kind", "message"),
    [
        ("unlabelled.csv", {}, ManifestError, r"unlabelled.csv have no labels. Give each line a label, or a folder"),
        ("val.csv", {"train": False}, ValueError, r"`classes` must be given with `train=False`, because .*val.csv has"),
        ("train.csv", {"dtype": torch.float16}, ValueError, r"`dtype` must be torch.float32 or torch.uint8, got torch"),
        ("train.csv", {"frames": 0}, ValueError, "`frames` must be at least 1, got 0"),
        ("train.csv", {"short_side": (8, 20)}, ValueError, "`short_side` must be two increasing numbers of pixels"),
        ("none.csv", {}, ManifestError, "none.csv"),
    ],
)
def test_what_makes_no_samples_is_refused(folder, source, given, kind, message):
    with pytest.raises(kind, match=message):
        VideoClips(folder / source, **{"frames": 4, "size": 16, **given})


# --- Broken and slow videos ---


@pytest.mark.parametrize(("train", "more"), [(True, ""), (False, " and counts twice in metrics. Take the broken one")])
def test_a_broken_video_is_named_once_and_replaced(folder, train, more):
    clips = VideoClips(folder / "one_broken.csv", frames=2, size=16, train=train, classes=("jump", "run"))
    with pytest.warns(BrokenVideoWarning, match=rf"Cannot read .*broken.mp4: .* Another video takes its place.?{more}"):
        clip, label = clips[0]
    assert clip.shape == (3, 2, 16, 16)
    assert label in (0, 1)
    clips[0]
    pickle.loads(pickle.dumps(clips))[0]


def test_a_damaged_video_is_named_once_and_kept(folder, tmp_path):
    whole = write_video(tmp_path / "whole.mp4", numbered_frames(12, SIDE, SIDE), options={"bf": "0"})
    damage(whole, tmp_path / "damaged.mp4", packet=5, spared=0.3)
    (tmp_path / "list.csv").write_text("whole.mp4,0\ndamaged.mp4,1\n")
    clips = VideoClips(tmp_path / "list.csv", frames=12, size=16)
    with pytest.warns(DamagedVideoWarning, match=r"damaged.mp4: .* Its frames are used as FFmpeg decodes them"):
        assert clips[1][1] == 1
    assert [clips[row][1] for row in (1, 0)] == [1, 0]


def test_of_all_workers_in_all_epochs_one_names_a_broken_video(folder, tmp_path, monkeypatch):
    def write(message, *_):
        with open(tmp_path / "warned", "a") as file:
            file.write(f"{message}\n")

    clips = VideoClips(folder / "one_broken.csv", frames=2, size=16)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", write)
        for _ in range(3):
            assert sum(len(labels) for _, labels in DataLoader(clips, 4, shuffle=True, num_workers=2)) == 17
    [line] = (tmp_path / "warned").read_text().splitlines()
    assert re.match(r"Cannot read .*broken\.mp4", line)

import re
import warnings
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from lightning_multigrid import VideoClassifier, VideoDataModule, resample_clips
from lightning_multigrid.clips import ClipBatch, Views, opening
from lightning_multigrid.decode import BrokenVideosError, TableStore, VideoError
from lightning_multigrid.files import InputFile
from lightning_multigrid.loading import ClipRequest
from lightning_multigrid.prepare import prepare, tables
from lightning_multigrid.sources import ManifestError, VideoList
from lightning_multigrid.video.broken_videos import BrokenVideoWarning, DamagedVideoWarning, SlowVideoWarning
from tests.helpers.codings import damage
from tests.helpers.preparing import FAST, decoded_whole
from tests.helpers.recorder import TINY, Recorder, quiet_trainer
from tests.helpers.tiny import trainer
from tests.helpers.videos import numbered_frames, write_video

GRAYS = {"black": 20, "gray": 120, "white": 220}


def gray_video(path, gray, frames=12):
    write_video(path, [np.full((24, 32, 3), gray, np.uint8)] * frames)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """12 good videos, `black0.mp4` to `white3.mp4`, of the labels 0, 1 and 2; lists of good and broken ones."""
    folder = tmp_path_factory.mktemp("data")
    for level in GRAYS.values():
        for number in range(4):
            gray_video(folder / f"{level}_{number}.mp4", level)
    (folder / "text.mp4").write_text("not a video\n" * 100)
    whole = (folder / "20_0.mp4").read_bytes()
    (folder / "cut.mp4").write_bytes(whole[: len(whole) // 2])
    good = [f"{level}_{number}.mp4 {label}" for number in range(4) for label, level in enumerate(GRAYS.values())]
    write_list(folder / "good.csv", good)
    write_list(folder / "mixed.csv", [*good[:5], "text.mp4 1", *good[5:], "cut.mp4 0", "missing.mp4 2"])  # 3 of 15
    write_list(folder / "worse.csv", [*good[:6], "text.mp4 1", "cut.mp4 0", "missing.mp4 2"])  # 3 of 9
    write_list(folder / "unlabelled.csv", [line.split()[0] for line in good])
    return folder


def write_list(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines))


def shown_label(clip):
    """The label of the gray that a normalised clip shows."""
    gray = (clip.mean().item() * 0.225 + 0.45) * 255
    return min(range(3), key=lambda label: abs(list(GRAYS.values())[label] - gray))


def fit(data, **options):
    module = Recorder()
    torch.manual_seed(0)  # which frames are drawn
    quiet_trainer(**options).fit(module, datamodule=data)
    return module


# --- What the model sees ---


def test_fit_validate_test_and_predict_on_real_videos(folder):
    lists = dict.fromkeys(("train", "val", "test"), folder / "good.csv")
    data = VideoDataModule(**lists, predict=folder / "unlabelled.csv", **TINY)
    module, host = Recorder(), quiet_trainer(max_epochs=2)
    host.fit(module, datamodule=data)
    assert len(module.seen["train"]) == len(module.seen["val"]) == 2 * 3
    host.validate(module, datamodule=data, verbose=False)
    host.test(module, datamodule=data, verbose=False)
    for split, batches in (("train", 2 * 3), ("val", 3 * 3), ("test", 3)):
        assert len(module.seen[split]) == batches
        for clips, labels in module.seen[split]:
            assert clips.shape == (4, 3, 4, 16, 16)
            assert (clips.dtype, labels.dtype) == (torch.float32, torch.int64)
            assert labels.tolist() == [shown_label(clip) for clip in clips]
    for batches in (module.seen["val"][:3], module.seen["test"]):  # in the order of the list, each once
        assert torch.cat([labels for _, labels in batches]).tolist() == [0, 1, 2] * 4
    order = [torch.cat([labels for _, labels in module.seen["train"][i : i + 3]]).tolist() for i in (0, 3)]
    assert sorted(order[0]) == sorted(order[1]) == [0] * 4 + [1] * 4 + [2] * 4
    assert order != [[0, 1, 2] * 4] * 2
    predictions = host.predict(module, datamodule=data)
    assert [len(labels) for labels in predictions] == [4, 4, 4]
    paths = [path for _, batch_paths in module.seen["predict"] for path in batch_paths]
    assert paths == [str(folder / line) for line in (folder / "unlabelled.csv").read_text().split()]
    assert data.broken == {}


def test_evaluation_sees_the_same_clips_each_time_and_with_workers(folder):
    runs = []
    for workers in (0, 2):
        data, module = VideoDataModule(val=folder / "good.csv", num_workers=workers, **TINY), Recorder()
        for _ in range(2):
            quiet_trainer().validate(module, datamodule=data, verbose=False)
        clips = torch.cat([clips for clips, _ in module.seen["val"]])
        runs += [clips[:12], clips[12:]]
    assert all(torch.equal(runs[0], run) for run in runs[1:])


@pytest.mark.parametrize(
    ("precision", "dtype"), [("64-true", torch.float64), ("bf16-true", torch.bfloat16), ("bf16-mixed", torch.float32)]
)
def test_clips_have_the_precision_of_the_trainer(folder, precision, dtype):
    module = fit(VideoDataModule(folder / "good.csv", **TINY), precision=precision, limit_train_batches=1)
    [(clips, labels)] = module.seen["train"]
    assert (clips.dtype, labels.dtype) == (dtype, torch.int64)


def test_the_modules_own_hook_gets_the_finished_batch(folder):
    class Inverting(Recorder):
        def on_after_batch_transfer(self, batch, dataloader_idx):
            return -batch[0], batch[1]

    batches = []
    for module in (Recorder(), Inverting()):
        with warnings.catch_warnings():
            # Lightning believes that the module's hook is lost.
            warnings.filterwarnings("ignore", "You have overridden `on_after_batch_transfer` in both")
            quiet_trainer().validate(module, VideoDataModule(val=folder / "good.csv", **TINY), verbose=False)
        batches.append(torch.cat([clips for clips, _ in module.seen["val"]]))
    assert torch.equal(batches[1], -batches[0])


@pytest.mark.parametrize("flip", [False, True])
def test_about_half_of_the_training_clips_are_mirrored_by_choice(tmp_path, flip):
    frame = np.zeros((24, 32, 3), np.uint8)
    frame[:, 16:] = 255  # black on the left, white on the right
    write_video(tmp_path / "video.mp4", [frame] * 12)
    write_list(tmp_path / "list.csv", ["video.mp4 0"] * 64)
    module = fit(VideoDataModule(tmp_path / "list.csv", tmp_path / "list.csv", flip=flip, **TINY))
    clips = torch.cat([clips for clips, _ in module.seen["train"]])
    mirrored = [bool(clip[..., 0].mean() > clip[..., -1].mean()) for clip in clips]
    assert 10 < sum(mirrored) < 54 if flip else not any(mirrored)
    assert all(clip[..., 0].mean() < clip[..., -1].mean() for clips, _ in module.seen["val"] for clip in clips)


def test_a_picture_of_a_clip_is_what_training_gets_and_names_its_frames(tmp_path):
    write_video(tmp_path / "numbers.mp4", numbered_frames(20, 48, 64), rate=10)
    write_list(tmp_path / "list.csv", ["numbers.mp4 2"])
    data = VideoDataModule(tmp_path / "list.csv", num_classes=3, index=False, **(TINY | {"flip": True}))
    data.setup("fit")
    mirrored = set()
    for seed in range(8):
        clip, text = data.show_clip(request := ClipRequest(0, data.frames, data.size, seed))
        [read] = data.train_dataloader().dataset.read_clips([request])
        batch = ClipBatch([read])
        given = resample_clips(batch.crops(), batch.size, flips=batch.flips, mean=(0, 0, 0), std=(1, 1, 1))
        torch.testing.assert_close(clip, given[0].transpose(0, 1))
        assert (", mirrored" in text) == read.flip
        mirrored.add(read.flip)
        first, last, *frames = map(float, re.findall(r"[\d.]+", text.partition("mp4, ")[2]))
        assert text.startswith(f"2: {tmp_path / 'numbers.mp4'}, ")
        assert (first, last) == (frames[0] / 10, frames[-1] / 10)
        assert len(frames) == data.frames
    assert mirrored == {False, True}


def test_a_picture_of_a_video_that_cannot_be_read_names_it_and_describes_the_one_in_its_place(tmp_path):
    write_video(tmp_path / "numbers.mp4", numbered_frames(20, 48, 64), rate=10)
    (tmp_path / "bad.mp4").write_text("no video")
    write_list(tmp_path / "list.csv", ["bad.mp4 0", "numbers.mp4 2"])
    data = VideoDataModule(tmp_path / "list.csv", num_classes=3, index=False, **TINY)
    data.setup("fit")
    requests = [ClipRequest(index, data.frames, data.size, 0) for index in (0, 1)]
    with pytest.warns(BrokenVideoWarning, match=r"Cannot read .*bad\.mp4"):
        substitute, text = data.show_clip(requests[0])
    clip, described = data.show_clip(requests[1])
    assert torch.equal(substitute, clip)
    assert text == described
    assert text.startswith(f"2: {tmp_path / 'numbers.mp4'}, ")


def test_batches_of_another_kind_pass_untouched(folder):
    class Foreign(VideoDataModule):
        def val_dataloader(self):
            return DataLoader(torch.arange(6.0).view(3, 2), batch_size=3)

    module = Recorder()
    quiet_trainer().validate(module, Foreign(val=folder / "good.csv", **TINY), verbose=False)
    assert module.seen["val"][0].tolist() == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize("validates", [True, False])
def test_lightning_validates_if_there_are_videos_for_it(folder, validates):
    """It fails where Lightning no longer asks the instance of a data module whether it overrides `val_dataloader`."""
    data = VideoDataModule(folder / "good.csv", folder / "good.csv" if validates else None, **TINY)
    module, runner = Recorder(), quiet_trainer()
    runner.fit(module, data)
    assert runner.enable_validation == validates
    assert bool(module.seen.get("val")) == validates


# --- Classes ---


@pytest.fixture
def tree(tmp_path):
    """Folders per class; `val` lacks the first class of `train`."""
    for split, classes in (("train", ("black", "gray", "white")), ("val", ("gray", "white"))):
        for name in classes:
            (tmp_path / split / name).mkdir(parents=True)
            gray_video(tmp_path / split / name / "1.mp4", GRAYS[name])
    return tmp_path


def test_class_ids_of_folders_are_those_of_training(tree):
    module = fit(data := VideoDataModule(tree / "train", tree / "val", **TINY))
    assert data.num_classes == 3
    assert module.seen["val"][0][1].tolist() == [1, 2]
    quiet_trainer().validate(other := Recorder(), VideoDataModule(tree / "train", tree / "val", **TINY), verbose=False)
    assert other.seen["val"][0][1].tolist() == [1, 2]


@pytest.fixture
def trained(tree):
    """A checkpoint of a training with the folders."""
    fit(VideoDataModule(tree / "train", tree / "val", **TINY)).trainer.save_checkpoint(file := tree / "a.ckpt")
    return file


def test_a_checkpoint_whose_labels_counted_other_classes_is_told(tree, trained):
    def validate():
        data = VideoDataModule(tree / "train", tree / "val", **TINY)
        quiet_trainer().validate(Recorder(), data, ckpt_path=trained, verbose=False)

    validate()
    for split in ("train", "val"):
        (tree / split / "gray").rename(tree / split / "a gray one")
    with pytest.warns(UserWarning, match="Label 0 is the class 'a gray one', and was 'black' in the training of the"):
        validate()


@pytest.mark.parametrize("change", ["renamed", "gone", "as it was"])
def test_predictions_have_the_names_of_the_checkpoint(tree, trained, change):
    """The model was trained on these, whatever the folder of training holds now."""
    write_list(tree / "list.csv", (tree / "val").rglob("*.mp4"))
    if change == "renamed":
        (tree / "train" / "black").rename(tree / "train" / "the black one")  # the last of the sorted names
    if change == "gone":
        (tree / "train").rename(tree / "elsewhere")
    module, data = Recorder(), VideoDataModule(tree / "train", predict=tree / "list.csv", **TINY)
    quiet_trainer().predict(module, data, ckpt_path=trained)
    assert data.classes == ("black", "gray", "white")
    named = [batch.classes for batch in module.seen["predict"]]
    assert named == [("black", "gray", "white")] * len(named)


def test_splits_whose_names_have_no_known_numbers_are_refused(folder):
    write_list(folder / "fewer.csv", ["220_0.mp4,white", "120_0.mp4,gray"])
    write_list(folder / "two.csv", ["20_0.mp4,black", "220_0.mp4,white"])
    with pytest.raises(ManifestError, match=r"line 2: 'gray' is not among the 2 classes, such as 'black'\. Correct it"):
        VideoDataModule(folder / "two.csv", folder / "fewer.csv", **TINY).setup("fit")
    with pytest.raises(ValueError, match=r"`val` .*fewer\.csv\) has . classes .* not named in `train` .*good\.csv"):
        VideoDataModule(folder / "good.csv", folder / "fewer.csv", **TINY).setup("fit")
    classes = ("black", "gray", "white")
    VideoDataModule(VideoList(folder / "good.csv", classes=classes), folder / "fewer.csv", **TINY).setup("fit")


def test_fit_says_how_large_the_classes_are(folder, caplog):
    write_list(folder / "uneven.csv", ["20_0.mp4,black", *(f"220_{number}.mp4,white" for number in range(4))])
    VideoDataModule(VideoList(folder / "uneven.csv", classes=("black", "gray", "white")), **TINY).setup("fit")
    said = "3, with 1 to 4 videos each, median 2.5; 1 without a video, such as 'gray'."
    assert f"Classes of `train`: {said}" in caplog.text


def test_videos_of_training_in_another_split_are_said_with_their_number_and_one_of_them(folder):
    write_list(folder / "shared.csv", ["20_1.mp4 0", "text.mp4 1", f"{folder}/./220_3.mp4 2"])
    told = r"2 of the 3 videos of `{}` are also in `train`, such as .*20_1\.mp4\. So .* Take the shared ones out"
    for stage, split in (("fit", "val"), ("validate", "val"), ("test", "test")):
        with pytest.warns(UserWarning, match=told.format(split)):
            VideoDataModule(folder / "good.csv", **{split: folder / "shared.csv"}, **TINY).setup(stage)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        VideoDataModule(folder / "good.csv", predict=folder / "good.csv", **TINY).setup("predict")
        write_list(folder / "other.csv", ["text.mp4 1"])
        VideoDataModule(folder / "good.csv", folder / "other.csv", **TINY).setup("fit")


def test_without_training_videos_folders_say_what_the_classes_are_only_if_all_are_there(tree):
    """The second and the third of three classes have the labels 1 and 2, not 0 and 1."""
    few, names, tiny = tree / "val", tuple(GRAYS), TINY | {"num_classes": 3}
    write_list(tree / "train.csv", [f"train/{name}/1.mp4 {label}" for label, name in enumerate(names)])
    told = r"`test` \(.*val\) names 2 of the 3 classes, .* Give `train`, too, or `test` as a `VideoList` with all `cl"
    with pytest.raises(ValueError, match=told):
        VideoDataModule(test=few, **tiny).setup("test")
    with pytest.raises(ValueError, match="classes that are not named in `train`"):
        VideoDataModule(tree / "train.csv", test=few, **tiny).setup("test")
    classifier = VideoClassifier(torch.nn.Identity(), num_classes=3)
    with pytest.raises(ValueError, match=told):
        quiet_trainer().test(classifier, VideoDataModule(test=few, **TINY), verbose=False)
    ways_out = {"train": tree / "train", "test": few}, {"test": VideoList(few, classes=names)}
    for sources in ways_out:
        quiet_trainer().test(module := Recorder(), VideoDataModule(**sources, **tiny), verbose=False)
        assert module.seen["test"][0][1].tolist() == [1, 2]
    quiet_trainer().test(module := Recorder(), VideoDataModule(test=tree / "train", **tiny), verbose=False)
    assert torch.cat([labels for _, labels, *_ in module.seen["test"]]).tolist() == [0, 1, 2]


def test_several_labels_are_zeros_and_ones_of_all_classes(folder):
    write_list(folder / "several.csv", ["20_0.mp4 0;2", "20_1.mp4 1", "20_2.mp4 4"])
    write_list(folder / "several_val.csv", ["20_0.mp4 0;2", "20_1.mp4 1"])
    lists = (VideoList(folder / f"{name}.csv", multi_label=True) for name in ("several", "several_val"))
    data = VideoDataModule(*lists, **TINY)
    module = Recorder()
    module.training_step = lambda batch, batch_idx: module(batch[0]).sum()
    quiet_trainer().fit(module, datamodule=data)
    assert module.seen["val"][0][1].tolist() == [[1, 0, 1, 0, 0], [0, 1, 0, 0, 0]]


def test_labels_beyond_the_classes_of_training_are_refused(folder):
    write_list(folder / "beyond.csv", ["20_0.mp4 7"])
    data = VideoDataModule(folder / "good.csv", folder / "beyond.csv", **TINY)
    with pytest.raises(ValueError, match=r"`val` .*beyond.csv.* labels up to 7, but .* 3 classes.*`num_classes`"):
        data.setup("fit")
    VideoDataModule(folder / "good.csv", folder / "beyond.csv", num_classes=8, **TINY).setup("fit")


# --- Broken videos ---


def test_broken_videos_are_named_once_and_training_goes_on(folder):
    data = VideoDataModule(folder / "mixed.csv", folder / "mixed.csv", **TINY)
    broken = {str(folder / name) for name in ("text.mp4", "cut.mp4", "missing.mp4")}
    with pytest.warns(BrokenVideoWarning) as caught:
        module = fit(data, max_epochs=3)
    assert set(data.broken) == broken
    messages = [str(warning.message) for warning in caught if warning.category is BrokenVideoWarning]
    assert len(messages) == 3
    for path in broken:
        assert sum(f"Cannot read {path}: {data.broken[path]}" in message for message in messages) == 1
    # In training every clip of the epoch is there, with the label of what it shows.
    assert sum(len(labels) for _, labels in module.seen["train"]) == 3 * 15
    for clips, labels in module.seen["train"]:
        assert labels.tolist() == [shown_label(clip) for clip in clips]
    # In validation the 12 readable videos are there, each once.
    assert torch.cat([labels for _, labels in module.seen["val"][:4]]).tolist() == [0, 1, 2] * 4


def test_a_video_that_is_read_later_is_no_longer_broken(folder, monkeypatch):
    """A drive that fails for moments would end a run of days: here each video fails once, in an epoch of its own."""
    own, opened = opening.open_video, Counter()
    paths = VideoList(folder / "good.csv").read().paths()

    def fails(path, *arguments):
        opened[path] += 1
        if opened[path] == 1 + paths.index(path) % 3:
            raise VideoError(path, "a moment")
        return own(path, *arguments)

    monkeypatch.setattr(opening, "open_video", fails)
    data = VideoDataModule(folder / "good.csv", max_bad_fraction=0.5, index=False, **TINY)
    with pytest.warns(BrokenVideoWarning) as caught:
        fit(data, max_epochs=5)
    named = [str(warning.message) for warning in caught if warning.category is BrokenVideoWarning]
    assert len(named) == len(paths)
    assert data.broken == {}


@pytest.mark.filterwarnings("ignore::lightning_multigrid.video.broken_videos.BrokenVideoWarning")
@pytest.mark.parametrize(("workers", "split"), [(0, "train"), (2, "train"), (0, "val")])
def test_too_many_broken_videos_end_the_run(folder, workers, split):
    lists = {"train": folder / "good.csv", split: folder / "worse.csv"}
    data = VideoDataModule(**lists, num_workers=workers, **TINY)
    message = rf"3 of the 9 videos of `{split}` cannot be read, more than `max_bad_fraction=0.25`.*first: .*mp4: \w+"
    with pytest.raises(BrokenVideosError, match=message):
        fit(data)


@pytest.mark.filterwarnings("ignore::lightning_multigrid.video.broken_videos.BrokenVideoWarning")
@pytest.mark.parametrize("split", ["train", "val"])
def test_stretches_of_broken_videos_count_each(folder, split):
    rows = [line.replace(" ", ",") for line in (folder / "worse.csv").read_text().splitlines()]
    stretches = [f"{row},{start / 10},{start / 10 + 0.1}" for row in rows for start in range(4)]
    write_list(folder / "stretches.csv", ["path,label,start,end", *stretches])
    data = VideoDataModule(**{"train": folder / "good.csv", split: folder / "stretches.csv"}, **TINY)
    message = rf"(?:9|1[0-2]) of the 36 videos of `{split}` cannot be read, .*first: [^;]*cut\.mp4: [^;]*; [^;]*missing"
    with pytest.raises(BrokenVideosError, match=message):
        fit(data)


@pytest.mark.filterwarnings("ignore::lightning_multigrid.video.broken_videos.BrokenVideoWarning")
def test_in_evaluation_a_rank_counts_its_share(folder):
    # 4 of 12 are missing, all of them among the 6 of rank 0: more than 35 % of those, if not of all.
    good = (folder / "good.csv").read_text().splitlines()
    write_list(folder / "uneven.csv", [f"missing{i}.mp4 0" if i in (0, 2, 4, 6) else good[i] for i in range(12)])
    data = VideoDataModule(test=folder / "uneven.csv", max_bad_fraction=0.35, **{**TINY, "batch_size": 1})
    host = trainer(strategy="ddp_fork", devices=2)
    with pytest.raises(Exception, match="4 of the 6 videos of `test` that rank 0 was given cannot be read, more than"):
        host.test(Recorder(), data, verbose=False)


def test_a_machine_that_predicts_needs_no_training_videos(folder):
    data = VideoDataModule(folder / "absent.csv", test=folder / "good.csv", predict=folder / "good.csv", **TINY)
    data.setup("predict")
    for stage in ("fit", "test"):
        with pytest.raises(ManifestError, match=r"absent\.csv"):
            data.setup(stage)


def test_names_of_videos_do_not_control_the_terminal(folder, tmp_path):
    rows = [f"{folder}/{line}" for line in (folder / "good.csv").read_text().splitlines()]
    write_list(tmp_path / "list.csv", [*rows, "gone\x1b[2J.mp4 0"])
    with pytest.warns(BrokenVideoWarning, match=r"Cannot read .*gone\\x1b\[2J\.mp4: "):
        fit(VideoDataModule(tmp_path / "list.csv", **TINY))
    with pytest.raises(BrokenVideosError, match=r"gone\\x1b\[2J\.mp4: "), pytest.warns(BrokenVideoWarning):
        fit(VideoDataModule(tmp_path / "list.csv", max_bad_fraction=0, **TINY))


def test_a_wrong_root_ends_the_run_at_once(folder, tmp_path):
    data = VideoDataModule(VideoList(folder / "good.csv", tmp_path), num_workers=1, **TINY)
    with pytest.raises(BrokenVideosError, match=r"None of 12 videos of 12 can be read.*`root`"):
        fit(data)


@pytest.fixture
def damaged(folder, tmp_path):
    """A list for each split with the good videos and one in whose middle FFmpeg conceals damage, in every clip."""
    whole = write_video(tmp_path / "whole.mp4", numbered_frames(12, 24, 32), options={"bf": "0"})
    path = damage(whole, tmp_path / "damaged.mp4", packet=5, spared=0.3)
    names = [f"{folder / f'{level}_0.mp4'} {label}" for label, level in enumerate(GRAYS.values())]
    write_list(tmp_path / "list.csv", [*names, f"{path} 1"])
    split = str(tmp_path / "list.csv")
    return {"train": split, "val": split, "path": str(path)}


def test_damaged_videos_are_kept_and_named_once(damaged):
    path = damaged.pop("path")
    data = VideoDataModule(**damaged, num_workers=1, max_bad_fraction=0, sampling="segments", **TINY)
    with pytest.warns(DamagedVideoWarning) as caught:
        module = fit(data, max_epochs=2)
    messages = [str(warning.message) for warning in caught if warning.category is DamagedVideoWarning]
    assert len(messages) == 1
    assert messages[0].startswith(f"{path}: damaged (frames that FFmpeg conceals: 1, packets")
    assert data.broken == {}
    assert {len(labels) for split in ("train", "val") for _, labels in module.seen[split]} == {4}


# --- Frame tables ---


@pytest.fixture
def source(tmp_path):
    """Six videos for training and three for validation."""
    for split, number in (("train", 6), ("val", 3)):
        for place in range(number):
            (folder := tmp_path / split / "ab"[place % 2]).mkdir(parents=True, exist_ok=True)
            write_video(folder / f"{place}.mp4", numbered_frames(16, 24, 32, first=20 * place + 10 * (split == "val")))
    return tmp_path


def data_of(source, **arguments):
    return VideoDataModule(**{"train": source / "train", "val": source / "val", **TINY, "batch_size": 2, **arguments})


@pytest.mark.parametrize("index", [True, False])
def test_videos_that_are_read_slowly_are_named_once_for_each_reason(source, index, tmp_path):
    """Two of six videos change after they were indexed."""

    class Late(VideoDataModule):
        def setup(self, stage):
            for place in (0, 1):
                write_video(source / "train" / "ab"[place] / f"{place}.mp4", numbered_frames(17, 24, 32))
            super().setup(stage)

    data = Late(source / "train", **{**TINY, "batch_size": 2}, index=str(tmp_path / "tables") if index else False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(data, max_epochs=2)
    named = [str(warning.message) for warning in caught if warning.category is SlowVideoWarning]
    assert len(named) == int(index)
    if index:
        assert re.search(r"train/\w/\d.mp4 has no frame table, so clips are read", named[0])


def missing(data, folder):
    return sum(len(TableStore(folder, m.root).known(m.paths()).missing) for m in data.manifests().values())


@pytest.fixture
def decoded(monkeypatch):
    return decoded_whole(monkeypatch)


def test_a_fit_decodes_each_video_once_and_a_second_one_none(source, decoded, caplog):
    for _ in range(2):
        data = data_of(source, index=str(source / "tables"))
        fit(data, max_epochs=2)
        assert len(decoded) == len(set(decoded)) == 9
        assert missing(data, source / "tables") == 0
    assert sum("Frame tables of 9 videos made" in record.message for record in caplog.records) == 1


def test_a_fit_reads_each_list_once(source, tmp_path, monkeypatch):
    for split in ("train", "val"):
        videos = sorted((source / split).rglob("*.mp4"))
        write_list(tmp_path / f"{split}.csv", ["path,label", *(f"{path},{path.parent.name}" for path in videos)])
    opened, own = [], InputFile.stream
    monkeypatch.setattr(InputFile, "stream", lambda self: opened.append(self.size) or own(self))
    fit(data_of(source, train=tmp_path / "train.csv", val=tmp_path / "val.csv", index=str(tmp_path / "tables")))
    assert sorted(opened) == sorted((tmp_path / f"{split}.csv").stat().st_size for split in ("train", "val"))


def test_labels_are_refused_before_videos_are_decoded_for_their_tables(source, decoded):
    write_list(source / "unlabelled.csv", [str(path) for path in sorted((source / "train").rglob("*.mp4"))])
    with pytest.raises(ValueError, match=r"unlabelled.csv\) have no labels, which `train` needs"):
        fit(data_of(source, train=source / "unlabelled.csv", val=None, index=str(source / "tables")))
    assert decoded == []


def test_without_an_index_nothing_is_kept(source, decoded, monkeypatch):
    monkeypatch.setenv("LIGHTNING_MULTIGRID_CACHE", str(source / "cache"))
    fit(data_of(source, index=False), max_epochs=2)
    assert len(decoded) > 9
    assert not (source / "cache").exists()


def test_a_cache_that_cannot_be_written_is_told_and_the_training_goes_on(source, monkeypatch):
    (source / "cache").write_text("")
    monkeypatch.setenv("LIGHTNING_MULTIGRID_CACHE", str(source / "cache"))
    told = r"while writing to .* read from their beginning.*another folder for frame tables as `index`"
    with pytest.warns(UserWarning, match=told), pytest.warns(SlowVideoWarning, match="has no frame table, so clips"):
        assert fit(data_of(source)).trainer.global_step == 3


@pytest.mark.parametrize("kind", ["validate", "test", "predict"])
def test_an_evaluation_of_stretches_decodes_each_video_once(tmp_path, kind, decoded, caplog):
    """Without a table, each of its 12 stretches would decode the whole video."""
    write_video(tmp_path / "a.mp4", numbered_frames(60, 24, 32), rate=10, options={"g": "5"})
    stretches = [f"a.mp4,{place % 2},{place / 2},{place / 2 + 0.5}" for place in range(12)]
    write_list(tmp_path / "list.csv", ["path,label,start,end", *stretches])
    split = {"validate": "val"}.get(kind, kind)
    for makes in (True, False):
        decoded.clear()
        module, data = Recorder(), VideoDataModule(**{split: tmp_path / "list.csv"}, index=str(tmp_path / "t"), **TINY)
        getattr(quiet_trainer(), kind)(module, data, **({} if kind == "predict" else {"verbose": False}))
        assert sum(len(batch[0]) for batch in module.seen[split]) == 12
        assert len(decoded) == makes
    assert sum("Frame tables of 1 video made" in message for message in caplog.messages) == 1


def test_an_evaluation_of_videos_of_one_row_makes_no_tables_and_reads_by_those_that_are_there(source, decoded):
    data, runner = data_of(source, index=str(source / "tables")), quiet_trainer()
    runner.validate(Recorder(), data, verbose=False)
    assert len(decoded) == 3
    assert missing(data, source / "tables") == 9
    data.trainer = None
    data.prepare_data()  # in a loop of the user's own
    assert missing(data, source / "tables") == 0
    decoded.clear()
    runner.validate(Recorder(), data, verbose=False)
    assert decoded == []


def test_prepared_videos_need_no_tables(source, monkeypatch):
    for split, manifest in data_of(source).manifests().items():
        prepare(manifest, source / "out" / split, FAST)
    monkeypatch.setattr(tables, "index", None)
    fit(data_of(source / "out"))


# --- Arguments ---


def test_the_last_incomplete_mini_batch_is_kept_or_dropped(folder):
    for drop_last, sizes in ((False, [5, 5, 2]), (True, [5, 5])):
        options = {**TINY, "batch_size": 5, "drop_last": drop_last}
        module = fit(VideoDataModule(folder / "good.csv", folder / "good.csv", **options))
        assert [len(labels) for _, labels in module.seen["train"]] == sizes
        assert [len(labels) for _, labels in module.seen["val"]] == [5, 5, 2]


@pytest.mark.parametrize(
    ("stage", "split"), [("fit", "train"), ("validate", "val"), ("test", "test"), ("predict", "predict")]
)
def test_a_stage_without_videos_is_refused(stage, split):
    said = f"`{split}` is None, but .* needed. Give .* as `{split}`; .*--data.{split} FOLDER"
    with pytest.raises(ValueError, match=said):
        VideoDataModule(**TINY).setup(stage)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "`batch_size` must be at least 1, got 0"),
        ({"short_side": (10, 20)}, "`short_side` must be .* not below `size=16`"),
        ({"test_views": Views(size=25, short_side=24)}, "`short_side` must be at least the size of a view, 25"),
        ({"pixels": "nv12"}, "`pixels` must be 'auto', 'rgb' or 'yuv', got 'nv12'"),
        ({"repeats": 0}, "`repeats` must be at least 1, got 0. 1 takes one clip of a video at a time"),
        ({"num_workers": -1}, "`num_workers` must be at least 0, got -1"),
        ({"num_workers": 2, "prefetch_factor": 0}, "`prefetch_factor` must be at least 1, and with `num_workers`"),
        ({"timeout": 9}, "`timeout` must be above 0 seconds, and with `num_workers`, or 0, got 9"),
        ({"max_bad_fraction": 1.5}, r"`max_bad_fraction` must be a share in \[0, 1\], got 1.5"),
        ({"num_classes": 0}, "`num_classes` must be at least 1, or None to count them, got 0"),
        ({"std": (0.2, 0.0, 0.2)}, "`std` above 0"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        VideoDataModule(**{**TINY, **arguments})


@pytest.mark.parametrize("gpu", [False, True])
def test_the_loader_of_training_reads_ahead_waits_and_pins_as_asked(folder, gpu, monkeypatch):
    """A CPU gets no pinned memory, be there a GPU or not."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    data = VideoDataModule(folder / "good.csv", num_workers=1, prefetch_factor=3, timeout=70, **TINY)
    data.setup("fit")
    assert (data.train_dataloader().prefetch_factor, data.train_dataloader().timeout) == (3, 70)
    assert data.train_dataloader().pin_memory is gpu
    strategy = SimpleNamespace(root_device=torch.device("cpu"))
    data.trainer = SimpleNamespace(strategy=strategy, distributed_sampler_kwargs=None)
    assert not data.train_dataloader().pin_memory

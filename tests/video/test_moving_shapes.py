import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import av
import lightning as L
import numpy as np
import pytest
import torch

from lightning_multigrid.loading.requests import ClipRequest
from lightning_multigrid.prepare import tables_folder
from lightning_multigrid.sources import TableStore
from lightning_multigrid.video import moving_shapes as moving_shapes
from lightning_multigrid.video.classifier import VideoClassifier
from lightning_multigrid.video.moving_shapes import MOVING_SHAPES, MovingShapesDataModule
from tests.helpers.movement import MOVEMENT, movement

SHAPES = ["cross", "ring", "square", "triangle"]
DIRECTIONS = ["down", "left", "right", "up"]


def decode(path):
    """T x H x W x 3; PyAV itself, independent of the package's reader."""
    with av.open(str(path)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


def digests(folder):
    """A digest of each file, by its path in the folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def written(root, **arguments):
    """The folder of the dataset, written if it isn't there."""
    data = MovingShapesDataModule(str(root), **arguments)
    data.prepare_data()
    return data.folder


def test_the_videos_get_their_frame_tables(tmp_path):
    data = MovingShapesDataModule(str(tmp_path), train_per_class=1, val_per_class=1)
    data.prepare_data()
    paths = [manifest.path(row) for manifest in data.manifests().values() for row in range(len(manifest))]
    assert paths
    assert TableStore(tables_folder()).missing(paths) == []


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """A training video and a validation video of each class."""
    return written(tmp_path_factory.mktemp("videos"), train_per_class=1, val_per_class=1)


class TestFiles:
    def test_every_class_has_as_many_videos(self, dataset):
        assert {split.name for split in dataset.iterdir()} == {"train", "val"}
        for split in ("train", "val"):
            videos = {folder.name: len(list(folder.glob("*.mp4"))) for folder in (dataset / split).iterdir()}
            assert videos == {f"{shape}-{direction}": 1 for shape in SHAPES for direction in DIRECTIONS}

    def test_labels_are_in_the_order_of_the_folders(self):
        assert list(MOVING_SHAPES) == sorted(f"{shape}-{direction}" for shape in SHAPES for direction in DIRECTIONS)

    def test_videos_are_h264_of_24_frames(self, dataset):
        for path in dataset.glob("*/*/*.mp4"):
            with av.open(str(path)) as container:
                assert container.format.name.startswith("mov,mp4")
                assert container.streams.video[0].codec_context.name == "h264"
            assert decode(path).shape == (24, 64, 80, 3)

    def test_the_compressed_video_still_moves_as_its_class_says(self, dataset):
        for path in dataset.glob("train/*/*.mp4"):
            sign_down, sign_right = MOVEMENT[path.parent.name.split("-")[1]]
            down, right = movement(decode(path))
            assert (np.sign(down) * (abs(down) > 0.5), np.sign(right) * (abs(right) > 0.5)) == (sign_down, sign_right)

    def test_no_two_videos_are_the_same(self, dataset):
        assert len(set(digests(dataset).values())) == 16 * (1 + 1)

    def test_every_video_has_its_own_colours(self, dataset):
        """So neither a class nor a split can be told by its backgrounds."""
        backgrounds = [np.median(decode(path)[0], axis=(0, 1)) for path in sorted(dataset.glob("*/*/0000.mp4"))]
        assert len(np.unique(np.round(backgrounds, -1), axis=0)) > 0.8 * len(backgrounds)

    def test_the_same_seed_gives_the_same_bytes(self, dataset, tmp_path):
        again = written(tmp_path, train_per_class=1, val_per_class=1)
        assert digests(again) == digests(dataset)

    def test_another_seed_gives_other_videos_in_another_folder(self, dataset):
        other = written(dataset.parent, train_per_class=1, val_per_class=1, seed=1)
        assert other != dataset
        assert not set(digests(other).values()) & set(digests(dataset).values())

    def test_hard_videos_are_others_and_of_frames_that_are_decoded_one_by_one(self, dataset):
        hard = written(dataset.parent, train_per_class=1, val_per_class=1, difficulty="hard")
        again = written(dataset.parent / "again", train_per_class=1, val_per_class=1, difficulty="hard")
        assert hard.parent == dataset.parent
        assert hard != dataset
        assert digests(hard) == digests(again)
        assert len(set(digests(hard).values())) == 16 * (1 + 1)
        for path in hard.glob("val/ring-*/*"):
            assert decode(path).shape == (24, 64, 80, 3)
            with av.open(str(path)) as container:
                assert all(packet.is_keyframe for packet in container.demux(video=0) if packet.size)

    def test_more_videos_begin_with_the_same_ones(self, dataset):
        more = written(dataset.parent, train_per_class=1, val_per_class=2)
        assert digests(dataset).items() <= digests(more).items()


class TestCache:
    @pytest.fixture
    def small(self, monkeypatch):
        """A dataset of one class."""
        monkeypatch.setattr(moving_shapes, "SHAPES", ("ring",))
        monkeypatch.setattr(moving_shapes, "DIRECTIONS", ("up",))

    def write(self, root):
        return written(root, train_per_class=4, val_per_class=1)

    def test_written_once(self, small, tmp_path, monkeypatch, capsys):
        folder = self.write(tmp_path)
        assert "Writing the moving shapes" in capsys.readouterr().out
        monkeypatch.setattr(moving_shapes, "_encode", None)
        assert self.write(tmp_path) == folder
        assert capsys.readouterr().out == ""

    @pytest.mark.parametrize("error", [KeyboardInterrupt, OSError("No space left on device")])
    def test_an_interrupted_run_leaves_nothing(self, small, tmp_path, monkeypatch, error, caplog):
        encode = moving_shapes._encode

        def interrupted(path, clip, difficulty):
            if path.parts[-3:] == ("train", "ring-up", "0003"):
                raise error
            encode(path, clip, difficulty)

        with monkeypatch.context() as patch:
            patch.setattr(moving_shapes, "_encode", interrupted)
            expected = pytest.raises(type(error) if isinstance(error, OSError) else error)
            with expected, caplog.at_level("INFO", logger="lightning.pytorch.utilities.rank_zero"):
                self.write(tmp_path)
        said = [message for message in caplog.messages if "none of them is kept" in message]
        assert len(said) == (error is KeyboardInterrupt)
        assert list(tmp_path.iterdir()) == []
        assert len(digests(self.write(tmp_path))) == 4 + 1

    def test_what_a_killed_run_leaves_is_not_taken_for_the_dataset(self, small, tmp_path, monkeypatch):
        """While it is being written, there is no folder of the dataset's name."""
        expected = self.write(tmp_path / "elsewhere").name
        encode, seen = moving_shapes._encode, []

        def watched(path, clip, difficulty):
            seen.extend(entry.name for entry in (tmp_path / "here").iterdir())
            encode(path, clip, difficulty)

        monkeypatch.setattr(moving_shapes, "_encode", watched)
        assert self.write(tmp_path / "here").name == expected
        assert seen
        assert expected not in seen

    def test_two_runs_at_once(self, small, tmp_path):
        with ThreadPoolExecutor(4) as pool:
            folders = list(pool.map(self.write, [tmp_path] * 4))
        assert set(folders) == set(tmp_path.iterdir())
        assert digests(folders[0]) == digests(self.write(tmp_path / "alone"))

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"train_per_class": 0}, "`train_per_class` must be at least 1, got 0"),
            ({"val_per_class": -1}, "`val_per_class` must be at least 1, got -1"),
            ({"seed": -1}, "`seed` must be at least 0, got -1"),
            ({"difficulty": "fair"}, "`difficulty` must be one of easy, hard, got 'fair'"),
        ],
    )
    def test_numbers_out_of_range(self, tmp_path, arguments, message):
        with pytest.raises(ValueError, match=message):
            written(tmp_path, **arguments)
        assert list(tmp_path.iterdir()) == []

    def test_another_difficulty_is_refused_where_it_is_written(self):
        with pytest.raises(ValueError, match="`difficulty` must be one of easy, hard, got 'fair'"):
            MovingShapesDataModule(difficulty="fair")

    def test_a_folder_that_cannot_be_written(self, tmp_path):
        (tmp_path / "file").touch()
        with pytest.raises(OSError, match=r"cannot be written to .*file.*`root`, or as.*LIGHTNING_MULTIGRID_CACHE"):
            written(tmp_path / "file" / "root")


class Brightness(torch.nn.Module):
    """Logits from the mean of the clip."""

    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(1, 16)

    def forward(self, clips):
        return self.head(clips.mean(dim=(1, 2, 3, 4))[:, None])


class TestDataModule:
    @pytest.fixture
    def data(self, dataset):
        """Over the videos that are there."""
        return MovingShapesDataModule(str(dataset.parent), train_per_class=1, val_per_class=1, num_workers=0)

    def test_training_writes_the_videos_first(self, tmp_path, monkeypatch):
        """From an empty cache to a validated model, with the defaults but for the number of videos."""
        monkeypatch.setenv("LIGHTNING_MULTIGRID_CACHE", str(tmp_path / "cache"))
        shapes = []

        class Watch(L.Callback):
            def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
                shapes.append((tuple(batch[0].shape), len(batch[1])))

        data = MovingShapesDataModule(train_per_class=1, val_per_class=1, num_workers=0)
        quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        trainer = L.Trainer(
            max_epochs=1,
            accelerator="cpu",
            enable_model_summary=False,
            log_every_n_steps=1,
            callbacks=[Watch()],
            **quiet,
        )
        trainer.fit(VideoClassifier(Brightness(), 16, schedule="constant"), data)
        assert shapes == [((8, 3, 16, 40, 40), 8)] * 2
        assert trainer.callback_metrics["val/top1"] <= 1
        assert len(list(tmp_path.glob("cache/*/*/*/*.mp4"))) == 16 + 16

    def test_labels_are_the_classes(self, data):
        data.setup("fit")
        data.setup("test")
        for loader, videos in (
            (data.train_dataloader(), 16),
            (data.val_dataloader(), 16),
            (data.test_dataloader(), 16),
        ):
            manifest = loader.dataset.manifest
            assert len(manifest) == videos
            assert manifest.classes == MOVING_SHAPES
            for index in range(videos):
                assert MOVING_SHAPES[manifest.label(index)] == Path(manifest.path(index)).parent.name

    @pytest.mark.parametrize(("size", "smallest"), [(40, 0.659), (28, 0.461), (20, 0.329)])
    def test_training_clips_are_crops_that_are_never_mirrored(self, data, size, smallest):
        """Of a short side from 256 s/224 to 340 pixels in the paper, s: crops of s/340 to 224/256 of the frame."""
        assert smallest == pytest.approx(size * 224 / 40 / 340, abs=0.001)
        data.setup("fit")
        dataset = data.train_dataloader().dataset
        clips = [dataset.read_clip(ClipRequest(seed % 16, frames=4, size=size, seed=seed)) for seed in range(100)]
        assert not any(clip.flip for clip in clips)
        shares = np.array([clip.crop.shape[1] for clip in clips]) / 64
        pixel = 1 / 64
        assert smallest - pixel <= shares.min() < smallest + 2 * pixel
        assert 0.875 - 3 * pixel < shares.max() <= 0.875 + pixel

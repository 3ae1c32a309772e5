import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import av
import numpy as np
import pytest

from lightning_multigrid.video import moving_shapes as moving_shapes
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
    """The folder of the dataset, written if it isn't there, without frame tables."""
    data = MovingShapesDataModule(str(root), **arguments)
    data.index = False
    data.prepare_data()
    return data.folder


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """A training video and a validation video of each class."""
    return written(tmp_path_factory.mktemp("videos"), train_per_class=1, val_per_class=1)


class TestFiles:
    def test_videos_are_h264_of_24_frames(self, dataset):
        paths = list(dataset.glob("*/*/*.mp4"))
        assert len(paths) == 2 * 16
        for path in paths:
            with av.open(str(path)) as container:
                assert container.format.name.startswith("mov,mp4")
                assert container.streams.video[0].codec_context.name == "h264"
            assert decode(path).shape == (24, 64, 80, 3)

    def test_the_compressed_video_still_moves_as_its_class_says(self, dataset):
        for path in dataset.glob("train/*/*.mp4"):
            sign_down, sign_right = MOVEMENT[path.parent.name.split("-")[1]]
            down, right = movement(decode(path))
            assert (np.sign(down) * (abs(down) > 0.5), np.sign(right) * (abs(right) > 0.5)) == (sign_down, sign_right)

    def test_the_same_seed_gives_the_same_bytes(self, dataset, tmp_path):
        again = written(tmp_path, train_per_class=1, val_per_class=1)
        assert digests(again) == digests(dataset)

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

    @pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
    def test_an_interrupted_run_leaves_nothing(self, small, tmp_path, monkeypatch, error):
        """And while it is writing, there is no folder of the dataset's name, for a killed one to leave."""
        encode, seen = moving_shapes._encode, set()

        def interrupted(path, clip, difficulty):
            seen.update(entry.name for entry in tmp_path.iterdir())
            if path.parts[-3:] == ("train", "ring-up", "0003"):
                raise error
            encode(path, clip, difficulty)

        with monkeypatch.context() as patch:
            patch.setattr(moving_shapes, "_encode", interrupted)
            with pytest.raises(error):
                self.write(tmp_path)
        assert len(seen) == 1
        assert seen.pop().startswith(".")
        assert list(tmp_path.iterdir()) == []
        assert len(digests(self.write(tmp_path))) == 4 + 1

    def test_two_runs_at_once(self, small, tmp_path):
        with ThreadPoolExecutor(4) as pool:
            folders = list(pool.map(self.write, [tmp_path] * 4))
        assert set(folders) == set(tmp_path.iterdir())
        assert digests(folders[0]) == digests(self.write(tmp_path / "alone"))

    def test_an_unknown_difficulty(self):
        with pytest.raises(ValueError, match="`difficulty` must be one of easy, hard, got 'fair'"):
            MovingShapesDataModule(difficulty="fair")


class TestDataModule:
    @pytest.fixture
    def data(self, dataset):
        """Over the videos that are there."""
        return MovingShapesDataModule(str(dataset.parent), train_per_class=1, val_per_class=1, num_workers=0)

    def test_labels_are_the_classes_and_nothing_is_mirrored(self, data):
        data.setup("fit")
        data.setup("test")
        assert not data.clip_sampling.flip
        for loader in (data.train_dataloader(), data.val_dataloader(), data.test_dataloader()):
            manifest = loader.dataset.manifest
            assert (len(manifest), manifest.classes) == (16, MOVING_SHAPES)
            for index in range(16):
                assert MOVING_SHAPES[manifest.label(index)] == Path(manifest.path(index)).parent.name

import hashlib
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise, product
from pathlib import Path

import av
import numpy as np
import pytest

from lightning_multigrid.video import moving_shapes as moving_shapes
from lightning_multigrid.video.moving_shapes import MOVING_SHAPES, MovingShapesDataModule, draw_clip
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


# --- The clips ---

DIFFICULTIES = ["easy", "hard"]
OPPOSITE = {"down": "up", "up": "down", "left": "right", "right": "left"}


def along_and_across(clip, direction):
    """Pixels per frame that a clip moves to a direction, and at right angles to it."""
    down, right = movement(clip)
    sign_down, sign_right = MOVEMENT[direction]
    return (down * sign_down, right) if sign_down else (right * sign_right, down)


@pytest.mark.parametrize("difficulty", DIFFICULTIES)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_clip_played_backwards_is_one_of_the_opposite_direction(direction, difficulty):
    """So the two directions have the same frames, and a single frame cannot tell them apart."""
    for shape in SHAPES:
        clip = draw_clip(shape, direction, np.random.default_rng(3), difficulty)
        backwards = draw_clip(shape, OPPOSITE[direction], np.random.default_rng(3), difficulty)
        np.testing.assert_array_equal(clip[::-1], backwards)


def test_where_the_shapes_are_does_not_tell_the_axis_of_the_movement():
    """Over many clips each pixel is covered as often, whatever the direction."""
    share = {}
    for direction in ("right", "down"):
        clips = [draw_clip("square", direction, np.random.default_rng((9, seed))) for seed in range(80)]
        bright = np.stack([clip[::8].max(axis=3) > 127 for clip in clips])
        share[direction] = bright.reshape(-1, 4, 16, 5, 16).mean(axis=(0, 2, 4))
    np.testing.assert_allclose(share["right"], share["down"], atol=0.06)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_move_one_to_two_pixels_per_frame_to_the_direction(shape, direction):
    along, across = along_and_across(draw_clip(shape, direction, np.random.default_rng(5)), direction)
    assert 0.75 <= along <= 2.25
    assert abs(across) <= 0.25


def test_any_crop_of_a_training_shows_a_shape():
    """The smallest crop is 40 pixels of a short side of 340/224 x 40, of 64 pixels in the file: 42 pixels."""
    for seed, shape in enumerate(SHAPES):
        frame = draw_clip(shape, "right", np.random.default_rng(seed))[0].astype(int)
        shown = (np.abs(frame - np.median(frame, axis=(0, 1))).max(axis=2) > 40).astype(int)
        windows = np.lib.stride_tricks.sliding_window_view(shown, (42, 42))
        assert windows.sum(axis=(2, 3)).min() > 30


def difference(shapes, direction, seed):
    """Where two hard clips that differ in their shape only are not the same: T x H x W, in levels."""
    first, second = (draw_clip(s, direction, np.random.default_rng(seed), "hard").astype(int) for s in shapes)
    return np.abs(first - second).max(axis=3)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_hard_shapes_still_move_as_the_label_says_and_the_clutter_tells_nothing_of_the_shape(direction):
    """What differs between a square and a ring is a part of them; beyond the shapes, clips are equal to the pixel."""
    along, across = along_and_across(difference(("square", "ring"), direction, seed=1)[..., None], direction)
    assert 0.5 <= along <= 2.5
    assert abs(across) <= 0.25
    for shapes in pairwise(SHAPES):
        # Four squares of 17 x 17 pixels, the largest, are a quarter of a frame.
        assert 0.005 < (difference(shapes, direction, seed=4) > 0).mean() < 0.25


def test_a_classifier_of_directions_is_right_less_often_than_on_easy_clips():
    """The direction in which a clip is most like itself some frames later."""
    correct = {}
    for difficulty in DIFFICULTIES:
        found = []
        for seed, (_, shape, direction) in enumerate(product(range(2), SHAPES, DIRECTIONS)):
            clip = draw_clip(shape, direction, np.random.default_rng((seed, 1)), difficulty)
            along, across = along_and_across(clip, direction)
            found.append(along > max(0.5, abs(across)))
        correct[difficulty] = np.mean(found)
    assert correct["easy"] == 1
    assert correct["hard"] < 0.9

"""Videos of moving shapes that the package draws and encodes itself, so that nothing is downloaded.

The quick start trains on the easy ones; training methods are compared on the hard ones.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import cast, get_args

import numpy as np
from rich.progress import track
from typing_extensions import override

from lightning_multigrid.video.datamodule import VideoDataModule
from lightning_multigrid.video.shape_clips import (
    DIRECTIONS,
    HEIGHT,
    SHAPES,
    WIDTH,
    Difficulty,
    Direction,
    Image,
    Shape,
    draw_clip,
)

MOVING_SHAPES = tuple(f"{shape}-{direction}" for shape, direction in product(SHAPES, DIRECTIONS))
"""The 16 classes, in the order of their labels."""

# Part of the folder's name: raise it whenever a pixel changes.
_VERSIONS: dict[Difficulty, str] = {"easy": "v1", "hard": "hard-v1"}
_RATE = 12


def write_moving_shapes(
    root: str | os.PathLike[str],
    *,
    train_per_class: int = 94,
    val_per_class: int = 25,
    seed: int = 0,
    difficulty: Difficulty = "easy",
) -> Path:
    """Writes the videos with a progress bar, unless they are there already.

    They appear all at once: an interrupted call leaves nothing that a later one takes for the dataset, and processes
    that write at the same time end with the same files. Returns the folder of the dataset, with a folder per class in
    its `train` and `val`. It lies in `root`, and its name has all that determines the pixels.
    """
    for name, number, least in (
        ("train_per_class", train_per_class, 1),
        ("val_per_class", val_per_class, 1),
        ("seed", seed, 0),
    ):
        if number < least:
            raise ValueError(f"`{name}` must be at least {least}, got {number}.")
    folder = _dataset_folder(root, train_per_class, val_per_class, seed, difficulty)
    if folder.is_dir():
        return folder
    with _temporary_folder(folder) as temporary:
        unfinished = Path(temporary, folder.name)
        _write_videos(
            [
                _Video(unfinished / split / f"{shape}-{direction}" / f"{index:04}", shape, direction, seeds, difficulty)
                for split_index, (split, number) in enumerate((("train", train_per_class), ("val", val_per_class)))
                for class_index, (shape, direction) in enumerate(product(SHAPES, DIRECTIONS))
                for index in range(number)
                for seeds in [(seed, split_index, class_index, index)]
            ]
        )
        try:
            os.replace(unfinished, folder)
        except OSError:
            if not folder.is_dir():  # else another process has written the same videos first
                raise
    return folder


@dataclass(frozen=True)
class _Video:
    path: Path
    shape: Shape
    direction: Direction
    seeds: tuple[int, ...]
    difficulty: Difficulty

    def write(self) -> None:
        clip = draw_clip(self.shape, self.direction, np.random.default_rng(self.seeds), self.difficulty)
        _encode(self.path, clip, self.difficulty)


def _dataset_folder(
    root: str | os.PathLike[str], train_per_class: int, val_per_class: int, seed: int, difficulty: Difficulty
) -> Path:
    if difficulty not in get_args(Difficulty):
        raise ValueError(f"`difficulty` must be one of {', '.join(get_args(Difficulty))}, got {difficulty!r}.")
    return Path(root, f"moving-shapes-{_VERSIONS[difficulty]}-{train_per_class}-{val_per_class}-seed{seed}")


def _temporary_folder(folder: Path) -> tempfile.TemporaryDirectory[str]:
    """Makes a folder next to another one, so that moving it there is a single step of the file system."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent)
    except OSError as error:
        raise OSError(
            f"The moving shapes cannot be written to {folder.parent}: {error}. Give another folder as `root`, or as "
            "the environment variable LIGHTNING_MULTIGRID_CACHE."
        ) from error


def _write_videos(videos: Sequence[_Video]) -> None:
    for folder in {video.path.parent for video in videos}:
        folder.mkdir(parents=True)
    # Threads are enough: NumPy and the encoder release the interpreter.
    pool = ThreadPoolExecutor(os.cpu_count())
    try:
        for _ in track(pool.map(_Video.write, videos), "Writing the moving shapes", total=len(videos)):
            pass
    finally:
        pool.shutdown(cancel_futures=True)


# Equal bytes each time need one thread, whose number is part of an H.264 file, and no macroblock tree, through which
# x264 lets videos that are encoded at the same time change each other. `fastdecode` halves the time of decoding.
_H264 = {"preset": "veryfast", "tune": "fastdecode", "crf": "26", "threads": "1", "mbtree": "0"}
_MOTION_JPEG = {"qmin": "2", "qmax": "6", "threads": "1"}


def _encode(path: Path, clip: Image, difficulty: Difficulty) -> None:
    # Imported here, because training on videos that are there already encodes nothing.
    import av

    # Of a Motion JPEG only the frames of the clip are decoded. On few cores a small model trains about as fast as H.264
    # decodes, and a comparison of training methods would compare decoding.
    suffix, codec, pixels, options = {
        "easy": (".mp4", "libx264", "yuv420p", _H264),
        "hard": (".avi", "mjpeg", "yuvj420p", _MOTION_JPEG),
    }[difficulty]
    with av.open(str(path.with_suffix(suffix)), "w") as container:
        stream = cast("av.VideoStream", container.add_stream(codec, rate=_RATE, options=options))
        stream.height, stream.width, stream.pix_fmt = HEIGHT, WIDTH, pixels
        for image in clip:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode())


def cache_folder() -> Path:
    r"""The folder for what the package can write again: LIGHTNING_MULTIGRID_CACHE, or one among the user's caches.

    This is `~/.cache/lightning-multigrid` (under XDG_CACHE_HOME if set) on Linux, `~/Library/Caches/...` on macOS, and
    `%LOCALAPPDATA%\...` on Windows.
    """
    given = os.environ.get("LIGHTNING_MULTIGRID_CACHE")
    if given:
        return Path(given).expanduser()
    if sys.platform == "darwin":
        caches = Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        caches = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return caches / "lightning-multigrid"


class MovingShapesDataModule(VideoDataModule):
    """Moving shapes, written to disk when they are first needed.

    Training clips are never mirrored: that would turn `left` into `right`.

    Args:
        root: Folder for the dataset; None means the user's cache folder (see `cache_folder`).
        train_per_class: Training videos of each of the 16 classes.
        val_per_class: Validation videos of each of the 16 classes; the test takes the same.
        seed: Seed of the videos.
        difficulty: `easy`, or `hard` for videos of low contrast with clutter and changing speed (see `draw_clip`).
        batch_size: Clips per device (B).
        frames: Frames per clip (T), of the 24 of a video.
        size: Height and width of a clip, in pixels (S). Frames have 64 x 80 pixels.
        stride: Temporal stride, in source frames.
        num_workers: Processes that decode.

    Raises:
        ValueError: If `difficulty` is unknown, or another argument is out of range.

    >>> data = MovingShapesDataModule("videos")
    >>> data.batch_size, data.frames, data.size, data.stride
    (8, 16, 40, 1)
    """

    def __init__(
        self,
        root: str | None = None,
        *,
        train_per_class: int = 94,
        val_per_class: int = 25,
        seed: int = 0,
        difficulty: Difficulty = "easy",
        batch_size: int = 8,
        frames: int = 16,
        size: int = 40,
        stride: int = 1,
        num_workers: int = 2,
    ) -> None:
        self.videos_root = cache_folder() if root is None else Path(root)
        self.train_per_class, self.val_per_class, self.seed = train_per_class, val_per_class, seed
        self.difficulty: Difficulty = difficulty
        folder = _dataset_folder(self.videos_root, train_per_class, val_per_class, seed, difficulty)
        super().__init__(
            train=folder / "train",
            val=folder / "val",
            test=folder / "val",
            batch_size=batch_size,
            frames=frames,
            size=size,
            stride=stride,
            flip=False,
            num_workers=num_workers,
        )

    @override
    def prepare_data(self) -> None:
        write_moving_shapes(
            self.videos_root,
            train_per_class=self.train_per_class,
            val_per_class=self.val_per_class,
            seed=self.seed,
            difficulty=self.difficulty,
        )

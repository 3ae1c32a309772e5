"""The quick start's videos: moving shapes that the package draws and encodes itself, so that nothing is downloaded.

A class is a shape and the direction it moves in. Where the shapes are is equally probable everywhere, and opposite
directions show the same frames in opposite order, so no single frame tells the direction.

Legend: T frames, H W pixels.
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
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt
from rich.progress import track
from typing_extensions import override

from lightning_multigrid.datamodule import VideoDataModule

__all__ = ["MOVING_SHAPES", "MovingShapesDataModule", "cache_folder", "draw_clip", "write_moving_shapes"]

Shape = Literal["cross", "ring", "square", "triangle"]
Direction = Literal["down", "left", "right", "up"]
Image = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.floating[Any]]

_SHAPES: tuple[Shape, ...] = ("cross", "ring", "square", "triangle")
_DIRECTIONS: tuple[Direction, ...] = ("down", "left", "right", "up")
MOVING_SHAPES = tuple(f"{shape}-{direction}" for shape, direction in product(_SHAPES, _DIRECTIONS))
"""The 16 classes, in the order of their labels."""

# Part of the folder's name: raise it whenever a pixel changes.
_VERSION = 1
_FRAMES, _HEIGHT, _WIDTH, _RATE = 24, 64, 80, 12


def draw_clip(shape: Shape, direction: Direction, rng: np.random.Generator) -> Image:
    """Draws a clip of four equal shapes that move together, with noise and a small shake.

    The frame is a torus: what leaves it at one side returns at the other. The shapes lie about half a frame apart, so
    that any crop of a training shows one, and no clip of a coarser grid mistakes one for its neighbour.

    Args:
        shape: What moves.
        direction: Where it moves to.
        rng: Draws the places, the speed, the radius, the colours, the noise and the shake.

    Returns:
        T x H x W x 3, RGB: 24 frames of 64 x 80 pixels.

    >>> right, left = (draw_clip("ring", direction, np.random.default_rng(0)) for direction in ("right", "left"))
    >>> bool((right == left[::-1]).all())
    True
    """
    time = np.arange(_FRAMES) - (_FRAMES - 1) / 2
    moved = rng.uniform(1, 2) * time
    shake_x, shake_y = rng.uniform(-0.5, 0.5, (2, _FRAMES))
    sideways = direction in ("left", "right")
    x = rng.uniform(0, _WIDTH) + shake_x + (moved if sideways else 0)
    y = rng.uniform(0, _HEIGHT) + shake_y + (0 if sideways else moved)
    radius = rng.uniform(7, 10)
    covered = np.zeros((_FRAMES, _HEIGHT, _WIDTH), np.float32)
    for column, row in product((0, _WIDTH / 2), (0, _HEIGHT / 2)):
        jitter_x, jitter_y = rng.uniform(-3, 3, 2)
        dx = _from_centre(x + column + jitter_x, _WIDTH)[:, None, :]
        dy = _from_centre(y + row + jitter_y, _HEIGHT)[:, :, None]
        # Half a pixel of transition, so that fractions of a pixel show.
        np.maximum(covered, np.clip(0.5 - _distance(shape, dx, dy, radius), 0, 1), out=covered)
    background, foreground = rng.uniform(30, 110, 3), rng.uniform(145, 225, 3)
    noise = rng.standard_normal((_FRAMES, _HEIGHT, _WIDTH, 1), np.float32) * 8
    colours = background.astype(np.float32) + (foreground - background).astype(np.float32) * covered[..., None]
    clip = np.clip(colours + noise, 0, 255).astype(np.uint8)
    return clip if direction in ("right", "down") else clip[::-1]


def _from_centre(centre: npt.NDArray[np.float64], length: int) -> Floats:
    """Signed distances of the pixels from a centre per frame, on a circle of `length` pixels: T x length."""
    pixels = np.arange(length)
    return ((pixels - centre[:, None] + length / 2) % length - length / 2).astype(np.float32)


def _distance(shape: Shape, dx: Floats, dy: Floats, radius: float) -> Floats:
    """Distance of each pixel from the shape's edge, negative inside: T x H x W."""
    across, along = np.abs(dx), np.abs(dy)
    distance: Floats
    if shape == "cross":
        arm = 0.3 * radius
        distance = np.minimum(np.maximum(across - radius, along - arm), np.maximum(across - arm, along - radius))
    elif shape == "ring":
        distance = np.abs(np.hypot(dx, dy) - 0.75 * radius) - 0.25 * radius
    elif shape == "square":
        distance = np.maximum(across, along) - 0.85 * radius
    else:
        distance = np.maximum(0.866 * across + 0.5 * dy, -dy) - 0.55 * radius
    return distance


def write_moving_shapes(
    root: str | os.PathLike[str], *, train_per_class: int = 94, val_per_class: int = 25, seed: int = 0
) -> Path:
    """Writes the videos, unless they are there already, and shows a progress bar meanwhile.

    They appear all at once, complete: an interrupted run leaves nothing that a later one takes for the dataset, and
    processes that write at the same time end with the same files.

    Args:
        root: Folder for datasets; this one is a folder in it, whose name holds all that determines the pixels.
        train_per_class: Training videos of each of the 16 classes.
        val_per_class: Validation videos of each of the 16 classes.
        seed: Seed of everything that is drawn; at least 0.

    Returns:
        The folder of the dataset, with a folder per class in its `train` and `val`.

    Raises:
        ValueError: If a number is out of range.
        OSError: If the folder cannot be written.
    """
    for name, number, least in (
        ("train_per_class", train_per_class, 1),
        ("val_per_class", val_per_class, 1),
        ("seed", seed, 0),
    ):
        if number < least:
            raise ValueError(f"`{name}` must be at least {least}, got {number}.")
    folder = _dataset_folder(root, train_per_class, val_per_class, seed)
    if folder.is_dir():
        return folder
    with _temporary_folder(folder) as temporary:
        unfinished = Path(temporary, folder.name)
        _write_videos(
            [
                _Video(unfinished / split / f"{shape}-{direction}" / f"{index:04}.mp4", shape, direction, seeds)
                for split_index, (split, number) in enumerate((("train", train_per_class), ("val", val_per_class)))
                for class_index, (shape, direction) in enumerate(product(_SHAPES, _DIRECTIONS))
                for index in range(number)
                for seeds in [(seed, split_index, class_index, index)]
            ]
        )
        try:
            os.replace(unfinished, folder)
        except OSError:
            if not folder.is_dir():  # else another process was faster, with the same videos
                raise
    return folder


@dataclass(frozen=True)
class _Video:
    path: Path
    shape: Shape
    direction: Direction
    seeds: tuple[int, ...]

    def write(self) -> None:
        _encode(self.path, draw_clip(self.shape, self.direction, np.random.default_rng(self.seeds)))


def _dataset_folder(root: str | os.PathLike[str], train_per_class: int, val_per_class: int, seed: int) -> Path:
    return Path(root, f"moving-shapes-v{_VERSION}-{train_per_class}-{val_per_class}-seed{seed}")


def _temporary_folder(folder: Path) -> tempfile.TemporaryDirectory[str]:
    """A folder next to a folder, so that moving one to the other is a single step of the file system."""
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


def _encode(path: Path, clip: Image) -> None:
    # Imported here, as all decoding is in `decode`, and training on cached videos encodes nothing.
    import av

    # So that the bytes are the same on every run: the number of threads is part of the file, and with x264's macroblock
    # tree other videos that are encoded at the same time change this one. `fastdecode` halves the time of decoding.
    options = {"preset": "veryfast", "tune": "fastdecode", "crf": "26", "threads": "1", "mbtree": "0"}
    with av.open(str(path), "w") as container:
        stream = cast("av.VideoStream", container.add_stream("libx264", rate=_RATE, options=options))
        stream.height, stream.width, stream.pix_fmt = _HEIGHT, _WIDTH, "yuv420p"
        for image in clip:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode())


def cache_folder() -> Path:
    r"""Where the package keeps what it can write again: LIGHTNING_MULTIGRID_CACHE, or a folder of the user's caches.

    That is `~/.cache/lightning-multigrid` (under XDG_CACHE_HOME if set) on Linux, `~/Library/Caches/...` on macOS, and
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
        root: Folder for the dataset; None is the user's cache folder (see `cache_folder`).
        train_per_class: Training videos of each of the 16 classes.
        val_per_class: Validation videos of each of the 16 classes, which are those of the test, too.
        seed: Seed of the videos.
        batch_size: Clips per device (B).
        frames: Frames per clip (T), of the 24 of a video.
        size: Height and width of a clip, in pixels (S). Frames have 64 x 80 pixels.
        stride: Temporal stride, in source frames.
        num_workers: Processes that decode.

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
        batch_size: int = 8,
        frames: int = 16,
        size: int = 40,
        stride: int = 1,
        num_workers: int = 2,
    ) -> None:
        self.videos_root = cache_folder() if root is None else Path(root)
        self.train_per_class, self.val_per_class, self.seed = train_per_class, val_per_class, seed
        folder = _dataset_folder(self.videos_root, train_per_class, val_per_class, seed)
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
        )
